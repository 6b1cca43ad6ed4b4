// SPDX-License-Identifier: Apache-2.0
// What a layer's K and V look like, and the exact bytes that follow: rows, planes, pages. Per
// layer: types, head sizes, heads and windows may all differ from layer to layer.
// Not here: how many pages are kept where (placement), or what a session needs in all (budget).
// Read next: kv_type.hpp for rows, checked.hpp for the arithmetic.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/types.h"

#include <cstdint>
#include <vector>

namespace kvspan {

// One layer. head_size_* in elements. q_heads is a multiple of kv_heads.
struct LayerGeometry {
  kvspan_type_t k_type = KVSPAN_TYPE_F16;
  kvspan_type_t v_type = KVSPAN_TYPE_F16;
  std::uint32_t head_size_k = 0;  // 0 sizes and counts are refused: they mean "not told"
  std::uint32_t head_size_v = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t q_heads = 0;
  std::uint64_t window_tokens = 0;  // 0 = full attention
  bool v_in_k = false;  // latent attention: V is the first head_size_v elements of K's row
};

// Tokens of a tile where nobody says otherwise: the most that a span granule may have, so that no
// split cuts one, and what kernels on tensor cores take at once.
inline constexpr std::uint32_t kTileTokens = 64;

// A page is tiles, one behind the other. A tile: [K | padding | V | padding], each padding up to
// the alignment, and K and V are [head, token, element] with no padding but each row's up to the
// row alignment: the rows that a block of a kernel walks, one head's, follow each other, any run of
// rows is one copy a head, and any run of whole tiles one copy. All in bytes but the tokens.
// With v_in_k there is no V: v_offset, v_head_bytes, v_token_bytes and v_tile_bytes are 0 and
// v_row_bytes is the part of K's row that V is read from, padded as rows are.
struct PageLayout {
  std::uint32_t page_tokens;
  std::uint32_t tile_tokens;  // divides page_tokens
  std::uint64_t k_row_bytes;  // one head of one token, padded: from a row to the next
  std::uint64_t v_row_bytes;
  std::uint64_t k_head_bytes;  // one head of a tile's tokens: from a head to the next
  std::uint64_t v_head_bytes;
  std::uint64_t k_token_bytes;  // all KV heads of one token, wherever they lie
  std::uint64_t v_token_bytes;
  std::uint64_t k_tile_bytes;  // all heads of a tile's tokens, unpadded
  std::uint64_t v_tile_bytes;
  std::uint64_t v_offset;    // from the start of a tile
  std::uint64_t tile_bytes;  // a multiple of the alignment
  std::uint64_t page_bytes;  // all tiles
};

// Where row `row` of a page begins, from the page's start. Pure; any thread.
[[nodiscard]] std::uint64_t k_row_offset(const PageLayout& page,
                                         std::uint64_t row,
                                         std::uint64_t head);
// The same of V; with v_in_k the row lies in K: use k_row_offset.
[[nodiscard]] std::uint64_t v_row_offset(const PageLayout& page,
                                         std::uint64_t row,
                                         std::uint64_t head);

// All layers of a history group. Alignments in bytes, powers of two.
struct Geometry {
  std::vector<LayerGeometry> layers;
  std::uint32_t page_tokens = 256;
  std::uint64_t alignment = 128;    // of tiles, and of V in them
  std::uint64_t row_alignment = 1;  // at most `alignment`; copy_alignment() of the device
  std::uint32_t tile_tokens_max = kTileTokens;  // a power of two
};

// Tokens of a tile where a page has `page_tokens`: all of a small page, else the largest power of
// two that divides it, at most `tile_tokens_max`, one itself.
[[nodiscard]] std::uint32_t tile_tokens(std::uint32_t page_tokens, std::uint32_t tile_tokens_max);

// The bytes of one layer's page. Pure; any thread.
// Errc::invalid_argument: a size of 0, query heads that KV heads do not divide, an alignment or
// tile that is no power of two, rows aligned to more than tiles are, a V that does not fit inside
// K's row. Errc::unsupported: unknown
// type, or a quantised block does not divide a head. Errc::too_large: the page does not fit 64
// bits. Each message names the field, its limit and what to use instead.
[[nodiscard]] Result<PageLayout> page_layout(const LayerGeometry& layer,
                                             std::uint32_t page_tokens,
                                             std::uint64_t alignment,
                                             std::uint32_t tile_tokens_max = kTileTokens,
                                             std::uint64_t row_alignment = 1);

// The same for every layer, in order; an error's message begins with the layer and its component is
// "layer <i>".
// Errc::invalid_argument also when there is no layer.
[[nodiscard]] Result<std::vector<PageLayout>> page_layouts(const Geometry& geometry);

// Bytes of live rows after `tokens` tokens, all layers, no padding between them: what the history
// itself weighs.
// A layer with a window counts at most its window. Allocations are whole pages and so at least
// this. Errors as page_layouts.
[[nodiscard]] Result<std::uint64_t> live_bytes(const Geometry& geometry, std::uint64_t tokens);

// Pages that hold `tokens` tokens. Errc::invalid_argument: page_tokens is 0.
[[nodiscard]] Result<std::uint64_t> page_count(std::uint64_t tokens, std::uint32_t page_tokens);

// How many pages go into each parent allocation when none may be larger than `allocation_bytes_max`
// and no page may straddle two: as many full parents as it takes, then the rest. No pages: no
// parents.
// Errc::invalid_argument: page_bytes is 0. Errc::too_large: a single page is larger than an
// allocation may be; required, provided and missing are bytes; use fewer tokens a page.
[[nodiscard]] Result<std::vector<std::uint64_t>> pages_per_parent(
    std::uint64_t pages, std::uint64_t page_bytes, std::uint64_t allocation_bytes_max);

}  // namespace kvspan
