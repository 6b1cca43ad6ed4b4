// SPDX-License-Identifier: Apache-2.0
// Properties of best_placement() over generated scenarios, a hundred thousand each of those of the
// contract, and the arithmetic of a published run. Each prints its seed and what it looked at.
#include "kvspan/core/policy/placement.hpp"

#include "kvspan/core/policy/overlap_policy.hpp"
#include "kvspan/core/policy/step_time.hpp"

#include "random_load.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kSeed = 20261130;

// Fewer where each costs ten times as long.
constexpr int rounds(int full) {
  return KVSPAN_TEST_SANITIZED != 0 ? full / 20 : full;
}

// What every placement keeps to, whoever chose it.
void expect_sound(const LoadCase& drawn, const Placement& placement) {
  ASSERT_LE(placed_bytes(drawn.load, drawn.pool, placement), drawn.pool.bytes);
  std::uint64_t visible_bytes = 0;
  std::uint64_t resident_bytes = 0;
  for (std::size_t layer = 0; layer < drawn.load.layers.size(); ++layer) {
    const LayerLoad& of = drawn.load.layers[layer];
    for (const std::uint64_t pages : drawn.load.sequence_pages) {
      const std::uint64_t visible = visible_of(of, pages);
      const std::uint64_t resident = placement.resident_pages[layer];
      visible_bytes += visible * of.page_bytes;
      const bool rolls = of.rolling_pages != 0 && resident >= of.rolling_pages;
      if (resident >= pages || can_stay(of, pages) || rolls) {
        resident_bytes += std::min(visible, resident) * of.page_bytes;
      }
    }
  }
  // Exactly the visible pages that are not resident.
  ASSERT_EQ(streamed_bytes(drawn.load, placement), visible_bytes - resident_bytes);
  if (streamed_bytes(drawn.load, placement) != 0) {
    ASSERT_GE(placement.ring_slots, 2 * placement.group_pages);
  }
  const StepTime time = predict(drawn.load, placement);
  ASSERT_TRUE(std::isfinite(time.step_ns));
  ASSERT_GE(time.step_ns, time.compute_ns);
  ASSERT_GE(time.step_ns, time.link_ns);
}

void print_scenarios(std::uint64_t seed, int scenarios) {
  std::printf("seed %llu: %d loads\n", static_cast<unsigned long long>(seed), scenarios);
}

// Under the same link, gap and pool the overlap rule, in both of its placements, is never faster.
TEST(Placement, IsNeverPredictedSlowerThanTheOverlapRule) {
  RandomLoads loads(kSeed);
  int compared = 0;
  int faster = 0;
  for (int round = 0; round < rounds(100000); ++round) {
    const LoadCase drawn = loads.uniform();
    SCOPED_TRACE(drawn.text);
    const OverlapRequest request{drawn.pool.bytes / drawn.pool.slot_bytes,
                                 drawn.load.layers.size(),
                                 drawn.load.sequence_pages.front(),
                                 0};
    const auto layout = overlap_target(request);
    ASSERT_TRUE(layout.has_value());
    if (layout->resident_pages < request.active_pages && layout->ring_pages < 2) {
      continue;  // theirs reads a page at a time; nothing to compare
    }
    const auto ours = best_placement(drawn.load, drawn.pool);
    ASSERT_TRUE(ours.has_value()) << ours.error().message;
    const double ours_ns = predict(drawn.load, *ours).step_ns;
    for (const Placement& theirs :
         {overlap_uniform(request, *layout), overlap_concentrated(request, *layout)}) {
      const double theirs_ns = predict(drawn.load, theirs).step_ns;
      ASSERT_LE(ours_ns, theirs_ns * (1.0 + 1e-9))
          << "ours: ring " << ours->ring_slots << ", group " << ours->group_pages
          << ", first layer " << ours->resident_pages.front() << "; theirs: ring "
          << theirs.ring_slots << ", group " << theirs.group_pages << ", first layer "
          << theirs.resident_pages.front();
      ++compared;
      faster += ours_ns < theirs_ns * 0.999 ? 1 : 0;
    }
  }
  std::printf("seed %llu: %d loads, %d comparisons, %d of them faster by 0.1 %%\n",
              static_cast<unsigned long long>(kSeed),
              rounds(100000),
              compared,
              faster);
  EXPECT_GT(faster, compared / 10);  // else the comparison would say nothing
}

