// SPDX-License-Identifier: Apache-2.0
// The policy by example: cooldown, counters that go back, late groups, phases and deadlines, what a
// move costs. Over generated loads: policy_time_test.cpp.
#include "kvspan/core/policy/policy.hpp"

#include "policy_rig.hpp"
#include "random_load.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace kvspan::test {
namespace {

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
