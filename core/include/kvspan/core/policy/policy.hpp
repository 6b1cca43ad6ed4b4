// SPDX-License-Identifier: Apache-2.0
// When to change the placement: a pure step from configuration, state and observation to a
// decision. No clock, no memory of its own: times are differences of what the caller counted. Any
// thread. Read first: placement.hpp (which placement is best); next: docs/design/policy.md.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/memory/budget.hpp"
#include "kvspan/core/policy/placement.hpp"
#include "kvspan/core/policy/step_time.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace kvspan {

// Limits of the policy, each with the value that sessions use.
struct PolicyLimits {
  double gain_min = 0.02;             // of a step's time that a change must be predicted to save
  std::uint32_t grow_after = 3;       // steps in a row that ask for more ring before it grows
  std::uint32_t shrink_after = 8;     // and for less before it shrinks
  std::uint32_t cooldown_steps = 64;  // after a change
  double horizon_steps = 256.0;       // in which a change must pay for the pages that it moves
  double late_part = 0.01;            // of groups that may come late unnoticed
  double saturated_part = 0.90;  // of the time that the link is busy: more ring is no help then
  double slowest_link =
      1.0 / 16.0;  // of the calibrated rate; a link that says less is not believed
  double fastest_link = 4.0;
};

struct PolicyConfig {
  Pool decode_pool;
  Pool prefill_pool;
  PolicyLimits limits;
};

// What was counted since `epoch` began; everything only rises inside an epoch.
struct LinkCounters {
  std::uint64_t epoch = 0;
  std::uint64_t groups = 0;       // fetched and attended to
  std::uint64_t late_groups = 0;  // of those, attention waited for
  std::uint64_t bytes = 0;        // of those groups
  double busy_ns = 0.0;           // that the link spent on them
  double elapsed_ns = 0.0;        // by any steady clock

  [[nodiscard]] bool operator==(const LinkCounters&) const = default;
};

struct Observation {
  Phase phase = Phase::decode;
  StepLoad load;  // of the next step, with the link as calibrated
  LinkCounters counters;
  std::optional<std::size_t> whole_layer;  // must be in the ring at once
  // Where the load is shorter than what the arena is made for: pages of a layer that sequences may
  // grow to, for which room that is left is resident too; 0: the load's.
  std::uint64_t pages_max = 0;
  // [layer] pages that a change to this placement would bring; a function of what the caller has.
  // Empty: what becomes resident or follows a layer whose number changes, of every sequence that
  // resident pages are kept for.
  std::function<std::vector<std::uint64_t>(const Placement& to)> moved_pages;
};

// Between steps. A default one is a session that has not begun.
struct PolicyState {
  bool begun = false;
  Phase phase = Phase::decode;
  Placement placement;
  LinkCounters baseline;
  double link_part = 1.0;   // measured rate over the calibrated one, smoothed
  double late_ns = 0.0;     // jitter beyond the load's own, learnt from late groups
  std::uint32_t asked = 0;  // steps in a row that a better placement was predicted
  bool asked_growth = false;
  std::uint32_t cooldown = 0;

  [[nodiscard]] bool operator==(const PolicyState&) const = default;
};

enum class DecisionReason : std::uint8_t {
  begun,          // the first placement
  kept,           // it is the best, or not enough better
  waiting,        // a better one is known; not asked for long enough, or cooling down
  not_worth,      // a better one is known; moving its pages costs more than it saves
  grown_ring,     // changed: more ring
  shrunk_ring,    // changed: less ring, more resident
  phase_changed,  // changed at once: prefill and decode have different pools
  deadline        // changed at once: the old one cannot run the step
};

[[nodiscard]] const char* name(DecisionReason reason);

struct Decision {
  Placement placement;
  bool changed = false;
  DecisionReason reason = DecisionReason::kept;
  StepTime predicted;
  StepTime stayed;  // under the same load, had the placement stayed: never the faster one
  std::uint64_t moved_bytes = 0;  // of pages that the change brings, as it was priced
};

struct PolicyOutcome {
  PolicyState state;
  Decision decision;
};

// A load with what a state has learnt of link and jitter: what decisions are weighed under.
[[nodiscard]] StepLoad learnt_load(const PolicyState& state, const StepLoad& load);

// Errors, with state and decision untouched: invalid_argument for a load, limits or a state that
// cannot be (next: begin again with a default state); device_memory where a pool holds no ring, or
// not the whole layer that is asked for.
[[nodiscard]] Result<PolicyOutcome> policy_step(const PolicyConfig& config,
                                                const PolicyState& state,
                                                const Observation& observation);

}  // namespace kvspan
