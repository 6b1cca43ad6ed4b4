// SPDX-License-Identifier: Apache-2.0
// What the kernels of attention and codec work on, and how they are started: plain values with
// addresses of the device. Arrays lie in a packet's slab, which the device reads in place.
// Not here: who makes these values (args.hpp), the arithmetic (walk.cuh, fold.cuh).
//
// A pair is (row, query head of one KV head's group), numbered row * group + head; a tile is a run
// of pairs of one KV head that a block takes. Every pair is computed as if it were alone: the order
// of its sums depends on tokens and elements only. The state of a pair is {m, l, u}: see
// kvspan_state_t in kvspan/attention.h.
#pragma once

#include "kvspan/types.h"

#include <cstdint>
#include <cuda_runtime_api.h>

namespace kvspan::cuda {

// Tokens that are dequantised, scored and summed together, one a lane; caps.span_granule.
inline constexpr uint32_t kGranuleTokens = 32;
inline constexpr uint32_t kPairsMax = 16;      // of a tile
inline constexpr uint32_t kHeadSizeMax = 256;  // elements, K and V side

// kvspan_plane_t with its memory resolved: token t, head h as there.
struct PlaneView {
  uint8_t* base;              // of the plane's offset
  const uint32_t* page_list;  // [page] slots, or nullptr
  uint64_t page_stride;       // bytes
  uint64_t row_stride;        // bytes
  uint64_t head_stride;       // bytes
  uint64_t page_tokens;       // 0 = contiguous
};

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
  RowsView q;           // [row, q_head, head_size_k]
  RowsView out;         // [row, q_head, head_size_v]
  float* lse;           // [row, q_head], or nullptr
  uint64_t first_pair;  // pairs of the entries before: rows * q_heads
  uint64_t first_fold;  // FoldWork of the entries before
  uint64_t fold_count;
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

// A state in memory: f32 u [row, q_head, head_size_v] and ml [row, q_head, 2].
struct StateView {
  float* u;
  float* ml;
};

enum class Walk : uint32_t {
  resume,  // advance: from the state as it is
  fresh,   // advance: from the neutral state
  splits,  // run: each split of the tokens from neutral, folded, finished; no state is touched
};

struct AdvanceWork {
  StateView state;
  uint64_t first;  // tokens
  uint64_t end;
  uint64_t first_block;  // blocks of the items before
  uint32_t entry;
  Walk walk;
};

struct FoldWork {
  StateView source;
  StateView accumulator;  // unused by run
  uint32_t fresh;
};

// Everything that the kernels of a call read. Passed by value.
struct AttentionCallView {
  Problem problem;
  const EntryView* entries;       // [entry_count]
  const AdvanceWork* advances;    // [advance_count]
  const FoldWork* folds;          // [fold_count] by entry, then in the caller's order
  const StateView* accumulators;  // [entry_count] of finish
  uint64_t entry_count;
  uint64_t advance_count;
  uint64_t blocks;  // of all advances
  uint64_t pairs;   // of all entries
  const uint32_t* cancel_word;
  uint32_t* cancel_seen;
};

// Tiles of one KV head.
constexpr uint64_t tiles_of(uint64_t rows, uint64_t group) {
  return (rows * group + kPairsMax - 1) / kPairsMax;
}

// Once a device is open, with its context current: whether the kernels of this build run there, and
// how much shared memory they may take.
cudaError_t prepare_kernels();

// fold.cu: loads its kernels, so that no launch does; see codec.hpp.
cudaError_t load_fold_kernels();

// advance.cu: walks all items; `walks_splits`: their kind is Walk::splits.
cudaError_t launch_advance(cudaStream_t stream, const AttentionCallView& call, bool walks_splits);
// fold.cu: folds all items into their accumulators.
cudaError_t launch_fold(cudaStream_t stream, const AttentionCallView& call);
// fold.cu: outputs of all entries from their accumulators.
cudaError_t launch_finish(cudaStream_t stream, const AttentionCallView& call);
// fold.cu: outputs of all entries from the folded sources of their items; of run.
cudaError_t launch_fold_and_finish(cudaStream_t stream, const AttentionCallView& call);

}  // namespace kvspan::cuda
