// SPDX-License-Identifier: Apache-2.0
// A replay that moves every group through a real ring: slots that are taken and given back in
// order, one copy after another, waves that wait for their group, and layers that are attended at
// once where the ring holds them twice, as a session does. Shares the placement's counts with the
// cost model, nothing of its arithmetic.
#pragma once

#include "kvspan/core/policy/placement.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvspan::test {

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

}  // namespace kvspan::test
