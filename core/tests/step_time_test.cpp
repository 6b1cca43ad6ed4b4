// SPDX-License-Identifier: Apache-2.0
// The fluid model against a replay of every group, and by hand; and a whole layer in the ring,
// which neither of them gains by.
#include "kvspan/core/policy/step_time.hpp"

#include "random_load.hpp"
#include "step_replay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace kvspan::test {
namespace {

TEST(StepTime, AgreesWithAReplayOfEveryGroup) {
  RandomLoads loads(7001);
  std::vector<double> errors;
  const int rounds = KVSPAN_TEST_SANITIZED != 0 ? 200 : 4000;
  for (int round = 0; round < rounds; ++round) {
    LoadCase drawn = round % 2 == 0 ? loads.uniform() : loads.mixed();
    drawn.load.jitter_ns = 0.0;  // room for what the replay does not do
    SCOPED_TRACE(drawn.text);
    const auto placement = best_placement(drawn.load, drawn.pool);
    ASSERT_TRUE(placement.has_value());
    if (streamed_bytes(drawn.load, *placement) == 0) {
      continue;
    }
    const double model_ns = predict(drawn.load, *placement).step_ns;
    const double replay_ns = Replay(drawn.load, *placement).step_ns();
    errors.push_back(std::abs(model_ns / replay_ns - 1.0));
  }
  std::sort(errors.begin(), errors.end());
  const double median = errors[errors.size() / 2];
  const double most = errors[errors.size() * 95 / 100];
  std::printf(
      "seed 7001: %zu scenarios, off by %.2f %% (median), %.2f %% (95th), %.1f %% (worst)\n",
      errors.size(),
      100.0 * median,
      100.0 * most,
      100.0 * errors.back());
  EXPECT_LT(median, 0.001);
  EXPECT_LT(most, 0.06);
}

// Complete-layer admission by force: residents give way evenly until the ring holds the largest
// layer's streamed pages, as the overlap rule wants. The model never gains by it, and the replay,
// which then attends such a layer at once where it can, hardly ever.
TEST(StepTime, AWholeLayerInTheRingIsNotFaster) {
  RandomLoads loads(7002);
  int admitted = 0;
  int faster = 0;
  double sum = 0.0;
  const int rounds = KVSPAN_TEST_SANITIZED != 0 ? 300 : 6000;
  for (int round = 0; round < rounds; ++round) {
    LoadCase drawn = round % 2 == 0 ? loads.uniform() : loads.mixed();
    drawn.load.jitter_ns = 0.0;  // as above
    SCOPED_TRACE(drawn.text);
    const auto best = best_placement(drawn.load, drawn.pool);
    ASSERT_TRUE(best.has_value());
    std::size_t largest = 0;
    for (std::size_t layer = 1; layer < drawn.load.layers.size(); ++layer) {
      largest =
          streamed_pages(drawn.load, *best, layer) > streamed_pages(drawn.load, *best, largest)
              ? layer
              : largest;
    }
    const auto whole = admit_whole_layer(drawn.load, drawn.pool, *best, largest);
    if (!whole || *whole == *best) {
      continue;
    }
    ++admitted;
    ASSERT_GE(predict(drawn.load, *whole).step_ns,
              predict(drawn.load, *best).step_ns * (1.0 - 1e-9));
    const double ratio = Replay(drawn.load, *whole).step_ns() / Replay(drawn.load, *best).step_ns();
    faster += ratio < 0.99 ? 1 : 0;
    sum += ratio;
  }
  std::printf(
      "seed 7002: %d layers admitted whole, %.1f %% slower in the mean, %d faster by 1 %%\n",
      admitted,
      100.0 * (sum / admitted - 1.0),
      faster);
  EXPECT_GT(admitted, rounds / 5);
  EXPECT_GT(sum / admitted, 1.1);
  EXPECT_LE(faster, admitted / 20);
}

// By hand: two layers of 10 pages of 100 ns each, nothing resident, no overheads.
TEST(StepTime, KnownSmallCases) {
  StepLoad load;
  load.layers.assign(2, {100, 0, 400.0, 10.0});
  load.sequence_pages = {10};
  load.link = {0.0, 1e9};
  Placement placement{2, 1, {0, 0}};
  // A slot is read, the other one fills in the gap: each layer waits for nine pages and its last
  // wave, in which the ring is full.
  EXPECT_DOUBLE_EQ(predict(load, placement).step_ns, 2 * 1310.0);
  // Four slots beside the one that is read fill in the gap: 400 ns of the link are saved, but for
  // the last wave's 10.
  placement.ring_slots = 5;
  EXPECT_DOUBLE_EQ(predict(load, placement).step_ns, 2 * 1010.0);
  EXPECT_EQ(ring_need(load, placement).pages, 6U);
  // Five slots also take the link's 10 ns of the last wave.
  placement.ring_slots = 6;
  EXPECT_DOUBLE_EQ(predict(load, placement).step_ns, 2 * 1000.0);
  // Everything resident: gaps and attention.
  placement.resident_pages = {10, 10};
  EXPECT_DOUBLE_EQ(predict(load, placement).step_ns, 2 * 500.0);
  EXPECT_EQ(ring_need(load, placement).pages, 0U);
  // Seven resident: the link's 300 ns a layer hide behind 400 of gap.
  placement.resident_pages = {7, 7};
  placement.ring_slots = 6;
  EXPECT_DOUBLE_EQ(predict(load, placement).step_ns, 2 * 500.0);
}

TEST(StepTime, JitterTakesRoomFromTheRing) {
  StepLoad load;
  load.layers.assign(1, {100, 0, 400.0, 0.0});
  load.sequence_pages = {10};
  load.link = {0.0, 1e9};
  load.jitter_ns = 200.0;
  const Placement placement{6, 1, {0}};
  EXPECT_DOUBLE_EQ(predict(load, placement).ahead_ns, 300.0);
  EXPECT_DOUBLE_EQ(predict(load, placement).step_ns, 1100.0);
  const RingNeed need = ring_need(load, placement);
  EXPECT_EQ(need.jitter_pages, 2U);
  EXPECT_EQ(need.pages, 1U + 4U + 2U);
  EXPECT_DOUBLE_EQ(need.gap_ns, 400.0);
  EXPECT_DOUBLE_EQ(need.attention_ns, 0.0);
}

}  // namespace
}  // namespace kvspan::test
