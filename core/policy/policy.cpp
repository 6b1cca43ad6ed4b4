// SPDX-License-Identifier: Apache-2.0
// policy_step(): learn from the counters, look for the best placement, change when it pays.
// Counters that cannot be true teach nothing; what is learnt only moves between fixed bounds, so
// that a constant load comes to rest.
#include "kvspan/core/policy/policy.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace kvspan {

namespace {

// Weight of a new measurement of the link.
constexpr double kSmoothing = 0.125;

// Late groups double the jitter that is allowed for, up to this many times the longest gap.
constexpr double kJitterGaps = 4.0;

tl::unexpected<Error> wrong_state(std::string message) {
  return tl::unexpected(error_of(Errc::invalid_argument, std::move(message), "policy"));
}

bool is_part(double value) {
  return std::isfinite(value) && value >= 0.0 && value <= 1.0;
}

Result<void> check_limits(const PolicyLimits& limits) {
  if (!is_part(limits.gain_min) || !is_part(limits.late_part) || !is_part(limits.saturated_part) ||
      !(limits.slowest_link > 0.0) || !(limits.fastest_link >= limits.slowest_link) ||
      !std::isfinite(limits.fastest_link) || !(limits.horizon_steps >= 0.0)) {
    return wrong_state(
        "the policy's limits must be parts of 1, and the link's bounds above 0 and in order");
  }
  return {};
}

Result<void> check_state(const PolicyState& state, const StepLoad& load) {
  if (!state.begun) {
    return {};
  }
  if (state.placement.resident_pages.size() != load.layers.size()) {
    return wrong_state("the policy's state is of " +
                       std::to_string(state.placement.resident_pages.size()) +
                       " layers and the load of " + std::to_string(load.layers.size()) +
                       "; begin again with a new state");
  }
  if (!(state.link_part > 0.0) || !std::isfinite(state.link_part) || !(state.late_ns >= 0.0) ||
      !std::isfinite(state.late_ns) || state.placement.group_pages == 0) {
    return wrong_state("the policy's state has impossible numbers; begin again with a new state");
  }
  return {};
}

bool is_true(const LinkCounters& counters) {
  return std::isfinite(counters.busy_ns) && counters.busy_ns >= 0.0 &&
         std::isfinite(counters.elapsed_ns) && counters.elapsed_ns >= 0.0 &&
         counters.late_groups <= counters.groups;
}

// What was counted since the baseline; nothing where a counter went back, a clock jumped or an
// epoch began.
std::optional<LinkCounters> since(const LinkCounters& baseline, const LinkCounters& now) {
  const bool regressed = now.epoch != baseline.epoch || now.groups < baseline.groups ||
                         now.late_groups < baseline.late_groups || now.bytes < baseline.bytes ||
                         now.busy_ns < baseline.busy_ns || now.elapsed_ns < baseline.elapsed_ns;
  if (regressed || !is_true(now)) {
    return std::nullopt;
  }
  LinkCounters out{now.epoch,
                   now.groups - baseline.groups,
                   now.late_groups - baseline.late_groups,
                   now.bytes - baseline.bytes,
                   now.busy_ns - baseline.busy_ns,
                   now.elapsed_ns - baseline.elapsed_ns};
  if (out.late_groups > out.groups || out.busy_ns > out.elapsed_ns) {
    return std::nullopt;
  }
  return out;
}

double longest_gap_ns(const StepLoad& load) {
  double gap_ns = 0.0;
  for (const LayerLoad& layer : load.layers) {
    gap_ns = std::max(gap_ns, layer.gap_ns);
  }
  return gap_ns;
}

void learn(const PolicyLimits& limits, const Observation& observation, PolicyState& state) {
  const LinkCounters& now = observation.counters;
  const bool fresh = !state.begun || now.epoch != state.baseline.epoch;
  const LinkCounters none{};
  const LinkCounters seen = fresh ? none : since(state.baseline, now).value_or(none);
  state.baseline = is_true(now) ? now : state.baseline;  // what is behind it went back
  if (fresh) {
    state.late_ns = 0.0;
  }
  if (seen.groups == 0) {
    return;
  }
  const StepLoad& load = observation.load;
  if (seen.busy_ns > 0.0 && seen.bytes > 0) {
    const double expected_ns = static_cast<double>(seen.groups) * load.link.copy_ns +
                               static_cast<double>(seen.bytes) / load.link.bytes_s * 1e9;
    const double part =
        std::clamp(expected_ns / seen.busy_ns, limits.slowest_link, limits.fastest_link);
    state.link_part += kSmoothing * (part - state.link_part);
  }
  const bool late =
      static_cast<double>(seen.late_groups) > limits.late_part * static_cast<double>(seen.groups);
  const bool saturated = seen.busy_ns >= limits.saturated_part * seen.elapsed_ns;
  if (late && !saturated) {
    const double group_ns = copy_time_ns(load.link, seen.bytes / seen.groups);
    const double most_ns = kJitterGaps * std::max(longest_gap_ns(load), group_ns);
    state.late_ns = std::min(std::max(2.0 * state.late_ns, group_ns), most_ns);
  }
}

bool can_run(const StepLoad& load, const Pool& pool, const Placement& placement) {
  return placed_bytes(load, pool, placement) <= pool.bytes &&
         (streamed_bytes(load, placement) == 0 ||
          placement.ring_slots >= 2 * placement.group_pages);
}

// Pages of each layer that a change brings where nobody says which are there: layers lie behind
// each other, sequence by sequence, so what follows a layer whose number changes moves.
std::vector<std::uint64_t> pages_elsewhere(const StepLoad& load,
                                           const Placement& from,
                                           const Placement& to) {
  std::vector<std::uint64_t> pages(load.layers.size(), 0);
  bool moved = false;
  for (std::uint32_t sequence = 0; sequence < load.sequences_max; ++sequence) {
    for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
      const std::uint64_t then = to.resident_pages[layer];
      pages[layer] += then - (moved ? 0 : std::min(then, from.resident_pages[layer]));
      moved = moved || then != from.resident_pages[layer];
    }
  }
  return pages;
}

