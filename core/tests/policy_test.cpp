// SPDX-License-Identifier: Apache-2.0
// The policy over time: fixed points, cooldown, links that lie, clocks that jump, counters that go
// back, phases and deadlines. Every sequence is drawn from a printed seed.
#include "kvspan/core/policy/policy.hpp"

#include "random_load.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace kvspan::test {
namespace {

constexpr int rounds(int full) {
  return KVSPAN_TEST_SANITIZED != 0 ? full / 20 : full;
}

// What a link that is as fast as `part` of its calibration counts in a step of this placement.
void count_step(const StepLoad& load,
                const Placement& placement,
                double part,
                double late_part,
                LinkCounters& counters) {
  StepLoad real = load;
  real.link.bytes_s *= part;
  const StepTime time = predict(real, placement);
  const std::uint64_t bytes = streamed_bytes(load, placement);
  const std::uint64_t group_bytes = placement.group_pages * load.layers.front().page_bytes;
  const std::uint64_t groups = (bytes + group_bytes - 1) / group_bytes;
  counters.groups += groups;
  counters.late_groups += static_cast<std::uint64_t>(static_cast<double>(groups) * late_part);
  counters.bytes += bytes;
  counters.busy_ns += time.link_ns;
  counters.elapsed_ns += time.step_ns;
}

PolicyConfig config_of(const LoadCase& drawn) {
  PolicyConfig config;
  config.decode_pool = drawn.pool;
  config.prefill_pool = drawn.pool;
  return config;
}

// Advances a policy by one step; a refusal fails the test.
Decision advance(const PolicyConfig& config, PolicyState& state, const Observation& seen) {
  auto out = policy_step(config, state, seen);
  EXPECT_TRUE(out.has_value()) << out.error().message;
  if (!out) {
    return {};
  }
  state = out->state;
  return out->decision;
}

TEST(Policy, ConstantLoadComesToRest) {
  RandomLoads loads(9001);
  for (int round = 0; round < rounds(60); ++round) {
    const LoadCase drawn = round % 2 == 0 ? loads.uniform() : loads.mixed();
    SCOPED_TRACE(drawn.text);
    const PolicyConfig config = config_of(drawn);
    PolicyState state;
    Observation seen;
    seen.load = drawn.load;
    const double part = round % 3 == 0 ? 0.4 : 1.0;
    const double late = round % 5 == 0 ? 0.3 : 0.0;
    int changes_late = 0;
    for (int step = 0; step < 700; ++step) {
      const Decision decision = advance(config, state, seen);
      changes_late += decision.changed && step >= 450 ? 1 : 0;
      count_step(drawn.load, state.placement, part, late, seen.counters);
    }
    EXPECT_EQ(changes_late, 0);
  }
}

// Nothing that counters can say breaks a placement, and impossible ones teach nothing.
TEST(Policy, LyingCountersAndJumpingClocksAreSurvived) {
  RandomLoads loads(9003);
  for (int round = 0; round < rounds(300); ++round) {
    const LoadCase drawn = round % 2 == 0 ? loads.uniform() : loads.mixed();
    SCOPED_TRACE(drawn.text);
    const PolicyConfig config = config_of(drawn);
    PolicyState state;
    Observation seen;
    seen.load = drawn.load;
    for (int step = 0; step < 60; ++step) {
      const double wild[] = {-1.0,
                             0.0,
                             1e-300,
                             1e300,
                             std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()};
      seen.counters.epoch = loads.pick(0, 9) == 0 ? loads.pick(0, 3) : seen.counters.epoch;
      seen.counters.groups = loads.pick(0, 1) << loads.pick(0, 63);
      seen.counters.late_groups = loads.pick(0, 1) << loads.pick(0, 63);
      seen.counters.bytes = loads.pick(0, 1) << loads.pick(0, 63);
      seen.counters.busy_ns = wild[loads.pick(0, 5)];
      seen.counters.elapsed_ns = wild[loads.pick(0, 5)];
      const Decision decision = advance(config, state, seen);
      ASSERT_LE(placed_bytes(drawn.load, drawn.pool, decision.placement), drawn.pool.bytes);
      ASSERT_TRUE(std::isfinite(decision.predicted.step_ns));
      ASSERT_GE(state.link_part, config.limits.slowest_link);
      ASSERT_LE(state.link_part, config.limits.fastest_link);
    }
  }
}

TEST(Policy, CountersThatGoBackTeachNothing) {
  RandomLoads loads(9004);
  LoadCase drawn = loads.uniform();
  drawn.load.sequence_pages = {100};
  drawn.pool.bytes = drawn.load.layers.size() * 20 * drawn.pool.slot_bytes;
  const PolicyConfig config = config_of(drawn);
  PolicyState state;
  Observation seen;
  seen.load = drawn.load;
  seen.counters = {1, 100, 0, 1 << 30, 1e6, 2e6};
  advance(config, state, seen);
  const double learnt = state.link_part;
  seen.counters = {1, 90, 0, 1 << 29, 5e5, 1e6};  // went back
  advance(config, state, seen);
  EXPECT_EQ(state.link_part, learnt);
  seen.counters = {1, 99, 0, 1 << 28, 6e5, 2e6};  // its bytes alone
  advance(config, state, seen);
  EXPECT_EQ(state.link_part, learnt);
  seen.counters = {1, 110, 10, 1 << 30, 9e6, 3e6};  // busier than time passed
  advance(config, state, seen);
  EXPECT_EQ(state.link_part, learnt);
  EXPECT_EQ(state.late_ns, 0.0);
  seen.counters = {2, 5, 0, 100, 1.0, 2.0};  // a new epoch only sets the baseline
  advance(config, state, seen);
  EXPECT_EQ(state.link_part, learnt);
}

LoadCase gapped_case() {
  LoadCase drawn;
  drawn.load.layers.assign(8, {425984, 0, 2e5, 100.0});
  drawn.load.sequence_pages = {400};
  drawn.load.link = {2450.0, 25e9};
  drawn.pool = {8ULL * 100 * 425984, 425984};
  return drawn;
}

// A load that never rests: other gaps every dozen steps, each worth a change.
TEST(Policy, ChangesAreACooldownApart) {
  const LoadCase drawn = gapped_case();
  const PolicyConfig config = config_of(drawn);
  PolicyState state;
  Observation seen;
  seen.load = drawn.load;
  int since_change = 1000;
  int changes = 0;
  for (int step = 0; step < 1000; ++step) {
    for (LayerLoad& layer : seen.load.layers) {
      layer.gap_ns = step / 12 % 2 == 0 ? 2e5 : 3e6;
    }
    const Decision decision = advance(config, state, seen);
    ASSERT_LE(placed_bytes(seen.load, drawn.pool, decision.placement), drawn.pool.bytes);
    if (decision.changed && step != 0) {
      ASSERT_GE(since_change, 64) << "step " << step;
      since_change = 0;
      ++changes;
    }
    ++since_change;
  }
  EXPECT_GE(changes, 3);
}

// Groups that come late while the link rests ask for more ring; on a saturated link they do not.
TEST(Policy, LateGroupsGrowTheRingUnlessTheLinkIsSaturated) {
  for (const bool saturated : {false, true}) {
    const LoadCase drawn = gapped_case();
    const PolicyConfig config = config_of(drawn);
    PolicyState state;
    Observation seen;
    seen.load = drawn.load;
    advance(config, state, seen);
    const std::uint32_t before = state.placement.ring_slots;
    for (int step = 0; step < 200; ++step) {
      count_step(drawn.load, state.placement, 1.0, 0.5, seen.counters);
      seen.counters.elapsed_ns =
          seen.counters.busy_ns * (saturated ? 1.0 : 2.0);  // as the clock says
      advance(config, state, seen);
    }
    if (saturated) {
      EXPECT_EQ(state.late_ns, 0.0);
      EXPECT_EQ(state.placement.ring_slots, before);
    } else {
      EXPECT_GT(state.late_ns, 0.0);
      EXPECT_LE(state.late_ns, 4.0 * copy_time_ns(drawn.load.link, 32ULL * 425984));
    }
  }
}

TEST(Policy, ASlowerLinkIsLearntAndOneThatLiesIsBounded) {
  const LoadCase drawn = gapped_case();
  const PolicyConfig config = config_of(drawn);
  for (const double part : {0.5, 1e-9}) {
    PolicyState state;
    Observation seen;
    seen.load = drawn.load;
    for (int step = 0; step < 100; ++step) {
      advance(config, state, seen);
      count_step(drawn.load, state.placement, part, 0.0, seen.counters);
    }
    EXPECT_NEAR(state.link_part, std::max(part, 1.0 / 16.0), 0.03);
  }
}

TEST(Policy, PhasesChangeAtOnceAndDeadlinesDoNotWait) {
  const LoadCase drawn = gapped_case();
  PolicyConfig config = config_of(drawn);
  config.prefill_pool.bytes /= 2;
  PolicyState state;
  Observation seen;
  seen.load = drawn.load;
  seen.phase = Phase::prefill;
  EXPECT_EQ(advance(config, state, seen).reason, DecisionReason::begun);
  seen.phase = Phase::decode;
  const Decision decode = advance(config, state, seen);
  EXPECT_EQ(decode.reason, DecisionReason::phase_changed);
  EXPECT_TRUE(decode.changed);
  // A whole layer is needed while the policy is cooling down.
  seen.whole_layer = 3;
  const Decision whole = advance(config, state, seen);
  EXPECT_EQ(whole.reason, DecisionReason::deadline);
  EXPECT_LE(streamed_pages(seen.load, whole.placement, 3), whole.placement.ring_slots);
  // A history that outgrows an arena in which everything was resident needs a ring now.
  PolicyState fresh;
  seen = {};
  seen.load = drawn.load;
  seen.load.sequence_pages = {90};
  EXPECT_EQ(advance(config, fresh, seen).placement.ring_slots, 0U);
  seen.load.sequence_pages = {101};
  EXPECT_EQ(advance(config, fresh, seen).reason, DecisionReason::deadline);
}

TEST(Policy, WhatCannotBeIsRefusedAndChangesNothing) {
  const LoadCase drawn = gapped_case();
  const PolicyConfig config = config_of(drawn);
  PolicyState state;
  Observation seen;
  seen.load = drawn.load;
  advance(config, state, seen);
  PolicyState corrupt = state;
  corrupt.placement.resident_pages.pop_back();
  EXPECT_EQ(policy_step(config, corrupt, seen).error().code, Errc::invalid_argument);
  corrupt = state;
  corrupt.link_part = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(policy_step(config, corrupt, seen).error().code, Errc::invalid_argument);
  PolicyConfig wrong = config;
  wrong.limits.gain_min = 2.0;
  EXPECT_EQ(policy_step(wrong, state, seen).error().code, Errc::invalid_argument);
  wrong = config;
  wrong.decode_pool.bytes = 1;
  EXPECT_EQ(policy_step(wrong, state, seen).error().code, Errc::device_memory);
  seen.load.link.bytes_s = -1.0;
  EXPECT_EQ(policy_step(config, state, seen).error().code, Errc::invalid_argument);
  seen.load = drawn.load;
  seen.whole_layer = 99;
  EXPECT_EQ(policy_step(config, state, seen).error().code, Errc::invalid_argument);
}

// A change that saves less than moving its pages costs is not made.
TEST(Policy, AChangeMustPayForThePagesThatItMoves) {
  const LoadCase drawn = gapped_case();
  PolicyConfig config = config_of(drawn);
  PolicyState state;
  Observation seen;
  seen.load = drawn.load;
  for (LayerLoad& layer : seen.load.layers) {
    layer.gap_ns = 2e6;
  }
  advance(config, state, seen);
  seen.load = drawn.load;  // shorter gaps: less ring would do, and more could be resident
  config.limits.horizon_steps = 0.001;
  DecisionReason last = DecisionReason::kept;
  for (int step = 0; step < 100; ++step) {
    last = advance(config, state, seen).reason;
  }
  EXPECT_EQ(last, DecisionReason::not_worth);
  config.limits.horizon_steps = 256.0;
  EXPECT_EQ(advance(config, state, seen).reason, DecisionReason::shrunk_ring);
}

}  // namespace
}  // namespace kvspan::test
