// SPDX-License-Identifier: Apache-2.0
// The fluid model against a replay that moves every group through a real ring: slots that are taken
// and given back in order, one copy after another, waves that wait for their group, and layers that
// are attended at once where the ring holds them twice, as a session does.
#include "kvspan/core/policy/step_time.hpp"

#include "random_load.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace kvspan::test {
namespace {

// Time of a steady step, nanoseconds, by following every copy and wave of steps.
class Replay {
 public:
  Replay(const StepLoad& load, const Placement& placement) : load_(load), placement_(placement) {}

  double step_ns() {
    constexpr int kSteps = 24;
    constexpr int kMeasured = 12;
    for (int step = 0; step < kSteps; ++step) {
      for (std::size_t layer = 0; layer < load_.layers.size(); ++layer) {
        for (std::uint64_t left = streamed_pages(load_, placement_, layer); left != 0;) {
          const std::uint64_t pages = std::min<std::uint64_t>(left, placement_.group_pages);
          groups_.push_back(pages);
          left -= pages;
        }
      }
    }
    ready_.assign(groups_.size(), 0.0);
    read_.assign(groups_.size(), 0.0);
    double measured_from = 0.0;
    for (int step = 0; step < kSteps; ++step) {
      measured_from = step == kSteps - kMeasured ? now_ : measured_from;
      for (std::size_t layer = 0; layer < load_.layers.size(); ++layer) {
        attend(layer);
      }
    }
    return (now_ - measured_from) / kMeasured;
  }

 private:
  void attend(std::size_t layer) {
    const LayerLoad& of = load_.layers[layer];
    const std::uint64_t streamed = streamed_pages(load_, placement_, layer);
    std::uint64_t visible = 0;
    for (const std::uint64_t pages : load_.sequence_pages) {
      visible += visible_of(of, pages);
    }
    now_ += of.gap_ns;
    const double resident_ns = static_cast<double>(visible - streamed) * of.attend_page_ns;
    if (streamed + std::max(streamed, streamed_after(layer)) <= placement_.ring_slots) {
      at_once(streamed, of, resident_ns);
      return;
    }
    now_ += resident_ns;
    for (std::uint64_t left = streamed; left != 0; ++next_) {
      const std::uint64_t pages = groups_[next_];
      fetch(next_, of.page_bytes);
      now_ = std::max(now_, ready_[next_]) + load_.wave_ns +
             static_cast<double>(pages) * of.attend_page_ns;
      read_[next_] = now_;
      left -= pages;
    }
  }

  // Of the next layer that streams, of this step or the one after.
  [[nodiscard]] std::uint64_t streamed_after(std::size_t layer) const {
    std::uint64_t pages = 0;
    for (std::size_t further = 1; further <= load_.layers.size() && pages == 0; ++further) {
      pages = streamed_pages(load_, placement_, (layer + further) % load_.layers.size());
    }
    return pages;
  }

  // Everything behind the last copy.
  void at_once(std::uint64_t streamed, const LayerLoad& of, double resident_ns) {
    const std::size_t first = next_;
    for (std::uint64_t left = streamed; left != 0; left -= groups_[next_++]) {
      fetch(next_, of.page_bytes);
      now_ = std::max(now_, ready_[next_]);
    }
    now_ += resident_ns + static_cast<double>(streamed) * of.attend_page_ns +
            (streamed == 0 ? 0.0 : load_.wave_ns);
    std::fill(read_.begin() + static_cast<std::ptrdiff_t>(first),
              read_.begin() + static_cast<std::ptrdiff_t>(next_),
              now_);
  }

  // When a group is there: its copy begins when the one before is done and its slots are free.
  void fetch(std::size_t index, std::uint64_t page_bytes) {
    std::uint64_t held = groups_[index];
    std::size_t oldest = index;
    while (oldest != 0 && held + groups_[oldest - 1] <= placement_.ring_slots) {
      held += groups_[--oldest];
    }
    const double free_ns = oldest == 0 ? 0.0 : read_[oldest - 1];
    const double begun_ns = std::max(free_ns, index == 0 ? 0.0 : ready_[index - 1]);
    ready_[index] = begun_ns + copy_time_ns(load_.link, groups_[index] * page_bytes);
  }

  const StepLoad& load_;
  const Placement& placement_;
  std::vector<std::uint64_t> groups_;
  std::vector<double> ready_;
  std::vector<double> read_;
  std::size_t next_ = 0;
  double now_ = 0.0;
};

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
  EXPECT_LT(median, 0.005);
  EXPECT_LT(most, 0.08);
}

// By hand: two layers of 10 pages of 100 ns each, nothing resident, no overheads.
TEST(StepTime, KnownSmallCases) {
  StepLoad load;
  load.layers.assign(2, {100, 0, 400.0, 10.0});
  load.sequence_pages = {10};
  load.link = {0.0, 1e9};
  Placement placement{2, 1, {0, 0}};
  // Nothing ahead: each layer waits for 10 pages and its last wave: 400 + 1000 + 10, less what the
  // link did during the last wave: nothing, since the ring is full.
  EXPECT_DOUBLE_EQ(predict(load, placement).step_ns, 2 * 1410.0);
  // Four slots ahead fill in the gap: 400 ns of the link are saved, but for the last wave's 10.
  placement.ring_slots = 6;
  EXPECT_DOUBLE_EQ(predict(load, placement).step_ns, 2 * 1010.0);
  // Five slots also take the link's 10 ns of the last wave.
  placement.ring_slots = 7;
  EXPECT_DOUBLE_EQ(predict(load, placement).step_ns, 2 * 1000.0);
  // Everything resident: gaps and attention.
  placement.resident_pages = {10, 10};
  EXPECT_DOUBLE_EQ(predict(load, placement).step_ns, 2 * 500.0);
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
  EXPECT_DOUBLE_EQ(predict(load, placement).ahead_ns, 200.0);
  EXPECT_DOUBLE_EQ(predict(load, placement).step_ns, 1200.0);
}

}  // namespace
}  // namespace kvspan::test
