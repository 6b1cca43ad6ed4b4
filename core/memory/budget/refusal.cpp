// SPDX-License-Identifier: Apache-2.0
// Each refusal: the thing, the limit, the fix.
#include "memory/budget/refusal.hpp"

#include "memory/budget/phases.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {

Error arena_too_small(const PlanRequest& request, const Plan& least) {
  const PhaseBudget& phase = largest_phase(least);
  const auto largest = std::max_element(
      phase.components.begin(),
      phase.components.end() - 1,  // the last is what the phase leaves idle
      [](const PlanComponent& a, const PlanComponent& b) { return a.size_bytes < b.size_bytes; });
  const std::uint64_t required = least.total_bytes();
  const std::uint64_t provided = request.arena_bytes;
  const std::uint64_t missing = required - provided;
  std::string message =
      "the arena of " + std::to_string(provided) + " bytes is " + std::to_string(missing) +
      " bytes below the minimum of " + std::to_string(required) + " bytes; phase " + phase.name +
      ", largest component " + largest->name + " with " + std::to_string(largest->size_bytes) +
      " bytes; give at least the minimum, or use smaller pages";
  if (request.prefill_rows_fixed != 0) {
    message += ", or allow narrower prefill chunks than " +
               std::to_string(request.prefill_rows_fixed) + " rows";
  }
  return Error{Errc::device_memory, std::move(message), required, provided, missing, largest->name};
}

Error allocation_too_large(const PlanRequest& request, const Plan& found) {
  const std::uint64_t required = found.regions.total_bytes();
  const std::uint64_t provided = request.allocation_bytes_max;
  const std::uint64_t missing = required - provided;
  const bool least_fits = found.minimum_arena_bytes - found.reserved_bytes <= provided;
  const std::string fix =
      least_fits
          ? "give an arena of at most " + std::to_string(provided + found.reserved_bytes) + " bytes"
          : "the minimum is more than that: use smaller pages, fewer sequences or narrower prefill "
            "chunks";
  std::string message = "the arena is one allocation of " + std::to_string(required) +
                        " bytes, and this device allocates at most " + std::to_string(provided) +
                        " bytes at once: " + std::to_string(missing) + " too many; " + fix;
  return Error{Errc::too_large, std::move(message), required, provided, missing, "arena"};
}

Error too_little_pinnable(const PlanRequest& request, const Plan& found) {
  const std::uint64_t required = found.pinned_bytes;
  const std::uint64_t provided = request.pinnable_bytes;
  const std::uint64_t missing = required - provided;
  std::string message = "the history of " + std::to_string(request.sequences) + " sequences of " +
                        std::to_string(request.context_tokens) + " tokens pins " +
                        std::to_string(required) +
                        " bytes of host memory in every phase, but only " +
                        std::to_string(provided) + " can be pinned: " + std::to_string(missing) +
                        " are missing; shorten the context, use fewer sequences or smaller types, "
                        "or raise the limit of host bytes or of locked memory";
  return Error{Errc::host_memory, std::move(message), required, provided, missing, "history"};
}

}  // namespace kvspan
