// SPDX-License-Identifier: Apache-2.0
// Differences of amounts that may be larger than what they are taken from.
#include "kvspan/core/memory/machine_memory.hpp"

#include <algorithm>
#include <utility>

namespace kvspan {

namespace {

// a - b, kept inside 64 bits.
std::int64_t difference(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t kMost = INT64_MAX;
  return a >= b ? static_cast<std::int64_t>(std::min(a - b, kMost))
                : -static_cast<std::int64_t>(std::min(b - a, kMost));
}

// a + b, at most the largest number.
std::uint64_t saturated_sum(std::uint64_t a, std::uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

}  // namespace

Result<Headroom> headroom(const MachineMemory& machine,
                          std::uint64_t arena_bytes,
                          std::uint64_t pinned_bytes) {
  Headroom out;
  std::uint64_t host_demand = pinned_bytes;
  std::uint64_t kept = 0;
  if (machine.unified) {
    host_demand = saturated_sum(pinned_bytes, arena_bytes);
    kept = machine.reserve_bytes;
  } else if (machine.device_bytes != UINT64_MAX) {
    out.device_bytes =
        difference(machine.device_bytes, saturated_sum(machine.device_used_bytes, arena_bytes));
  }
  if (machine.host_bytes == UINT64_MAX) {
    return out;
  }
  const std::uint64_t used = saturated_sum(machine.host_used_bytes, kept);
  const std::uint64_t provided = machine.host_bytes - std::min(machine.host_bytes, used);
  if (host_demand > provided) {
    const std::uint64_t missing = host_demand - provided;
    std::string message =
        (machine.unified ? std::string("arena and history share one memory and take ")
                         : std::string("the history takes ")) +
        std::to_string(host_demand) + " bytes, but at most " + std::to_string(provided) +
        " bytes of this host's " + std::to_string(machine.host_bytes) +
        " are left: " + std::to_string(missing) +
        " are missing; shorten the context, use fewer sequences or smaller types";
    return tl::unexpected(
        Error{Errc::host_memory, std::move(message), host_demand, provided, missing, "history"});
  }
  out.host_bytes = difference(provided, host_demand);
  if (machine.unified) {
    out.device_bytes = out.host_bytes;
  }
  return out;
}

Result<AutomaticArena> automatic_arena(const ArenaRule& rule) {
  const std::uint64_t spare = rule.free_bytes - std::min(rule.free_bytes, rule.reserve_bytes);
  const std::string amounts = std::to_string(rule.free_bytes) + " bytes are free, " +
                              std::to_string(rule.reserve_bytes) + " of them are left alone";
  if (spare < rule.minimum_bytes) {
    const std::uint64_t missing = rule.minimum_bytes - spare;
    return tl::unexpected(Error{Errc::device_memory,
                                amounts + ", and the minimum of " +
                                    std::to_string(rule.minimum_bytes) + " bytes is " +
                                    std::to_string(missing) +
                                    " bytes more than the rest; free them, shorten the context or "
                                    "use smaller pages",
                                rule.minimum_bytes,
                                spare,
                                missing,
                                "arena"});
  }
  const std::uint64_t grain = std::max<std::uint64_t>(rule.grain_bytes, 1);
  const std::uint64_t useful = std::max(rule.useful_bytes, rule.minimum_bytes);
  const std::uint64_t most = std::min({spare, useful, rule.allocation_bytes_max});
  const std::uint64_t rounded = most == useful ? most : most / grain * grain;
  AutomaticArena out;
  out.arena_bytes = std::max(rounded, rule.minimum_bytes);
  out.rule = amounts + "; the arena is the rest";
  if (most == useful) {
    out.rule = amounts + "; the arena is what keeps everything resident";
  } else if (most == rule.allocation_bytes_max) {
    out.rule = amounts + "; the arena is what this device allocates at once";
  }
  if (most != useful && grain != 1) {
    out.rule += ", rounded down to " + std::to_string(grain) + " bytes";
  }
  out.rule += ": " + std::to_string(out.arena_bytes) + " bytes";
  return out;
}

}  // namespace kvspan
