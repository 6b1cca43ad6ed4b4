// SPDX-License-Identifier: Apache-2.0
// Core over the simulated device: nothing is found. And the simulator about itself: a seed says
// everything, and every kind of operation and failure occurs.
#include "kvspan/sim/run.hpp"
#include "kvspan/sim/scenario.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <string>

namespace kvspan::sim {
namespace {

// A sanitizer makes each ten times as long.
constexpr std::uint64_t kSeeds = KVSPAN_TEST_SANITIZED != 0 ? 300 : 20000;

// How long seeds take, on a clock on the wall; what they do, they do in virtual time.
class Stopwatch {
 public:
  void start() { started_ = std::chrono::steady_clock::now(); }

  void stop(std::uint64_t seed) {
    const std::chrono::duration<double, std::milli> took =
        std::chrono::steady_clock::now() - started_;
    total_ms_ += took.count();
    slowest_ = took.count() > slowest_ms_ ? seed : slowest_;
    slowest_ms_ = std::max(slowest_ms_, took.count());
  }

  [[nodiscard]] double total_ms() const { return total_ms_; }

  [[nodiscard]] std::string text() const {
    return std::to_string(total_ms_) + " ms in all, the slowest seed " + std::to_string(slowest_) +
           " with " + std::to_string(slowest_ms_) + " ms";
  }

 private:
  std::chrono::steady_clock::time_point started_;
  double total_ms_ = 0.0;
  double slowest_ms_ = 0.0;
  std::uint64_t slowest_ = 0;
};

TEST(Sim, FindsNothingInCore) {
  Tally tally;
  Stopwatch watch;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    watch.start();
    const Outcome outcome = run(scenario_of(seed));
    watch.stop(seed);
    ASSERT_TRUE(outcome.passed()) << "seed " << seed << ", operation " << outcome.op << ", "
                                  << outcome.checker << ": " << outcome.what
                                  << "\nkvspan sim --first " << seed << " --seeds 1 --shrink";
    tally.add(outcome.tally);
  }
  // Twenty times what it takes, so that a busy machine passes too.
  RecordProperty("seeds_took", watch.text());
  std::printf("%s\n", watch.text().c_str());
  if (KVSPAN_TEST_SANITIZED == 0) {
    EXPECT_LE(watch.total_ms(), 20.0 * static_cast<double>(kSeeds)) << watch.text();
  }
  // Green for a reason: everything that the checkers look at happened, many times a seed or often.
  EXPECT_GT(tally.steps, 5 * kSeeds);
  EXPECT_GT(tally.submits, 100 * kSeeds);
  EXPECT_GT(tally.checked_rows, 1000 * kSeeds);
  EXPECT_GT(tally.streamed_pages, 20 * kSeeds);
  EXPECT_GT(tally.recoveries, kSeeds / 2);
  EXPECT_GT(tally.cancellations, kSeeds / 4);
  EXPECT_GT(tally.placements, kSeeds / 2);
  EXPECT_GT(tally.phases, kSeeds);
  EXPECT_GT(tally.retired_pages, kSeeds);
  // One seed of forty or less: some hundreds of seeds may have none.
  if (kSeeds >= 20000) {
    EXPECT_GT(tally.refused_opens, kSeeds / 400);
    EXPECT_GT(tally.decisions, kSeeds / 100);
  }
}

TEST(Sim, ASeedSaysEverything) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Outcome once = run(scenario_of(seed));
    const Outcome again = run(scenario_of(seed));
    EXPECT_EQ(once.tally.submits, again.tally.submits) << "seed " << seed;
    EXPECT_EQ(once.tally.checked_rows, again.tally.checked_rows) << "seed " << seed;
    EXPECT_EQ(once.tally.failures, again.tally.failures) << "seed " << seed;
    EXPECT_EQ(text(scenario_of(seed)), text(scenario_of(seed)));
  }
}

TEST(Sim, SeedsCoverEveryOperationAndKindOfDevice) {
  std::array<int, kOpKindCount> kinds{};
  int arithmetic = 0;
  int minimum = 0;
  int several = 0;
  int windows = 0;
  int depth_of_one = 0;
  int copies_by_size = 0;
  int short_of_host = 0;
  int takes_by_size = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const Scenario scenario = scenario_of(seed);
    for (const Op& op : scenario.ops) {
      ++kinds[static_cast<std::size_t>(op.kind)];
    }
    arithmetic += scenario.arithmetic ? 1 : 0;
    minimum += scenario.arena_percent == 0 ? 1 : 0;
    several += scenario.session.sequences > 1 ? 1 : 0;
    depth_of_one += scenario.device.depth == 1 ? 1 : 0;
    copies_by_size += scenario.device.copy_kib_ns != 0 ? 1 : 0;
    short_of_host += scenario.host_limit_percent != 0 ? 1 : 0;
    takes_by_size += scenario.device.prepared_entry_bytes != 0 ? 1 : 0;
    const auto& layers = scenario.session.geometry.layers;
    windows += std::any_of(layers.begin(),
                           layers.end(),
                           [](const LayerGeometry& layer) { return layer.window_tokens != 0; })
                   ? 1
                   : 0;
  }
  for (std::size_t kind = 0; kind < kOpKindCount; ++kind) {
    EXPECT_GT(kinds[kind], 100) << name(static_cast<OpKind>(kind));
  }
  EXPECT_EQ(arithmetic, 20);
  EXPECT_GT(minimum, 200);
  EXPECT_GT(several, 300);
  EXPECT_GT(windows, 200);
  EXPECT_GT(depth_of_one, 100);
  EXPECT_GT(copies_by_size, 300);
  EXPECT_GT(short_of_host, 50);
  EXPECT_GT(takes_by_size, 100);
}

}  // namespace
}  // namespace kvspan::sim
