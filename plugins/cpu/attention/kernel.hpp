// SPDX-License-Identifier: Apache-2.0
// What the attention kernel works on, and its entry points: plain values with resolved addresses.
// Not here: who makes these values (args.hpp), who cuts the work (work.hpp), vectors (kernel.cpp).
//
// A pair is (row, query head of one KV head's group), numbered row * group + head; a tile is a run
// of pairs of one KV head. A granule of K and V is dequantised once and serves all pairs of the
// tile. The state of a pair is {m, l, u}: see kvspan_state_t in kvspan/attention.h.
#pragma once

#include "kvspan/sdk/plane_view.hpp"
#include "kvspan/types.h"

#include <cstddef>
#include <cstdint>

namespace kvspan::cpu {

// Tokens that are dequantised, scored and summed together; caps.span_granule. 32 tokens of f32 K
// and V at head size 64 are 16 KiB: both stay in the first-level cache.
inline constexpr uint32_t kGranuleTokens = 32;
// Pairs of a tile: enough to hide the dequantisation, few enough that q and u (192 KiB each at head
// size 256) stay in a second-level cache of 1 MiB.
inline constexpr uint32_t kPairsMax = 192;
inline constexpr uint32_t kHeadSizeMax = 256;  // elements, K and V side

using sdk::PlaneView;

struct SpanView {
  uint64_t first_token;
  uint64_t token_count;
  PlaneView k;
  PlaneView v;  // unused with V_IN_K
};

struct RowsView {
  uint8_t* base;         // of row 0, head 0
  uint64_t row_stride;   // bytes
  uint64_t head_stride;  // bytes
  kvspan_type_t type;    // F32, F16 or BF16
};

// kvspan_entry_t with its memories resolved.
struct EntryView {
  const SpanView* spans;         // [span_count], ascending
  const uint64_t* visible_end;   // [row] tokens
  const uint64_t* window_begin;  // [row] tokens, or nullptr
  const uint64_t* suffix_mask;   // [row], or nullptr
  const int64_t* positions;      // [row], or nullptr
  uint32_t span_count;
  uint32_t row_count;
  uint32_t suffix_count;
  uint64_t token_total;
  uint64_t split_tokens;
  RowsView q;    // [row, q_head, head_size_k]
  RowsView out;  // [row, q_head, head_size_v]
  float* lse;    // [row, q_head], or nullptr
};

// What all entries of a call share.
struct Problem {
  kvspan_type_t k_type;
  kvspan_type_t v_type;
  uint32_t head_size_k;
  uint32_t head_size_v;
  uint32_t q_heads;
  uint32_t kv_heads;
  uint32_t group;  // q_heads / kv_heads
  float scale;
  float soft_cap;       // 0 = none
  const float* sinks;   // [q_head], or nullptr
  const float* slopes;  // [q_head], or nullptr
  uint32_t v_in_k;      // 1: V is the first head_size_v elements of K's row
};

struct PairTile {
  const Problem* problem;
  const EntryView* entry;
  uint64_t first_pair;
  uint32_t pair_count;  // 1..kPairsMax
  uint32_t kv_head;
};

// One thread's working memory; every pointer is 64-byte aligned. Rows are padded to 16 elements.
struct Scratch {
  float* q;           // [pair, padded head_size_k]
  float* u;           // [pair, padded head_size_v] state of the running split
  float* m;           // [pair] state
  float* l;           // [pair] state
  float* fold_u;      // [pair, padded head_size_v] accumulator
  float* fold_m;      // [pair]
  float* fold_l;      // [pair]
  float* k_rows;      // [token, padded head_size_k] dequantised
  float* k_columns;   // [head_size_k, token] the same, transposed
  float* v_rows;      // [token, padded head_size_v]
  float* weights;     // [pair, token] scores, then exp(score - m)
  float* kept;        // [pair] exp(old m - new m)
  float* sums;        // [pair] of a granule's weights
  uint32_t* visible;  // [pair] bit t: the pair sees token t of the granule
  uint32_t* row;      // [pair] of the entry
  uint32_t* q_head;   // [pair]

  // Bytes that bind() needs at a 64-byte aligned address.
  static uint64_t bytes();
  static Scratch bind(void* block);
};

// Elements of a padded row.
constexpr uint32_t padded(uint32_t head_size) {
  return (head_size + 15u) / 16u * 16u;
}

// State of one pair outside of scratch: u [head_size_v] and ml [2].
struct PairState {
  float* u;
  float* m;
  float* l;
};

struct PairSource {
  const float* u;  // [head_size_v]
  float m;
  float l;
};

// The kernel compiled for one instruction set. All functions are pure: bits depend on arguments
// only, not on the thread or on how many pairs ride along.
struct Kernels {
  int64_t target;  // HWY_AVX3 and the like; hwy::TargetName() has the word

  // A typed row to out [elements rounded up to 16], with the bits of the C reference's decode.
  void (*load_row)(kvspan_type_t type, const uint8_t* row, uint32_t elements, float* out);

  // Reads the tile's queries into scratch.q and fills scratch.row and scratch.q_head.
  void (*load_queries)(const PairTile& tile, Scratch& scratch);

  // Advances the tile's states in scratch over tokens [first, end). first is on the granule; only
  // tokens that some row of the tile sees are read, and the spans hold all of those.
  void (*walk)(const PairTile& tile, uint64_t first, uint64_t end, Scratch& scratch);

  // Left fold of a source into an accumulator of one pair.
  void (*fold)(const PairState& accumulator, const PairSource& source, uint32_t head_size_v);

  // u / (l + sink) as rows of `type` to `out`; returns the LSE. Neutral: zeros and -inf.
  float (*finish)(const PairSource& accumulator,
                  const float* sink,
                  uint32_t head_size_v,
                  kvspan_type_t type,
                  uint8_t* out);
};

// The best kernel for this machine. Any thread; the same each time.
const Kernels& best_kernels();

}  // namespace kvspan::cpu
