// SPDX-License-Identifier: Apache-2.0
// Each row begins with a triple that is not covered yet; the other factors, in an order that the
// dice throw, take the value that covers most with those before. Of a few such rows the best stays.
#include "covering_array.hpp"

#include "worker/settings.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <utility>

namespace kvspan::conformance {
namespace {

constexpr uint32_t kTries = 6;

class Triples {
 public:
  Triples(const std::vector<uint32_t>& sizes, const Allowed& allowed)
      : sizes_(sizes), factors_(static_cast<uint32_t>(sizes.size())) {
    base_.assign(std::size_t{factors_} * factors_ * factors_, 0);
    std::size_t used = 0;
    for (uint32_t a = 0; a < factors_; ++a) {
      for (uint32_t b = a + 1; b < factors_; ++b) {
        for (uint32_t c = b + 1; c < factors_; ++c) {
          base_[(a * factors_ + b) * factors_ + c] = used;
          used += std::size_t{sizes[a]} * sizes[b] * sizes[c];
        }
      }
    }
    open_.assign(used, 0);
    Choice choice(factors_, kOpen);
    each(choice, [&](std::size_t at) {
      open_[at] = allowed(choice) ? 1u : 0u;
      left_ += open_[at];
    });
  }

  std::size_t left() const { return left_; }

  /// Sets three factors of an open choice to a triple that is not covered yet.
  void seed_row(Choice& choice) {
    bool found = false;
    Choice other(factors_, kOpen);
    each(other, [&](std::size_t at) {
      if (!found && open_[at] != 0) {
        found = true;
        choice = other;
      }
    });
  }

  /// Gives up the triple of seed_row().
  void cross_out(const Choice& start) {
    Choice other(factors_, kOpen);
    each(other,
         [&](std::size_t at) { left_ -= other == start ? std::exchange(open_[at], 0u) : 0u; });
  }

  /// How many triples that are not covered yet the value would cover with the chosen ones.
  uint32_t gain(const Choice& choice, uint32_t factor, uint32_t value) const {
    uint32_t count = 0;
    for (uint32_t a = 0; a < factors_; ++a) {
      for (uint32_t b = a + 1; b < factors_ && choice[a] != kOpen; ++b) {
        if (a != factor && b != factor && choice[b] != kOpen) {
          std::array<std::array<uint32_t, 2>, 3> three = {
              {{a, choice[a]}, {b, choice[b]}, {factor, value}}};
          std::sort(three.begin(), three.end());
          count += open_[place(three)];
        }
      }
    }
    return count;
  }

  /// Crosses out what a row covers; how much that was.
  uint32_t cover(const Choice& row, bool really) {
    uint32_t count = 0;
    for (uint32_t a = 0; a < factors_; ++a) {
      for (uint32_t b = a + 1; b < factors_; ++b) {
        for (uint32_t c = b + 1; c < factors_; ++c) {
          uint32_t& open = open_[place({{{a, row[a]}, {b, row[b]}, {c, row[c]}}})];
          count += open;
          open = really ? 0u : open;
        }
      }
    }
    left_ -= really ? count : 0;
    return count;
  }

 private:
  std::size_t place(const std::array<std::array<uint32_t, 2>, 3>& three) const {
    const auto& [a, b, c] = three;
    const std::size_t base = base_[(a[0] * factors_ + b[0]) * factors_ + c[0]];
    return base + (std::size_t{a[1]} * sizes_[b[0]] + b[1]) * sizes_[c[0]] + c[1];
  }

  /// Calls `work` with the place of every triple, which `choice` holds meanwhile.
  template <class Work>
  void each(Choice& choice, Work&& work) {
    for (uint32_t a = 0; a < factors_; ++a) {
      for (uint32_t b = a + 1; b < factors_; ++b) {
        for (uint32_t c = b + 1; c < factors_; ++c) {
          std::size_t at = base_[(a * factors_ + b) * factors_ + c];
          for (choice[a] = 0; choice[a] < sizes_[a]; ++choice[a]) {
            for (choice[b] = 0; choice[b] < sizes_[b]; ++choice[b]) {
              for (choice[c] = 0; choice[c] < sizes_[c]; ++choice[c]) {
                work(at++);
              }
            }
          }
          choice[a] = choice[b] = choice[c] = kOpen;
        }
      }
    }
  }

  const std::vector<uint32_t>& sizes_;
  uint32_t factors_;
  std::vector<std::size_t> base_;  // [a][b][c] of ascending factors: its first place in open_
  std::vector<uint32_t> open_;     // 1: allowed and not covered yet
  std::size_t left_ = 0;
};

/// Chooses the open factors of a row one after the other. False where nothing is allowed any more.
bool complete(Choice& row,
              const std::vector<uint32_t>& sizes,
              const Allowed& allowed,
              const Triples& triples,
              Dice& dice) {
  std::vector<uint32_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0u);
  dice.shuffle(order);
  for (const uint32_t factor : order) {
    if (row[factor] != kOpen) {
      continue;
    }
    uint32_t best = kOpen;
    uint32_t most = 0;
    const auto first = static_cast<uint32_t>(dice.below(sizes[factor]));
    for (uint32_t i = 0; i < sizes[factor]; ++i) {
      const uint32_t value = (first + i) % sizes[factor];
      row[factor] = value;
      const bool may = allowed(row);
      row[factor] = kOpen;
      const uint32_t gain = may ? triples.gain(row, factor, value) : 0;
      if (may && (best == kOpen || gain > most)) {
        best = value;
        most = gain;
      }
    }
    if (best == kOpen) {
      return false;
    }
    row[factor] = best;
  }
  return true;
}

}  // namespace

std::vector<Choice> covering_array(const std::vector<uint32_t>& sizes,
                                   const Allowed& allowed,
                                   uint64_t seed) {
  Dice dice(seed);
  Triples triples(sizes, allowed);
  std::vector<Choice> rows;
  while (triples.left() != 0) {
    Choice start(sizes.size(), kOpen);
    triples.seed_row(start);
    Choice best;
    uint32_t most = 0;
    for (uint32_t i = 0; i < kTries; ++i) {
      Choice row = start;
      const bool whole = complete(row, sizes, allowed, triples, dice);
      const uint32_t covered = whole ? triples.cover(row, false) : 0;
      if (covered > most) {
        best = row;
        most = covered;
      }
    }
    if (best.empty()) {
      triples.cross_out(start);  // it cannot be had, whatever `allowed` said
      continue;
    }
    triples.cover(best, true);
    rows.push_back(best);
  }
  return rows;
}

}  // namespace kvspan::conformance
