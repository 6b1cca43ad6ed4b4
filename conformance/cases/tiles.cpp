// SPDX-License-Identifier: Apache-2.0
// Lays histories out in tiles. Places are thrown first, then everything there is poison, then rows
// go where the formula of kvspan_plane_t finds them.
#include "tiles.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvspan::conformance {
namespace {

constexpr uint64_t kPlaneAlignment = 256;  // the strictest that a device may ask of an offset

uint64_t rounded_to(uint64_t bytes, uint64_t to) {
  return (bytes + to - 1) / to * to;
}

/// From a head to the next.
uint64_t head_bytes(const Side& side) {
  return kTokensOfATile * side.row_bytes;
}

}  // namespace

TilePlacement::TilePlacement(Arenas& arenas,
                             const History& history,
                             const TileLayout& layout,
                             const Where& where,
                             std::vector<bool> live,
                             Poison poison,
                             Dice& dice)
    : history_(history), live_(std::move(live)) {
  const std::vector<Part> parts = parts_of(layout, where.granule, dice);
  uint64_t tiles = 0;
  for (const Part& part : parts) {
    tiles += part.token_major ? 0 : part.tile_count();
  }
  Arena& arena = arenas.of(where.kind);
  throw_places(layout, tiles, dice);
  take_region(arena, poison);
  uint64_t first_tile = 0;
  for (const Part& part : parts) {
    if (part.token_major) {
      Piece piece;
      piece.first_token = part.begin;
      piece.token_count = part.end - part.begin;
      piece.kind = where.kind;
      piece.page_tokens = kTokensOfATile;
      piece.adjacent = true;
      piece.listed = layout.tiles != Tiles::in_order;
      token_major_.push_back(std::make_unique<Placement>(
          arenas, history, std::vector<Piece>{piece}, live_, poison, dice));
      spans_.push_back(token_major_.back()->spans().front());
    } else {
      put_rows(arena.buffer->image, part, first_tile);
      spans_.push_back(span_of(arena, layout, part, first_tile));
      first_tile += part.tile_count();
    }
  }
}

/// A part that begins inside a tile ends with that tile: lists count tiles from a span's start.
std::vector<TilePlacement::Part> TilePlacement::parts_of(const TileLayout& layout,
                                                         uint32_t granule,
                                                         Dice& dice) const {
  std::vector<Part> parts;
  for (uint64_t begin = 0; begin < history_.tokens;) {
    uint64_t end = history_.tokens;
    if (begin % kTokensOfATile != 0) {
      end = begin / kTokensOfATile * kTokensOfATile + kTokensOfATile;
    } else if (layout.cut) {
      const uint64_t tiles = (end - begin + kTokensOfATile - 1) / kTokensOfATile;
      end = begin + dice.between(1, tiles) * kTokensOfATile;
      if (dice.hit(3)) {
        end -= dice.below(kTokensOfATile / granule) * granule;
      }
    }
    end = std::min(end, history_.tokens);
    const bool major = layout.token_major_one_in != 0 && dice.hit(layout.token_major_one_in);
    parts.push_back({begin, end, major});
    begin = end;
  }
  return parts;
}

/// Scattered tiles have free places between them; scaled ones begin at no multiple of a tile, yet
/// each where a plane may begin.
void TilePlacement::throw_places(const TileLayout& layout, uint64_t tiles, Dice& dice) {
  const Side& k = history_.k;
  const Side& v = history_.v;
  const bool listed = layout.tiles != Tiles::in_order;
  const uint32_t step = layout.scaled ? dice.pick<uint32_t>({2, 4, 8}) : 1;  // units a tile
  const uint64_t v_bytes = history_.geometry.v_in_k ? 0 : v.heads * head_bytes(v);
  sizes_.v_offset = rounded_to(k.heads * head_bytes(k), kPlaneAlignment);
  sizes_.tile_bytes = rounded_to(sizes_.v_offset + v_bytes, step * kPlaneAlignment);
  sizes_.unit_bytes = sizes_.tile_bytes / step;
  const uint32_t between = layout.scaled ? step + 1 : step;
  const uint64_t spare = listed ? dice.between(1, 3) : 0;
  for (uint64_t slot = 0; slot < tiles + spare; ++slot) {
    slots_.push_back(static_cast<uint32_t>(slot) * between);
  }
  for (std::vector<uint32_t>& places : places_) {
    if (&places == &places_[0] || layout.tiles == Tiles::places_a_side) {
      places = slots_;
      if (listed) {
        dice.shuffle(places);
      }
    } else {
      places = places_[0];
    }
    places.resize(tiles);
  }
}

void TilePlacement::take_region(Arena& arena, Poison poison) {
  if (slots_.empty()) {
    return;
  }
  const uint64_t bytes = slots_.back() * sizes_.unit_bytes + sizes_.tile_bytes;
  offset_ = arena.take(bytes);
  Bytes& image = arena.buffer->image;
  fill_poison(image, offset_, offset_ + bytes, history_.k.type, poison);
  for (const uint32_t slot : slots_) {
    const uint64_t tile = offset_ + slot * sizes_.unit_bytes;
    fill_poison(image,
                tile + sizes_.v_offset,
                tile + sizes_.tile_bytes,
                history_.geometry.v_in_k ? history_.k.type : history_.v.type,
                poison);
  }
}

void TilePlacement::put_rows(Bytes& image, const Part& part, uint64_t first_tile) const {
  const Side* sides[2] = {&history_.k, &history_.v};
  for (uint32_t s = 0; s < (history_.geometry.v_in_k ? 1U : 2U); ++s) {
    const Side& side = *sides[s];
    for (uint64_t token = part.begin; token < part.end; ++token) {
      if (!live_.empty() && !live_[token]) {
        continue;
      }
      const uint64_t t = token - part.begin;
      const uint64_t place = places_[s][first_tile + t / kTokensOfATile];
      uint8_t* row = image.data() + offset_ + s * sizes_.v_offset + place * sizes_.unit_bytes +
                     t % kTokensOfATile * side.row_bytes;
      const uint8_t* from = side.bytes.data() + token * side.heads * side.row_bytes;
      for (uint32_t head = 0; head < side.heads; ++head) {
        std::memcpy(row + head * head_bytes(side), from + head * side.row_bytes, side.row_bytes);
      }
    }
  }
}

kvspan_span_t TilePlacement::span_of(const Arena& arena,
                                     const TileLayout& layout,
                                     const Part& part,
                                     uint64_t first_tile) const {
  const bool listed = layout.tiles != Tiles::in_order && part.begin % kTokensOfATile == 0;
  const auto plane_of = [&](uint32_t s, const Side& side) {
    kvspan_plane_t plane = {};
    plane.memory = arena.buffer->memory;
    plane.offset = offset_ + s * sizes_.v_offset;
    plane.page_stride = sizes_.unit_bytes;
    plane.row_stride = side.row_bytes;
    plane.head_stride = head_bytes(side);
    plane.page_tokens = kTokensOfATile;
    if (listed) {
      const bool own = s == 1 && layout.tiles != Tiles::one_list;
      plane.page_list = places_[own ? 1 : 0].data() + first_tile;
      plane.page_count = static_cast<uint32_t>(part.tile_count());
    } else {
      plane.offset += places_[s][first_tile] * sizes_.unit_bytes;
    }
    return plane;
  };
  kvspan_span_t span = {};
  span.first_token = part.begin;
  span.token_count = part.end - part.begin;
  span.k = plane_of(0, history_.k);
  if (!history_.geometry.v_in_k) {
    span.v = plane_of(1, history_.v);
  }
  return span;
}

}  // namespace kvspan::conformance
