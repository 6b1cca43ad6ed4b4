// SPDX-License-Identifier: Apache-2.0
// What one submit of attention walks over: spans of a layer's tokens that are on the device, and
// the moment behind which they are there. Private to core/session. Read next: attend.cpp.
#pragma once

#include "kvspan/core/stream/page_order.hpp"

#include "state.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvspan {

// Tokens [begin, end).
struct Tokens {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Pieces are added in ascending order of their tokens. Spans point into the wave, so it is not
// copied.
class Wave {
 public:
  // At most `slots_max` units are added; a span lists at most `listed_max` tiles. The references
  // outlive the wave.
  Wave(const PageLayout& page,
       bool v_in_k,
       kvspan_memory_t* memory,
       std::size_t slots_max,
       std::size_t listed_max);
  Wave(const Wave&) = delete;
  Wave& operator=(const Wave&) = delete;
  Wave(Wave&&) = delete;
  Wave& operator=(Wave&&) = delete;
  ~Wave() = default;

  // Tiles that follow each other in memory from `offset` on; the tokens begin with one.
  void add_run(const Tokens& tokens, std::uint64_t offset);

  // A unit whose first tile is the first of slot `slot` of those from `offset` on, `stride` bytes
  // apart; of a tile that is begun in its midst, the first row there is the unit's first. Tiles
  // that follow each other become one span, with a list where their places do not.
  void add_slot(const PageUnit& unit,
                std::uint32_t slot,
                std::uint64_t offset,
                std::uint64_t stride);

  // The last unit ends before this token.
  void trim(std::uint64_t end_token);

  void wait_for(const Moment& moment) { ready_.merge(moment); }

  [[nodiscard]] bool empty() const { return spans_.empty(); }

  [[nodiscard]] const Moment& ready() const { return ready_; }

  [[nodiscard]] std::span<const kvspan_span_t> spans() const { return spans_; }

  // The tokens of the spans, adjacent ones together.
  [[nodiscard]] std::vector<Tokens> runs() const;

 private:
  void add_span(const Tokens& tokens, std::uint64_t offset);
  void add_tiles(const Tokens& tokens,
                 std::uint64_t offset,
                 std::uint64_t at,
                 std::uint64_t stride);
  void list_tiles(std::uint64_t offset, std::uint64_t unit_bytes);

  const PageLayout& page_;
  bool v_in_k_;
  kvspan_memory_t* memory_;
  std::size_t listed_max_;
  std::vector<kvspan_span_t> spans_;
  std::vector<std::uint32_t> places_;  // of all tiles of units, in order
  std::size_t first_place_ = 0;        // of the last span, where units made it
  bool open_ = false;                  // the last span can be joined by a tile
  Moment ready_;
};

}  // namespace kvspan