TEST(Placement, ConservesPagesInEveryScenario) {
  RandomLoads loads(kSeed + 1);
  const int scenarios = rounds(100000);
  for (int round = 0; round < scenarios; ++round) {
    const LoadCase drawn = loads.mixed();
    SCOPED_TRACE(drawn.text);
    const auto found = best_placement(drawn.load, drawn.pool);
    ASSERT_TRUE(found.has_value()) << found.error().message;
    expect_sound(drawn, *found);
    if (round % 10 == 0) {  // a function of its inputs only
      ASSERT_EQ(*best_placement(drawn.load, drawn.pool), *found);
    }
  }
  print_scenarios(kSeed + 1, scenarios);
}

// Five pools of each scenario, each at least as large as the one before.
TEST(Placement, MoreMemoryIsNeverPredictedSlower) {
  RandomLoads loads(kSeed + 2);
  const int scenarios = rounds(40000);
  for (int round = 0; round < scenarios; ++round) {
    LoadCase drawn = round % 2 == 0 ? loads.uniform() : loads.mixed();
    SCOPED_TRACE(drawn.text);
    double before_ns = std::numeric_limits<double>::infinity();
    const std::uint64_t last = drawn.pool.bytes;
    drawn.pool.bytes = std::max(2 * drawn.pool.slot_bytes, last / 4);
    for (int step = 0; step < 5; ++step) {
      const auto found = best_placement(drawn.load, drawn.pool);
      ASSERT_TRUE(found.has_value()) << found.error().message;
      const double now_ns = predict(drawn.load, *found).step_ns;
      ASSERT_LE(now_ns, before_ns * (1.0 + 1e-9)) << "pool of " << drawn.pool.bytes;
      before_ns = now_ns;
      drawn.pool.bytes += loads.pick(1, last / 3 + 2);
    }
  }
  print_scenarios(kSeed + 2, scenarios);
}

// With one ring, more room never streams more, and each part of the model pulls the right way.
TEST(Placement, MoreRoomNeverStreamsMore) {
  RandomLoads loads(kSeed + 3);
  const int scenarios = rounds(100000);
  for (int round = 0; round < scenarios; ++round) {
    const LoadCase drawn = loads.mixed();
    SCOPED_TRACE(drawn.text);
    const std::size_t layers = drawn.load.layers.size();
    const std::vector<bool> spilled = spaced_layers(layers, loads.pick(1, layers));
    const std::uint64_t more = drawn.pool.bytes + loads.pick(0, drawn.pool.bytes);
    Placement small{8, 2, resident_runs(drawn.load, spilled, drawn.pool.bytes)};
    const Placement large{8, 2, resident_runs(drawn.load, spilled, more)};
    if (small.resident_pages.empty()) {
      continue;
    }
    for (std::size_t layer = 0; layer < layers; ++layer) {
      ASSERT_GE(large.resident_pages[layer], small.resident_pages[layer]);
    }
    ASSERT_LE(streamed_bytes(drawn.load, large), streamed_bytes(drawn.load, small));
    const double base_ns = predict(drawn.load, small).step_ns;
    ASSERT_LE(predict(drawn.load, large).step_ns, base_ns * (1.0 + 1e-9));
    small.ring_slots += static_cast<std::uint32_t>(loads.pick(1, 100));
    ASSERT_LE(predict(drawn.load, small).step_ns, base_ns * (1.0 + 1e-9));
    StepLoad other = drawn.load;
    for (LayerLoad& layer : other.layers) {
      layer.gap_ns *= 0.5;
    }
    ASSERT_LE(predict(other, small).step_ns, predict(drawn.load, small).step_ns * (1.0 + 1e-9));
    other = drawn.load;
    other.jitter_ns = 0.0;  // in slots, jitter is more on a faster link
    const double slower_ns = predict(other, small).step_ns;
    other.link.bytes_s *= 1.5;
    ASSERT_LE(predict(other, small).step_ns, slower_ns * (1.0 + 1e-9));
  }
  print_scenarios(kSeed + 3, scenarios);
}

