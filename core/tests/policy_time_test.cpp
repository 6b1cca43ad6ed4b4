// SPDX-License-Identifier: Apache-2.0
// What the policy keeps to in time, over generated loads: cooldown, reasons that change nothing,
// fixed points, links that are saturated, slow or lie, clocks that jump, counters that go back.
// Every test prints its seed and how many scenarios it looked at.
#include "policy_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace kvspan::test {
namespace {

constexpr int rounds(int full) {
  return KVSPAN_TEST_SANITIZED != 0 ? full / 20 : full;
}

LoadCase drawn_case(RandomLoads& loads, int round) {
  return round % 2 == 0 ? loads.uniform() : loads.mixed();
}

bool is_forced(DecisionReason reason) {
  return reason == DecisionReason::phase_changed || reason == DecisionReason::deadline;
}

// Whether a step can run at all: in its pool, with two groups where anything streams.
void expect_runs(const StepLoad& load, const Pool& pool, const Placement& placement) {
  ASSERT_EQ(placement.resident_pages.size(), load.layers.size());
  ASSERT_LE(placed_bytes(load, pool, placement), pool.bytes);
  if (streamed_bytes(load, placement) != 0) {
    ASSERT_GE(placement.ring_slots, 2 * placement.group_pages);
  }
}

// An engine that never rests: gaps, histories, phases, the link and its lateness change.
class Unrest {
 public:
  Unrest(RandomLoads& loads, const LoadCase& drawn) : loads_(&loads), first_(drawn.load) {
    seen.load = drawn.load;
  }

  void go_on(const Placement& placement) {
    if (loads_->pick(0, 7) == 0) {
      stretch_ = static_cast<double>(loads_->pick(0, 400)) / 100.0;
    }
    part_ = loads_->pick(0, 20) == 0 ? 1.0 / static_cast<double>(loads_->pick(1, 4)) : part_;
    late_ = loads_->pick(0, 20) == 0 ? static_cast<double>(loads_->pick(0, 1)) * 0.4 : late_;
    for (std::size_t layer = 0; layer < seen.load.layers.size(); ++layer) {
      seen.load.layers[layer].gap_ns = first_.layers[layer].gap_ns * stretch_;
    }
    for (std::uint64_t& pages : seen.load.sequence_pages) {
      pages += loads_->pick(0, 9) == 0 ? 1U : 0U;
    }
    if (loads_->pick(0, 30) == 0) {
      seen.phase = seen.phase == Phase::decode ? Phase::prefill : Phase::decode;
    }
    count_step(seen.load, placement, part_, late_, seen.counters);
  }

  Observation seen;