// What a change brings: bytes, and the time that the link takes for them.
struct Move {
  std::uint64_t bytes = 0;
  double time_ns = 0.0;
};

Move move_of(const StepLoad& load,
             const Observation& observation,
             const Placement& from,
             const Placement& to) {
  const std::vector<std::uint64_t> pages =
      observation.moved_pages ? observation.moved_pages(to) : pages_elsewhere(load, from, to);
  Move move;
  for (std::size_t layer = 0; layer < std::min(pages.size(), load.layers.size()); ++layer) {
    const std::uint64_t page_bytes = load.layers[layer].page_bytes;
    move.bytes += pages[layer] * page_bytes;
    move.time_ns +=
        static_cast<double>(pages[layer]) * link_page_ns(load.link, page_bytes, to.group_pages);
  }
  return move;
}

// Whether a placement that is not forced should become another, and what is remembered of that.
DecisionReason weigh(const PolicyLimits& limits,
                     const StepLoad& load,
                     const Observation& observation,
                     const Placement& target,
                     PolicyState& state) {
  const double now_ns = predict(load, state.placement).step_ns;
  const double then_ns = predict(load, target).step_ns;
  if (!(then_ns < now_ns * (1.0 - limits.gain_min))) {
    state.asked = 0;
    return DecisionReason::kept;
  }
  const bool growth = target.ring_slots > state.placement.ring_slots;
  state.asked = growth == state.asked_growth ? state.asked + 1 : 1;
  state.asked_growth = growth;
  if (state.asked < (growth ? limits.grow_after : limits.shrink_after) || state.cooldown != 0) {
    return DecisionReason::waiting;
  }
  if ((now_ns - then_ns) * limits.horizon_steps <
      move_of(load, observation, state.placement, target).time_ns) {
    return DecisionReason::not_worth;
  }
  return growth ? DecisionReason::grown_ring : DecisionReason::shrunk_ring;
}

