// SPDX-License-Identifier: Apache-2.0
// The policy in a running session: what was counted since the last observation, its decision, and
// the move where it decides on one.
#include "calls.hpp"
#include "stages.hpp"
#include "state.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace kvspan {

namespace {

// Up to thirty years.
bool is_duration(double time_ns) {
  return time_ns >= 0.0 && time_ns <= 1e18;
}

Error wrong_observation(const char* message) {
  return error_of(Errc::invalid_argument, message, "placement");
}

// What refill() would bring behind place(to), page by page; what is missing already comes anyway.
std::vector<std::uint64_t> moved_pages(const SessionState& state, Placement to) {
  std::vector<std::uint64_t> out(state.plan.pages.size(), 0);
  if (!state.fits(to)) {
    return out;
  }
  const std::uint32_t sequences = state.options.sequences;
  const auto next = replaced(state.plan, sequences, to);
  for (std::uint32_t sequence = 0; sequence < state.sequences.size(); ++sequence) {
    const SequenceHistory& history = state.sequences[sequence].history;
    const std::uint64_t tokens = state.sequences[sequence].live ? history.committed_tokens() : 0;
    const std::uint64_t pages = (tokens + state.page_tokens() - 1) / state.page_tokens();
    for (std::uint32_t layer = 0; pages != 0 && layer < out.size(); ++layer) {
      const std::uint64_t after = next->resident_pages[layer];
      const std::uint64_t from = first_moved(state.plan, *next, sequences, sequence, layer);
      const bool rolls = next->rolling_pages[layer] != 0 && after >= next->rolling_pages[layer];
      const std::uint64_t first = std::max(
          from, rolls ? state.first_visible_page(layer, tokens) : history.first_page(layer));
      const std::uint64_t end = rolls ? pages : std::min(after, pages);
      out[layer] += from == after || first >= end ? 0 : end - first;
    }
  }
  return out;
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

// How fast sequences grow in decode steps, cuts taken off. Rows of prompts are no growth.
void SessionState::observe_growth() {
  const std::uint64_t steps = std::exchange(decode_steps, 0);
  for (Sequence& sequence : sequences) {
    const std::uint64_t tokens = sequence.live ? sequence.history.committed_tokens() : 0;
    const std::uint64_t before = std::exchange(sequence.observed_tokens, tokens);
    if (steps != 0) {
      const std::uint64_t gained = tokens - std::min(tokens, before);
      sequence.growth_tokens = std::min(static_cast<double>(gained) / static_cast<double>(steps),
                                        static_cast<double>(plan.decode_rows));
    }
  }
}

// A decode step of the sequences that there are, half way through the time in which a change must
// pay; without any, of the full context.
Observation SessionState::observation_of(const StepObservation& seen) const {
  Observation out;
  out.load = step_load(plan_request(backend, options), plan);
  out.counters = link_counters;
  for (LayerLoad& layer : out.load.layers) {
    const double gap_ns = seen.gap_ns.value_or(layer.gap_ns);
    layer.gap_ns = is_duration(gap_ns) ? gap_ns : layer.gap_ns;
  }
  const double context = static_cast<double>(options.context_tokens);
  const double steps = std::clamp(options.placement.limits.horizon_steps / 2.0, 0.0, context);
  std::vector<std::uint64_t> pages;
  for (const Sequence& sequence : sequences) {
    if (sequence.live) {
      const std::uint64_t tokens = sequence.history.committed_tokens();
      const double then =
          std::min(context, static_cast<double>(tokens) + sequence.growth_tokens * steps);
      pages.push_back((static_cast<std::uint64_t>(then) + page_tokens() - 1) / page_tokens());
    }
  }
  if (!pages.empty()) {
    out.load.sequence_pages = std::move(pages);
  }
  out.pages_max = plan.pages_a_sequence;
  out.moved_pages = [this](const Placement& to) { return moved_pages(*this, to); };
  return out;
}

// Cuts what the policy asks for to what the arena holds to the byte: alignment of the sequences'
// parts may take the last slots or pages. A ring is asked for where everything is resident too:
// slots for a group cost next to nothing.
bool SessionState::fits(Placement& wanted) const {
  wanted.ring_slots = std::max(wanted.ring_slots, std::max(2U, wanted.group_pages));
  while (!replaced(plan, options.sequences, wanted)) {
    if (wanted.ring_slots <= std::max(2U, 2 * wanted.group_pages)) {
      return false;
    }
    --wanted.ring_slots;
  }
  return true;
}

// What ring and residents have, but for what their alignment may take; what is there fits.
Pool SessionState::pool_of(const StepLoad& load) const {
  const std::uint64_t parts = options.sequences * (plan.rooms.empty() ? 1ULL : 2ULL) + 1;
  const std::uint64_t bytes =
      plan.regions.resident_bytes + plan.regions.slots_bytes - plan.tail_slots * plan.slot_bytes;
  Pool pool{bytes - std::min(bytes, parts * plan.alignment), plan.slot_bytes};
  pool.bytes = std::max(pool.bytes, placed_bytes(load, pool, placement_of(plan)));
  return pool;
}

Result<Decision> SessionState::observe(const StepObservation& seen) {
  if (auto counted = count_link(seen); !counted) {
    return tl::unexpected(std::move(counted).error());
  }
  observe_growth();
  const Observation observation = observation_of(seen);
  Decision kept;
  kept.placement = placement_of(plan);
  kept.predicted = kept.stayed = predict(observation.load, kept.placement);
  // A prompt's placement is the plan's: a step's time says nothing about it, nor its groups about a
  // step's.
  if (plan.mode == PlanMode::resident || last_phase == Phase::prefill ||
      (!plan.rooms.empty() && plan.phase == Phase::prefill)) {
    policy.baseline = link_counters;
    return kept;
  }
  PolicyState state = policy;
  state.begun = true;  // the plan's placement is the policy's first; another one the engine's
  state.placement = kept.placement;
  const Pool pool = pool_of(observation.load);
  auto outcome = policy_step({pool, pool, options.placement.limits}, state, observation);
  if (!outcome) {
    return tl::unexpected(std::move(outcome).error());
  }
  Decision& decision = outcome->decision;
  if (decision.changed) {
    const StepLoad load = learnt_load(outcome->state, observation.load);
    decision.changed = fits(decision.placement);
    decision.predicted = predict(load, decision.placement);
    decision.changed = decision.changed && decision.predicted.step_ns <= decision.stayed.step_ns;
  }
  if (decision.changed) {
    if (auto moved = place(decision.placement); !moved) {
      return tl::unexpected(std::move(moved).error());
    }
    plan.predicted = decision.predicted;
  } else {
    decision.predicted = decision.stayed;
    decision.moved_bytes = 0;
  }
  policy = std::move(outcome->state);
  policy.placement = decision.placement = placement_of(plan);
  return std::move(decision);
}

Result<Decision> unguarded::observe(SessionState& state, const StepObservation& seen) {
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
