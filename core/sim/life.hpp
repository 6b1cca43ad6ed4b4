// SPDX-License-Identifier: Apache-2.0
// What the engine knows about one sequence: which row is at which token, and how far a failure may
// fall. Shares nothing with core but the contract's words. Private to core/sim.
#pragma once

#include "device.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace kvspan::sim {

// A commit, and the copies down to the host that make it lasting.
struct CommitPoint {
  std::uint64_t tokens = 0;
  std::vector<std::shared_ptr<Ending>> copies;
  bool recovered = false;  // perhaps a recovery came after it, and then it lasts

  [[nodiscard]] bool lasts() const {
    return std::all_of(
        copies.begin(), copies.end(), [](const auto& ending) { return ending->reached; });
  }
};

// One life of a sequence: a number that is used again is another life.
class Life {
 public:
  Life(std::uint32_t sequence, std::uint32_t stream) : sequence_(sequence), stream_(stream) {}

  [[nodiscard]] std::uint32_t sequence() const { return sequence_; }

  [[nodiscard]] std::uint32_t stream() const { return stream_; }

  [[nodiscard]] std::uint64_t tokens() const { return generations_.size(); }

  // The history with `rows` new rows behind it, for a step.
  [[nodiscard]] std::shared_ptr<std::vector<std::uint32_t>> with(std::uint32_t rows,
                                                                 std::uint32_t generation) const {
    auto all = std::make_shared<std::vector<std::uint32_t>>(generations_);
    all->insert(all->end(), rows, generation);
    return all;
  }

  void commit(std::uint32_t rows,
              std::uint32_t generation,
              std::vector<std::shared_ptr<Ending>> copies) {
    generations_.insert(generations_.end(), rows, generation);
    points_.push_back({tokens(), std::move(copies)});
  }

  // Rows that the host wrote itself: they last.
  void load(std::uint64_t tokens, std::uint32_t generation) {
    generations_.assign(tokens, generation);
    points_.clear();
    lasting_ = tokens;
  }

  // The fewest tokens, but for 0, that are left by a cut: what lies behind windows is given up.
  [[nodiscard]] std::uint64_t cut_limit() const { return cut_limit_; }

  void limit_cuts(std::uint64_t tokens) { cut_limit_ = std::max(cut_limit_, tokens); }

  // After a failure the session says how far; never further than it was.
  void limit_cuts_again(std::uint64_t tokens) { cut_limit_ = tokens; }

  void truncate(std::uint64_t tokens) {
    cut_limit_ = tokens == 0 ? 0 : cut_limit_;
    generations_.resize(tokens);
    lasting_ = std::min(lasting_, tokens);
    for (CommitPoint& point : points_) {
      point.tokens = std::min(point.tokens, tokens);
    }
  }

  // Where a failure falls to: the last commit behind which every copy arrived.
  [[nodiscard]] std::uint64_t floor() {
    while (!points_.empty() && points_.front().lasts()) {
      lasting_ = points_.front().tokens;
      points_.pop_front();
    }
    return lasting_;
  }

  // A recovery that was refused an object was tried again, when the engine could not look: what is
  // left may last by now.
  void perhaps_recovered() {
    for (CommitPoint& point : points_) {
      point.recovered = true;
    }
  }

  // As floor(), if it was.
  [[nodiscard]] std::uint64_t floor_if_recovered() {
    std::uint64_t tokens = floor();
    for (const CommitPoint& point : points_) {
      if (!point.recovered && !point.lasts()) {
        break;
      }
      tokens = point.tokens;
    }
    return tokens;
  }

  void fall(std::uint64_t tokens) {
    generations_.resize(tokens);
    points_.clear();
    lasting_ = tokens;
  }

 private:
  std::uint32_t sequence_;
  std::uint32_t stream_;
  std::vector<std::uint32_t> generations_;  // [token]
  std::deque<CommitPoint> points_;          // not known to last, oldest first
  std::uint64_t lasting_ = 0;
  std::uint64_t cut_limit_ = 0;
};

}  // namespace kvspan::sim