bool is_change(DecisionReason reason) {
  switch (reason) {
    case DecisionReason::kept:
    case DecisionReason::waiting:
    case DecisionReason::not_worth:
      return false;
    case DecisionReason::begun:
    case DecisionReason::grown_ring:
    case DecisionReason::shrunk_ring:
    case DecisionReason::phase_changed:
    case DecisionReason::deadline:
      return true;
  }
  return false;
}

}  // namespace

StepLoad learnt_load(const PolicyState& state, const StepLoad& load) {
  StepLoad out = load;
  out.link.bytes_s *= state.link_part;
  out.jitter_ns += state.late_ns;
  return out;
}

const char* name(DecisionReason reason) {
  switch (reason) {
    case DecisionReason::begun:
      return "begun";
    case DecisionReason::kept:
      return "kept";
    case DecisionReason::waiting:
      return "waiting";
    case DecisionReason::not_worth:
      return "not worth moving pages";
    case DecisionReason::grown_ring:
      return "grown ring";
    case DecisionReason::shrunk_ring:
      return "shrunk ring";
    case DecisionReason::phase_changed:
      return "phase changed";
    case DecisionReason::deadline:
      return "deadline";
  }
  return "unknown";
}

Result<PolicyOutcome> policy_step(const PolicyConfig& config,
                                  const PolicyState& state,
                                  const Observation& observation) {
  if (auto checked = check_limits(config.limits); !checked) {
    return tl::unexpected(std::move(checked).error());
  }
  if (auto checked = check_state(state, observation.load); !checked) {
    return tl::unexpected(std::move(checked).error());
  }
  const Pool& pool = observation.phase == Phase::prefill ? config.prefill_pool : config.decode_pool;
  PolicyOutcome out{state, {}};
  learn(config.limits, observation, out.state);
  const StepLoad load = learnt_load(out.state, observation.load);
  auto target = best_placement(load, pool);
  if (target && observation.whole_layer) {
    target = admit_whole_layer(load, pool, *target, *observation.whole_layer);
  }
  if (!target) {
    return tl::unexpected(std::move(target).error());
  }
  if (observation.pages_max != 0) {
    target = with_rest(load, pool, state.placement, std::move(*target), observation.pages_max);
  }
  out.state.cooldown -= out.state.cooldown == 0 ? 0 : 1;
  const bool misses_layer =
      state.begun && observation.whole_layer &&
      streamed_pages(load, state.placement, *observation.whole_layer) > state.placement.ring_slots;
  if (!state.begun) {
    out.decision.reason = DecisionReason::begun;
  } else if (observation.phase != state.phase) {
    out.decision.reason = DecisionReason::phase_changed;
  } else if (misses_layer || !can_run(load, pool, state.placement)) {
    out.decision.reason = DecisionReason::deadline;
  } else {
    out.decision.reason = weigh(config.limits, load, observation, *target, out.state);
  }
  if (is_change(out.decision.reason)) {
    out.decision.changed = !state.begun || *target != state.placement;
    out.decision.moved_bytes =
        state.begun ? move_of(load, observation, state.placement, *target).bytes : 0;
    out.state.placement = std::move(*target);
    out.state.asked = 0;
    out.state.cooldown = state.begun ? config.limits.cooldown_steps : 0;
  }
  out.state.begun = true;
  out.state.phase = observation.phase;
  out.decision.placement = out.state.placement;
  out.decision.predicted = predict(load, out.state.placement);
  out.decision.stayed = state.begun ? predict(load, state.placement) : out.decision.predicted;
  return out;
}

}  // namespace kvspan
