// SPDX-License-Identifier: Apache-2.0
// What a block of the advance kernel holds: its pairs, its states, a granule of K and V. Read next:
// walk.cuh (a granule's arithmetic), advance.cu (whole items). Device code only.
#pragma once

#include "attention/fold.cuh"
#include "attention/kernel.hpp"
#include "typed_block.cuh"

#include <cstdint>

namespace kvspan::cuda {

inline constexpr uint32_t kWalkThreads = 256;
inline constexpr uint32_t kWalkWarps = kWalkThreads / 32;
// K rows are padded so that lanes which read the same column of 32 rows meet no bank twice.
inline constexpr uint32_t kColumnPad = 4;

// Numbers of each pair of the tile, in shared memory.
struct PairNumbers {
  float m[kPairsMax];  // the running state
  float l[kPairsMax];
  float kept[kPairsMax];      // of a granule: what the old l and u are multiplied with
  uint32_t fresh[kPairsMax];  // of a granule: nothing was seen before it
  uint32_t bits[kPairsMax];   // of a granule: bit t, the pair sees token t
  float fold_m[kPairsMax];    // run: the accumulator
  float fold_l[kPairsMax];
  Fold fold[kPairsMax];
  Finish finish[kPairsMax];
  uint64_t window_begin[kPairsMax];
  uint64_t visible_end[kPairsMax];
  uint64_t suffix_mask[kPairsMax];
  int64_t position[kPairsMax];
  float slope[kPairsMax];
  uint64_t row[kPairsMax];
  uint32_t head[kPairsMax];  // query head
};

// Where the rows of the granule are, in shared memory.
struct GranuleRows {
  SpanView span;  // the one that was found last
  const uint8_t* k[kGranuleTokens];
  const uint8_t* v[kGranuleTokens];
};

struct Tile {
  const HeldCall& call;
  const Problem& problem;
  const EntryView& entry;
  uint32_t kv_head;
  uint32_t count;  // pairs
  uint64_t seen_begin;
  uint64_t seen_end;  // tokens that some pair may see
  PairNumbers& pairs;
  GranuleRows& rows;
  float* k;  // [token, head_size_k + kColumnPad]
  float* v;  // [token, v_stride]
  uint32_t v_stride;
  float* q;        // [pair, head_size_k]
  float* u;        // [pair, head_size_v] the running state
  float* weights;  // [pair, token]
  uint8_t* stage;  // [token, stage_stride] typed rows as they came, of K, then of V
  float* fold_u;   // [pair, head_size_v] run: the accumulator
};

// Bytes between staged rows, a multiple of 16: the longer side's, so that a warp's rows of K and of
// V take the same room and no warp waits for another.
__host__ __device__ constexpr uint32_t stage_stride(const Problem& problem) {
  const BlockShape k = block_shape(problem.k_type);
  const BlockShape v = block_shape(problem.v_type);
  const uint32_t k_bytes = problem.head_size_k / k.elements * k.bytes;
  const uint32_t v_bytes = problem.head_size_v / v.elements * v.bytes;
  return ((k_bytes > v_bytes ? k_bytes : v_bytes) + 15) / 16 * 16;
}

// Of a block's shared memory, beside its floats: at most.
inline constexpr uint32_t kWalkStaticBytes = 3072;

// Floats of shared memory behind the static part, in the order of Tile's fields, for tiles of `pairs`.
constexpr uint32_t tile_floats(const Problem& problem, bool folds, uint32_t pairs) {
  const uint32_t k = kGranuleTokens * (problem.head_size_k + kColumnPad);
  const uint32_t v = problem.v_in_k != 0 ? 0 : kGranuleTokens * problem.head_size_v;
  const uint32_t states = folds ? 2 : 1;
  return k + v + kGranuleTokens * stage_stride(problem) / 4 +
         pairs * (problem.head_size_k + states * problem.head_size_v + kGranuleTokens);
}

// Calls visit(pair, element) for every element of a row of `size` of every pair, neighbours in
// neighbouring lanes.
template <class Visit>
__device__ void for_each_element(uint32_t count, uint32_t size, Visit&& visit) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t chunks = (size + 31) / 32;
  for (uint32_t i = threadIdx.x / 32; i < count * chunks; i += kWalkWarps) {
    const uint32_t element = i % chunks * 32 + lane;
    if (element < size) {
      visit(i / chunks, element);
    }
  }
}

}  // namespace kvspan::cuda