 private:
  RandomLoads* loads_;
  StepLoad first_;
  double stretch_ = 1.0;
  double part_ = 1.0;
  double late_ = 0.0;
};

struct Kinds {
  int chosen = 0;  // by weighing
  int forced = 0;
  int refused = 0;  // waiting, or not worth it
};

// One scenario of `steps` steps under limits that are drawn too.
void run_unrest(RandomLoads& loads, const LoadCase& drawn, int steps, Kinds& kinds) {
  PolicyConfig config = config_of(drawn);
  config.prefill_pool.bytes -= config.prefill_pool.bytes / 4;
  config.prefill_pool.bytes =
      std::max(config.prefill_pool.bytes, 2 * config.prefill_pool.slot_bytes);
  PolicyLimits& limits = config.limits;
  limits.cooldown_steps = static_cast<std::uint32_t>(loads.pick(1, 20));
  limits.grow_after = static_cast<std::uint32_t>(loads.pick(1, 4));
  limits.shrink_after = static_cast<std::uint32_t>(loads.pick(1, 6));
  limits.horizon_steps = loads.pick(0, 2) == 0 ? 10.0 : 256.0;
  PolicyState state;
  Unrest engine(loads, drawn);
  std::uint32_t since_change = 1000;  // steps; the first placement begins no cooldown
  std::uint32_t asked = 0;            // steps in a row that were refused before this one
  for (int step = 0; step < steps; ++step) {
    const PolicyState before = state;
    const Decision now = advance(config, state, engine.seen);
    const StepLoad& load = engine.seen.load;
    const Pool& pool =
        engine.seen.phase == Phase::prefill ? config.prefill_pool : config.decode_pool;
    expect_runs(load, pool, now.placement);
    ASSERT_EQ(state.placement, now.placement);
    ASSERT_TRUE(std::isfinite(now.predicted.step_ns));
    const bool weighed =
        now.reason == DecisionReason::grown_ring || now.reason == DecisionReason::shrunk_ring;
    if (step == 0) {
      ASSERT_EQ(now.reason, DecisionReason::begun);
    } else if (is_forced(now.reason)) {
      const bool ran = placed_bytes(load, pool, before.placement) <= pool.bytes &&
                       (streamed_bytes(load, before.placement) == 0 ||
                        before.placement.ring_slots >= 2 * before.placement.group_pages);
      ASSERT_TRUE(before.phase != engine.seen.phase || !ran) << name(now.reason);
      ++kinds.forced;
    } else if (weighed) {
      ASSERT_TRUE(now.changed);
      ASSERT_GE(since_change, limits.cooldown_steps);
      const bool grown = now.reason == DecisionReason::grown_ring;
      ASSERT_EQ(grown, now.placement.ring_slots > before.placement.ring_slots);
      ASSERT_GE(asked + 1, grown ? limits.grow_after : limits.shrink_after);
      ASSERT_LE(now.predicted.step_ns, now.stayed.step_ns * (1.0 - limits.gain_min));
      ++kinds.chosen;
    } else {
      ASSERT_FALSE(now.changed);
      ASSERT_EQ(now.placement, before.placement);
      kinds.refused += now.reason == DecisionReason::kept ? 0 : 1;
    }
    asked = now.reason == DecisionReason::waiting || now.reason == DecisionReason::not_worth
                ? asked + 1
                : 0;
    // A forced change begins a cooldown too, and begins it anew.
    since_change = step != 0 && (weighed || is_forced(now.reason)) ? 1 : since_change + 1;
    engine.go_on(state.placement);
  }
}

TEST(PolicyTime, ChangesAreACooldownApartAndWhatIsRefusedChangesNothing) {
  RandomLoads loads(9101);
  Kinds kinds;
  const int scenarios = rounds(3000);
  for (int round = 0; round < scenarios; ++round) {
    const LoadCase drawn = drawn_case(loads, round);
    SCOPED_TRACE(drawn.text);
    run_unrest(loads, drawn, 60, kinds);
    ASSERT_FALSE(HasFailure());
  }
  std::printf("seed 9101: %d loads of 60 steps, %d changes, %d forced ones, %d refused\n",
              scenarios,
              kinds.chosen,
              kinds.forced,
              kinds.refused);
  EXPECT_GT(kinds.chosen, scenarios / 2);
  EXPECT_GT(kinds.forced, scenarios / 2);
  EXPECT_GT(kinds.refused, scenarios / 2);
}

// The link's share settles to a part in a thousand million, then nothing changes any more.
TEST(PolicyTime, ConstantLoadComesToRest) {
  RandomLoads loads(9103);
  const int scenarios = rounds(3000);
  std::uint64_t steps = 0;
  int changes = 0;
  for (int round = 0; round < scenarios; ++round) {
    const LoadCase drawn = drawn_case(loads, round);
    SCOPED_TRACE(drawn.text);
    PolicyConfig config = config_of(drawn);
    config.limits.cooldown_steps = 16;
    PolicyState state;
    Observation seen;
    seen.load = drawn.load;
    const double part = round % 3 == 0 ? 0.4 : 1.0;
    const double late = round % 5 == 0 ? 0.3 : 0.0;
    int at_rest = 0;  // steps in a row without a change, with nothing learnt and no cooldown
    for (int step = 0; at_rest < 40; ++step, ++steps) {
      ASSERT_LT(step, 700);
      const PolicyState before = state;
      const Decision decision = advance(config, state, seen);
      changes += decision.changed && step != 0 ? 1 : 0;
      const bool rests = !decision.changed && decision.reason != DecisionReason::waiting &&
                         before.late_ns == state.late_ns &&
                         std::abs(before.link_part - state.link_part) < 1e-9;
      ASSERT_TRUE(rests || at_rest == 0 || !decision.changed) << "rested, and changed again";
      at_rest = rests ? at_rest + 1 : 0;
      count_step(drawn.load, state.placement, part, late, seen.counters);
    }
  }
  std::printf("seed 9103: %d loads, %llu steps until 40 of rest, %d changes\n",
              scenarios,
              static_cast<unsigned long long>(steps),
              changes);
  EXPECT_GT(changes, scenarios / 20);
}

// Groups that come late teach jitter, at most four gaps or groups of it, while the link rests. On a
// saturated link they change nothing: no decision differs from those without late groups.
TEST(PolicyTime, LateGroupsTeachJitterUnlessTheLinkIsSaturated) {
  RandomLoads loads(9105);
  const int scenarios = rounds(3000);
  int taught = 0;
  int grown = 0;
  for (int round = 0; round < scenarios; ++round) {
    const LoadCase drawn = drawn_case(loads, round);
    SCOPED_TRACE(drawn.text);
    const bool saturated = round % 4 < 2;
    PolicyConfig config = config_of(drawn);
    config.limits.cooldown_steps = 2;
    config.limits.shrink_after = 1;
    PolicyState state;
    PolicyState punctual;
    Observation seen;
    seen.load = drawn.load;
    advance(config, state, seen);
    punctual = state;
    double most_ns = copy_time_ns(drawn.load.link, kGroupMax * drawn.pool.slot_bytes);
    for (const LayerLoad& layer : drawn.load.layers) {
      most_ns = std::max(most_ns, layer.gap_ns);
    }
    for (int step = 0; step < 20; ++step) {
      count_step(drawn.load, state.placement, 1.0, 0.5, seen.counters);
      seen.counters.elapsed_ns = seen.counters.busy_ns * (saturated ? 1.05 : 2.0);
      const Decision decision = advance(config, state, seen);
      expect_runs(drawn.load, drawn.pool, state.placement);
      ASSERT_LE(state.late_ns, 4.0 * most_ns);
      grown += decision.reason == DecisionReason::grown_ring ? 1 : 0;
      if (saturated) {
        Observation same = seen;
        same.counters.late_groups = 0;
        ASSERT_EQ(advance(config, punctual, same).placement, decision.placement);
        ASSERT_EQ(state.late_ns, 0.0);
      }
    }
    taught += state.late_ns > 0.0 ? 1 : 0;
  }
  std::printf(
      "seed 9105: %d loads of 20 steps, half of them saturated; %d taught jitter, %d grew\n",
      scenarios,
      taught,
      grown);
  EXPECT_GT(taught, scenarios / 20);
  EXPECT_GT(grown, scenarios / 50);
}

// A link that is slower or faster than it was calibrated is learnt, between bounds.
TEST(PolicyTime, SlowLinksAreLearntAndThoseThatLieAreBounded) {
  RandomLoads loads(9107);
  const int scenarios = rounds(3000);
  int learnt = 0;
  for (int round = 0; round < scenarios; ++round) {
    LoadCase drawn = drawn_case(loads, round);
    drawn.load.link.copy_ns = 0.0;  // then the rate is all that there is
    SCOPED_TRACE(drawn.text);
    const double parts[] = {0.02, 0.3, 0.8, 1.0, 3.0, 50.0};
    const double part = parts[loads.pick(0, 5)];
    const PolicyConfig config = config_of(drawn);
    PolicyState state;
    Observation seen;
    seen.load = drawn.load;
    for (int step = 0; step < 60; ++step) {
      advance(config, state, seen);
      expect_runs(learnt_load(state, drawn.load), drawn.pool, state.placement);
      count_step(drawn.load, state.placement, part, 0.0, seen.counters);
      seen.counters.elapsed_ns = std::max(seen.counters.elapsed_ns, seen.counters.busy_ns);
    }
    const double bounded = std::clamp(part, config.limits.slowest_link, config.limits.fastest_link);
    if (seen.counters.groups != 0) {
      ASSERT_NEAR(state.link_part, bounded, 0.01);
      ++learnt;
    }
  }
  std::printf("seed 9107: %d loads, %d that stream\n", scenarios, learnt);
  EXPECT_GT(learnt, scenarios / 3);
}

bool can_be(const LinkCounters& counters) {
  return std::isfinite(counters.busy_ns) && counters.busy_ns >= 0.0 &&
         std::isfinite(counters.elapsed_ns) && counters.elapsed_ns >= 0.0 &&
         counters.late_groups <= counters.groups;
}

bool went_back(const LinkCounters& before, const LinkCounters& now) {
  return now.groups < before.groups || now.late_groups < before.late_groups ||
         now.bytes < before.bytes || now.busy_ns < before.busy_ns ||
         now.elapsed_ns < before.elapsed_ns;
}

// Nothing that counters can say breaks a placement. What cannot be teaches nothing, nor do counters
// that are behind the last ones that could be.
TEST(PolicyTime, LyingCountersAndJumpingClocksAreSurvived) {
  RandomLoads loads(9109);
  const int scenarios = rounds(3000);
  int backwards = 0;
  for (int round = 0; round < scenarios; ++round) {
    const LoadCase drawn = drawn_case(loads, round);
    SCOPED_TRACE(drawn.text);
    const PolicyConfig config = config_of(drawn);
    PolicyState state;
    Observation seen;
    seen.load = drawn.load;
    LinkCounters last;  // that could be
    for (int step = 0; step < 40; ++step) {
      const double wild[] = {-1.0,
                             0.0,
                             1e-300,
                             1e6,
                             1e300,
                             std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()};
      seen.counters.epoch = loads.pick(0, 9) == 0 ? loads.pick(0, 3) : seen.counters.epoch;
      seen.counters.groups = loads.pick(0, 1) << loads.pick(0, 63);
      seen.counters.late_groups = loads.pick(0, 1) << loads.pick(0, 63);
      seen.counters.bytes = loads.pick(0, 1) << loads.pick(0, 63);
      seen.counters.busy_ns = wild[loads.pick(0, 6)];
      seen.counters.elapsed_ns = wild[loads.pick(0, 6)];
      const PolicyState before = state;
      const Decision decision = advance(config, state, seen);
      expect_runs(drawn.load, drawn.pool, decision.placement);
      ASSERT_TRUE(std::isfinite(decision.predicted.step_ns));
      ASSERT_GE(state.link_part, config.limits.slowest_link);
      ASSERT_LE(state.link_part, config.limits.fastest_link);
      ASSERT_TRUE(std::isfinite(state.late_ns));
      if (before.begun && last.epoch == seen.counters.epoch &&
          (!can_be(seen.counters) || went_back(last, seen.counters))) {
        ASSERT_EQ(state.link_part, before.link_part);
        ASSERT_LE(state.late_ns, before.late_ns);  // 0 where an epoch began
        ++backwards;
      }
      last = can_be(seen.counters) ? seen.counters : last;
    }
  }
  std::printf(
      "seed 9109: %d loads of 40 steps, %d that had to teach nothing\n", scenarios, backwards);
  EXPECT_GT(backwards, scenarios);
}

}  // namespace
}  // namespace kvspan::test
