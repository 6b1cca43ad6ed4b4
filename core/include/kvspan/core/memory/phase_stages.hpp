// SPDX-License-Identifier: Apache-2.0
// A plan's phases as serial stages of memory, so that they can be laid out one over the other: what
// a session's arena would be with a transition between its phases. Pure.
// Read next: budget.hpp (the plan), requirement.hpp, docs/design/memory.md.
#pragma once

#include "kvspan/core/memory/budget.hpp"
#include "kvspan/core/memory/requirement.hpp"

#include <cstdint>
#include <span>

namespace kvspan {

// Resource ids of the plan's own components, in their order; those of demands follow, a demand's
// index in the list added to kFirstDemandResource.
enum class PlanResource : std::uint64_t {
  resident_pages = 1,
  ring,
  tails,
  split_states,
  accumulators,
  workspace
};
inline constexpr std::uint64_t kFirstDemandResource = 7;

// Stage i + 1 is plan.phases[i]. Resident pages are kept through all of them, in and out; the rest
// is discarded where a phase ends. All in device memory of `domain`. Demands without a phase lie
// outside and are left out. `demands` are those of the plan's request.
// Errc::invalid_argument: the plan has no phases, or a phase lacks a component; make it by plan()
// from these demands.
[[nodiscard]] Result<StageRequest> phase_stages(const Plan& plan,
                                                std::span<const Demand> demands,
                                                std::uint64_t domain);

}  // namespace kvspan
