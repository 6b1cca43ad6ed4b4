// SPDX-License-Identifier: Apache-2.0
// The policy in a running session: what was counted since the last observation, its decision, and
// the move where it decides on one.
#include "state.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace kvspan {

namespace {

// Up to thirty years.
bool is_duration(double time_ns) {
  return time_ns >= 0.0 && time_ns <= 1e18;
}

Error wrong_observation(const char* message) {
  return error_of(Errc::invalid_argument, message, "placement");
}

}  // namespace

// Adds what is new to the policy's counters, which only rise. What no clock says begins an epoch,
// in which nothing from before counts; so does a failure.
Result<void> SessionState::count_link(const StepObservation& seen) {
  LinkCounters& link = link_counters;
  const bool told = is_duration(seen.elapsed_ns) && is_duration(seen.link_busy_ns.value_or(0.0));
  untrue_observations += told ? 0U : 1U;
  link.epoch = recoveries + untrue_observations;
  link.elapsed_ns += told ? seen.elapsed_ns : 0.0;
  link.late_groups += seen.late_groups;
  if (options.placement.measures_copies) {
    std::array<kvspan_measurement_t, 64> taken{};
    for (std::uint32_t count = 1; count != 0;) {
      auto found = lanes->measurements(LaneId::upload, taken);
      if (!found) {
        return tl::unexpected(std::move(found).error());
      }
      count = *found;
      for (std::uint32_t index = 0; index < count; ++index) {
        ++link.groups;
        link.bytes += taken[index].bytes;
        link.busy_ns += static_cast<double>(taken[index].duration_ns);
      }
    }
    return {};
  }
  link.groups += groups_attended - std::exchange(groups_observed, groups_attended);
  link.bytes = counters.streamed_bytes;
  link.busy_ns += told ? seen.link_busy_ns.value_or(0.0) : 0.0;
  return {};
}

Result<Decision> SessionState::observe(const StepObservation& seen) {
  if (auto counted = count_link(seen); !counted) {
    return tl::unexpected(std::move(counted).error());
  }
  const PlanRequest request = plan_request(backend, options);
  Observation observation{last_phase, step_load(request, plan), link_counters, std::nullopt};
  for (LayerLoad& layer : observation.load.layers) {
    const double gap_ns = seen.gap_ns.value_or(layer.gap_ns);
    layer.gap_ns = is_duration(gap_ns) ? gap_ns : layer.gap_ns;
  }
  Decision decision;
  decision.placement = placement_of(plan);
  if (plan.mode == PlanMode::resident) {
    decision.predicted = predict(observation.load, decision.placement);
    return decision;
  }
  PolicyState state = policy;
  if (!state.begun) {  // the plan's placement is the policy's first
    state.begun = true;
    state.phase = last_phase;
    state.placement = decision.placement;
  }
  const Pool pool{
      plan.regions.resident_bytes + plan.regions.slots_bytes - plan.tail_slots * plan.slot_bytes,
      plan.slot_bytes};
  auto outcome = policy_step({pool, pool, options.placement.limits}, state, observation);
  if (!outcome) {
    return tl::unexpected(std::move(outcome).error());
  }
  // A ring of everything resident is not asked for: slots for a group cost next to nothing.
  Placement& wanted = outcome->decision.placement;
  wanted.ring_slots = std::max(wanted.ring_slots, std::max(2U, wanted.group_pages));
  if (outcome->decision.changed) {
    // Alignment of the sequences' parts may take the last slots of the ring.
    while (wanted.ring_slots > std::max(2U, 2 * wanted.group_pages) &&
           !replaced(plan, options.sequences, wanted)) {
      --wanted.ring_slots;
    }
    outcome->decision.changed = replaced(plan, options.sequences, wanted).has_value();
  }
  if (outcome->decision.changed) {
    if (auto moved = place(wanted); !moved) {
      return tl::unexpected(std::move(moved).error());
    }
    plan.predicted = outcome->decision.predicted;
  }
  policy = std::move(outcome->state);
  policy.placement = outcome->decision.placement = placement_of(plan);
  return std::move(outcome->decision);
}

Result<Decision> Session::observe(const StepObservation& seen) {
  SessionState& state = *state_;
  if (auto between = state.check_between_steps(); !between) {
    return tl::unexpected(std::move(between).error());
  }
  if (!state.options.placement.changes || !is_the_policys(state.options.stream)) {
    return tl::unexpected(wrong_observation(
        "the placement is fixed; open the session with placement.changes, the link's rate, and "
        "groups and residents left to the policy"));
  }
  return state.observe(seen);
}

}  // namespace kvspan
