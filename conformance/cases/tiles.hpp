// SPDX-License-Identifier: Apache-2.0
// A history laid out as kvspan's core lays out pages: tiles of 64 tokens, K before V, each [head,
// token, element], found in order or by lists of places. Poison is everywhere else. Not here:
// token-major pages (history.hpp), what must follow from a layout (attention_tiles_test.cpp).
#ifndef KVSPAN_CONFORMANCE_CASES_TILES_H
#define KVSPAN_CONFORMANCE_CASES_TILES_H

#include "history.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvspan::conformance {

inline constexpr uint32_t kTokensOfATile = 64;

/// Where tiles lie and how planes find them.
enum class Tiles {
  in_order,      // one behind the other, no list
  one_list,      // scattered; K's and V's page_list are the same pointer
  list_a_side,   // the same places, V's list a copy of K's
  places_a_side  // K and V of a tile in different places, so that the lists differ
};

struct TileLayout {
  Tiles tiles = Tiles::in_order;
  bool scaled = false;  // with lists: page_stride is a part of a tile, places are counted in it
  bool cut = false;     // several spans, cut at tiles or granules; their lists lie in one array
  uint32_t token_major_one_in = 0;  // so many spans is one in token-major pages; 0 = none, 1 = all
};

/// Spans of a history in such a layout, in memory of one kind. Only tokens for which live[token] is
/// true get their bytes, all else in the planes is poison; `live` empty = all of them.
class TilePlacement {
 public:
  struct Where {
    uint32_t kind = KVSPAN_MEMORY_DEVICE;
    uint32_t granule = 1;  // tokens; spans may be cut there
  };

  TilePlacement(Arenas& arenas,
                const History& history,
                const TileLayout& layout,
                const Where& where,
                std::vector<bool> live,
                Poison poison,
                Dice& dice);
  TilePlacement(const TilePlacement&) = delete;
  TilePlacement& operator=(const TilePlacement&) = delete;
  TilePlacement(TilePlacement&&) = delete;
  TilePlacement& operator=(TilePlacement&&) = delete;
  ~TilePlacement() = default;

  const std::vector<kvspan_span_t>& spans() const { return spans_; }

 private:
  struct Part {
    uint64_t begin, end;  // tokens
    bool token_major;

    uint64_t tile_count() const { return (end - begin + kTokensOfATile - 1) / kTokensOfATile; }
  };

  /// Bytes of a tile, and what places are counted in.
  struct Sizes {
    uint64_t v_offset = 0;
    uint64_t tile_bytes = 0;
    uint64_t unit_bytes = 0;
  };

  std::vector<Part> parts_of(const TileLayout& layout, uint32_t granule, Dice& dice) const;
  void throw_places(const TileLayout& layout, uint64_t tiles, Dice& dice);
  void take_region(Arena& arena, Poison poison);
  void put_rows(Bytes& image, const Part& part, uint64_t first_tile) const;
  kvspan_span_t span_of(const Arena& arena,
                        const TileLayout& layout,
                        const Part& part,
                        uint64_t first_tile) const;

  const History& history_;
  std::vector<bool> live_;
  Sizes sizes_;
  uint64_t offset_ = 0;              // of place 0
  std::vector<uint32_t> slots_;      // every place there is, in units
  std::vector<uint32_t> places_[2];  // of the tiles of all parts in order: K's, V's
  std::vector<kvspan_span_t> spans_;
  std::vector<std::unique_ptr<Placement>> token_major_;
};

}  // namespace kvspan::conformance

#endif
