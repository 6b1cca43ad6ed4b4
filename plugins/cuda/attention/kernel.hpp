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

#include "kvspan/sdk/plane_view.hpp"
#include "kvspan/types.h"

#include "cancel.hpp"
#include "card.hpp"

#include <cstdint>
#include <cuda_runtime_api.h>

namespace kvspan::cuda {

// Tokens that are dequantised, scored and summed together; caps.span_granule.
inline constexpr uint32_t kGranuleTokens = 32;        // f32 kernel: one a lane
inline constexpr uint32_t kTensorPairsMax = 64;       // of a tile of the tensor-core kernel
inline constexpr uint32_t kWidePairs = 128;           // of a tile of the kernel for wide rows
inline constexpr uint32_t kTensorGranuleTokens = 64;  // both of these
inline constexpr uint32_t kPairsMax = 16;             // of a tile of the f32 kernel
inline constexpr uint32_t kHeadSizeMax = 256;         // elements, K and V side

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
  const SpanView* spans;        // [span_count], ascending
  const uint64_t* visible_end;  // [row] tokens, or nullptr: visible_first + row, see visible_end_of
  const uint64_t* window_begin;  // [row] tokens, or nullptr
  const uint64_t* suffix_mask;   // [row], or nullptr
  const int64_t* positions;      // [row], or nullptr
  uint32_t span_count;
  uint32_t row_count;
  uint32_t suffix_count;
  uint64_t visible_first;
  uint64_t token_total;
  uint64_t split_tokens;
  RowsView q;           // [row, q_head, head_size_k]
  RowsView out;         // [row, q_head, head_size_v]
  float* lse;           // [row, q_head], or nullptr
  uint64_t first_pair;  // pairs of the entries before: rows * q_heads
  uint64_t first_fold;  // FoldWork of the entries before
  uint64_t fold_count;
  // Of run, whose items are not listed: split run_first + i has the i-th state.
  uint64_t first_block;  // blocks of the entries before
  uint8_t* run_states;   // in the workspace; where run_count is 0, the accumulator or nullptr
  uint64_t run_stride;   // bytes from a state to the next
  uint64_t run_ml;       // bytes from a state's u to its {m, l}
  uint64_t run_first;
  uint64_t run_count;  // splits that go side by side; 0: one after another
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
  StateView state;  // Walk::splits of the tensor-core kernel: the accumulator, written only
  uint64_t first;   // tokens
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
  const EntryView* entries;     // [entry_count]
  const AdvanceWork* advances;  // [advance_count], or nullptr: of run
  const uint32_t* order;  // [entry_count] of run: entries by first_block; nullptr: as they are
  const FoldWork* folds;  // [fold_count] of fold, by entry, then in the caller's order
  const StateView* accumulators;  // [entry_count] of finish
  uint64_t entry_count;
  uint64_t advance_count;
  uint64_t blocks;      // of all advances
  uint64_t pairs;       // of all entries
  uint32_t tile_pairs;  // of a tile at most
  uint32_t tiled;       // 1: the spans of all entries are tiles of 64 tokens, see is_tiled
  Cancel cancel;
};

// A call as a kernel gets it. Each descriptor that is read from host memory costs a trip over the
// link, which takes ten times as long while pages are streamed and slows those: few travel in the
// arguments, more are first stored in the queue's room by a kernel of their own. reach() (held.cuh)
// finds them.
inline constexpr uint32_t kHeldBytes = 3584;  // with the rest below 4 KiB, which launches fastest

struct HeldCall {
  AttentionCallView view;
  const uint8_t* from;  // of the first byte held
  const uint8_t* room;  // where they were stored; nullptr: they are in `held`
  uint32_t bytes;       // 0: none
  alignas(16) uint8_t held[kHeldBytes];
};

static_assert(sizeof(HeldCall) <= 4096);

// held.cu: `bytes` of the host, read before this returns, to the device's `room` (16-byte aligned,
// with room for whole units of 16).
cudaError_t launch_store(cudaStream_t stream, uint8_t* room, const uint8_t* from, uint32_t bytes);
cudaError_t load_store_kernels();

// Tiles of one KV head.
constexpr uint64_t tiles_of(uint64_t rows, uint64_t group, uint32_t tile_pairs) {
  return (rows * group + tile_pairs - 1) / tile_pairs;
}

// Whether queries are more than one operand holds: f32 ones, and f16 ones where operands are bf16.
constexpr bool needs_two_parts(bool operands_are_bf16, kvspan_type_t q_type) {
  return q_type == KVSPAN_TYPE_F32 || (operands_are_bf16 && q_type == KVSPAN_TYPE_F16);
}

// Once a device is open, with its context current: whether the kernels of this build run there, and
// how much shared memory they may take.
cudaError_t prepare_kernels(const Card& card);

// fold.cu, run_fold.cu: load their kernels, so that no launch does; see codec.hpp.
cudaError_t load_fold_kernels();
cudaError_t load_run_fold_kernel();

// advance.cu, f32: walks all items; `walks_splits`: their kind is Walk::splits.
cudaError_t launch_advance(cudaStream_t stream, const HeldCall& call, bool walks_splits);
// Pairs of a tile there that the card has room for, a power of two; 0: of this type and head size
// there is none.
uint32_t walk_tile_pairs(const Problem& problem, const Card& card);
// tensor/choose.cpp: the same on tensor cores; by the kernel for wide rows where tiles are
// kWidePairs.
cudaError_t launch_tensor_advance(cudaStream_t stream, const HeldCall& call, const Card& card);
cudaError_t prepare_tensor_kernels(const Card& card);
// Whether tensor cores of this card take these types and head sizes.
bool has_tensor_kernel(const Problem& problem, const Card& card);
// Whether there is a kernel for wide rows of these types and head sizes, and queries of that type.
bool has_wide_kernel(const Problem& problem, kvspan_type_t q_type, const Card& card);
// Pairs of a tile there, for entries of at most `pairs` pairs a KV head with queries of that type.
// There is a tensor kernel for them.
uint32_t tensor_tile_pairs(const Problem& problem,
                           uint64_t pairs,
                           kvspan_type_t q_type,
                           const Card& card);
// fold.cu: folds all items into their accumulators.
cudaError_t launch_fold(cudaStream_t stream, const HeldCall& call);
// fold.cu: outputs of all entries from their accumulators.
cudaError_t launch_finish(cudaStream_t stream, const HeldCall& call);
// run_fold.cu: outputs of all entries from the folded states of their splits, behind the kernel
// that made them.
cudaError_t launch_fold_and_finish(cudaStream_t stream, const HeldCall& call, const Card& card);

}  // namespace kvspan::cuda
