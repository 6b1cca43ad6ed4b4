// SPDX-License-Identifier: Apache-2.0
// A layer's resident tokens dealt out over its waves. Private to core/session.
#pragma once

#include "wave.hpp"

#include <cstdint>
#include <vector>

namespace kvspan {

// Each wave gets as large a piece of every resident split as the others, so that all splits go on
// side by side, those that stream and those that do not: a wave of few whole splits would take as
// long as one of them, on few of the device's processors.
class Deal {
 public:
  // `resident` is not empty, and tokens behind it stream. Pieces are cut at multiples of
  // `granule_tokens`, which divide `split_tokens`; `waves` is at least 2.
  Deal(const Tokens& resident,
       std::uint64_t split_tokens,
       std::uint64_t granule_tokens,
       std::uint64_t waves);

  // Pieces of the next wave, ascending; those that would follow each other are one. `streamed`:
  // what streams in that wave, ascending. A split that is resident in part is walked in order: all
  // that is left of it comes with the first of its streamed tokens.
  [[nodiscard]] std::vector<Tokens> next(const std::vector<Tokens>& streamed);

 private:
  Tokens resident_;
  std::uint64_t split_;
  std::uint64_t granule_;
  std::uint64_t waves_;
  std::uint64_t wave_ = 0;    // the next one
  std::uint64_t behind_;      // of the split that goes on streaming: tokens before it were dealt
  std::uint64_t offset_ = 0;  // of every other split: as many of its tokens were dealt
};

// `pieces` and what of `runs` lies behind `end`, both ascending, adjacent ones together: the tokens
// that a wave walks, where its runs name all residents, which end at `end`.
[[nodiscard]] std::vector<Tokens> walked(const std::vector<Tokens>& pieces,
                                         const std::vector<Tokens>& runs,
                                         std::uint64_t end);

}  // namespace kvspan