// The search against every ring size, group and number of layers that stream.
TEST(Placement, FindsWhatTryingEverythingFinds) {
  RandomLoads loads(kSeed + 4);
  for (int round = 0; round < rounds(400); ++round) {
    LoadCase drawn = loads.uniform();
    drawn.load.layers.resize(std::min<std::size_t>(drawn.load.layers.size(), 4));
    drawn.load.sequence_pages = {std::min<std::uint64_t>(drawn.load.sequence_pages.front(), 40)};
    const std::size_t layers = drawn.load.layers.size();
    drawn.pool.bytes = (2 + loads.pick(0, layers * 40)) * drawn.pool.slot_bytes;
    SCOPED_TRACE(drawn.text);
    double least_ns = std::numeric_limits<double>::infinity();
    for (std::size_t spilled = 0; spilled <= layers; ++spilled) {
      const std::vector<bool> set = spaced_layers(layers, spilled);
      for (std::uint32_t group = 1; group <= kGroupMax; group *= 2) {
        for (std::uint64_t slots = spilled == 0 ? 0 : 2ULL * group;
             slots * drawn.pool.slot_bytes <= drawn.pool.bytes;
             ++slots) {
          const std::uint64_t room = drawn.pool.bytes - slots * drawn.pool.slot_bytes;
          const Placement tried{
              static_cast<std::uint32_t>(slots), group, resident_runs(drawn.load, set, room)};
          const bool usable = !tried.resident_pages.empty() &&
                              (slots != 0 || streamed_bytes(drawn.load, tried) == 0);
          least_ns = usable ? std::min(least_ns, predict(drawn.load, tried).step_ns) : least_ns;
        }
      }
    }
    const auto found = best_placement(drawn.load, drawn.pool);
    ASSERT_TRUE(found.has_value());
    ASSERT_NEAR(predict(drawn.load, *found).step_ns, least_ns, least_ns * 1e-9);
  }
  print_scenarios(kSeed + 4, rounds(400));
}

// 262,144 tokens, 16 layers, a pool of 5,484 pages on a link of 49.2 GB/s with gaps of 1.5 ms: the
// overlap rule publishes 292 pages a layer and 4.989 GB a token.
TEST(Placement, PublishedRunStreamsLessWithASmallerRing) {
  StepLoad load;
  load.layers.assign(16, {425984, 0, 1.5e6, 92.0});
  load.sequence_pages = {1024};
  load.link = {2450.0, 49.2e9};
  const Pool pool{5484ULL * 425984, 425984};
  const auto ours = best_placement(load, pool);
  ASSERT_TRUE(ours.has_value());
  EXPECT_GE(ours->ring_slots, 174U);        // what comes in the gap
  EXPECT_LE(ours->ring_slots, 64U + 174U);  // and two groups
  EXPECT_NEAR(static_cast<double>(ours->resident_pages.front()), 330.0, 2.0);
  const StepTime time = predict(load, *ours);
  EXPECT_NEAR(static_cast<double>(time.streamed_bytes), 4.73e9, 0.02e9);
  const OverlapRequest request{5484, 16, 1024, 0};
  const StepTime theirs = predict(load, overlap_uniform(request, *overlap_target(request)));
  EXPECT_NEAR(static_cast<double>(theirs.streamed_bytes), 4.989e9, 0.001e9);
  EXPECT_LT(time.step_ns, 0.96 * theirs.step_ns);
  EXPECT_LT(time.step_ns, 100e6);
  // A ring of 48 streams less but idles the link in the gaps.
  const Placement small{
      48, 16, resident_runs(load, std::vector<bool>(16, true), (5484ULL - 48) * 425984)};
  EXPECT_LT(predict(load, small).streamed_bytes, time.streamed_bytes);
  EXPECT_GT(predict(load, small).step_ns, theirs.step_ns);
}

// Thousands of layers in a huge pool end in good time, with a sound placement.
TEST(Placement, HugeLoadsEnd) {
  LoadCase drawn;
  drawn.load.layers.assign(4096, {425984, 0, 1e4, 92.0});
  drawn.load.sequence_pages = {1'000'000};
  drawn.load.link = {2450.0, 49.2e9};
  drawn.pool = {100'000'000ULL * 425984, 425984};
  for (const std::size_t layers : {4096U, 1U}) {
    drawn.load.layers.resize(layers);
    drawn.load.sequence_pages = {200'000'000 / layers};
    const auto found = best_placement(drawn.load, drawn.pool);
    ASSERT_TRUE(found.has_value());
    expect_sound(drawn, *found);
  }
}

TEST(Placement, AWholeLayerIsAdmittedOrRefusedToThePage) {
  RandomLoads loads(kSeed + 5);
  for (int round = 0; round < rounds(10000); ++round) {
    const LoadCase drawn = loads.mixed();
    SCOPED_TRACE(drawn.text);
    const auto found = best_placement(drawn.load, drawn.pool);
    ASSERT_TRUE(found.has_value());
    const std::size_t layer = loads.pick(0, drawn.load.layers.size() - 1);
    const auto admitted = admit_whole_layer(drawn.load, drawn.pool, *found, layer);
    std::uint64_t visible = 0;
    for (const std::uint64_t pages : drawn.load.sequence_pages) {
      visible += visible_of(drawn.load.layers[layer], pages);
    }
    if (!admitted) {
      ASSERT_EQ(admitted.error().component, "ring");
      ASSERT_GT(visible, drawn.pool.bytes / drawn.pool.slot_bytes);
      continue;
    }
    expect_sound(drawn, *admitted);
    ASSERT_LE(streamed_pages(drawn.load, *admitted, layer), admitted->ring_slots);
    ASSERT_GE(admitted->ring_slots, found->ring_slots);
  }
  print_scenarios(kSeed + 5, rounds(10000));
}

// Room that a short history leaves is put to use for the one that it becomes: nothing is taken from
// any layer, what could hold another even row of pages does, and no step is predicted slower.
TEST(Placement, TheRestIsPutToUseAndNothingIsTaken) {
  RandomLoads loads(kSeed + 6);
  int grown = 0;
  for (int round = 0; round < rounds(10000); ++round) {
    LoadCase drawn = loads.mixed();
    SCOPED_TRACE(drawn.text);
    StepLoad& load = drawn.load;
    const Pool& pool = drawn.pool;
    std::uint64_t most = 1;
    for (std::uint64_t& pages : load.sequence_pages) {
      most = std::max(most, pages);
      pages = pages * loads.pick(1, 4) / 4;
    }
    const auto best = best_placement(load, pool);
    if (!best) {
      continue;
    }
    Placement before = *best;
    before.ring_slots += static_cast<std::uint32_t>(loads.pick(0, 50));
    const Placement rest = with_rest(load, pool, before, *best, most);
    ASSERT_LE(placed_bytes(load, pool, rest),
              std::max(pool.bytes, placed_bytes(load, pool, *best)));
    ASSERT_GE(rest.ring_slots, best->ring_slots);
    std::uint64_t least = most;
    for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
      ASSERT_GE(rest.resident_pages[layer], best->resident_pages[layer]);
      ASSERT_LE(rest.resident_pages[layer], std::max(most, best->resident_pages[layer]));
      if (load.layers[layer].rolling_pages == 0) {
        least = std::min(least, rest.resident_pages[layer]);
      }
    }
    std::uint64_t row_bytes = 0;
    for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
      const LayerLoad& of = load.layers[layer];
      row_bytes += of.rolling_pages == 0 && rest.resident_pages[layer] == least
                       ? of.page_bytes * load.sequences_max
                       : 0;
    }
    if (least < most) {
      ASSERT_LT(pool.bytes - std::min(pool.bytes, placed_bytes(load, pool, rest)), row_bytes);
    }
    ASSERT_LE(predict(load, rest).step_ns, predict(load, *best).step_ns * (1.0 + 1e-9));
    grown += rest == *best ? 0 : 1;
  }
  EXPECT_GT(grown, rounds(10000) / 10);
}

TEST(Placement, WrongLoadsAreRefusedByName) {
  RandomLoads loads(1);
  const LoadCase good = loads.uniform();
  LoadCase bad = good;
  bad.load.layers.clear();
  EXPECT_EQ(best_placement(bad.load, bad.pool).error().code, Errc::invalid_argument);
  bad = good;
  bad.load.link.bytes_s = 0.0;
  EXPECT_NE(best_placement(bad.load, bad.pool).error().message.find("rate"), std::string::npos);
  bad = good;
  bad.load.layers.back().page_bytes = bad.pool.slot_bytes + 1;
  EXPECT_NE(best_placement(bad.load, bad.pool).error().message.find("layer"), std::string::npos);
  bad = good;
  bad.load.layers.front().gap_ns = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(best_placement(bad.load, bad.pool).has_value());
  bad = good;
  bad.load.sequence_pages = {1000000};
  bad.pool.bytes = 2 * bad.pool.slot_bytes - 1;
  const auto refused = best_placement(bad.load, bad.pool);
  EXPECT_EQ(refused.error().code, Errc::device_memory);
  EXPECT_EQ(refused.error().missing, 1U);
}

}  // namespace
}  // namespace kvspan::test
