// SPDX-License-Identifier: Apache-2.0
// The kernel of advance and run: a block takes one tile of pairs of one item. Resumed and fresh
// items leave their states in memory; an item of run that walks all splits keeps its state and its
// accumulator in shared memory and writes outputs. Read first: kernel.hpp, tile.cuh, walk.cuh.
#include "attention/walk.cuh"
#include "attention/held.cuh"
#include "cancel.cuh"

namespace kvspan::cuda {
namespace {

constexpr uint64_t kBlocksMax = uint64_t{1} << 20;

__device__ void load_pair(const Tile& tile, uint32_t pair, uint64_t number) {
  const Problem& problem = tile.problem;
  const EntryView& entry = tile.entry;
  PairNumbers& pairs = tile.pairs;
  const uint64_t row = number / problem.group;
  const uint32_t head =
      tile.kv_head * problem.group + static_cast<uint32_t>(number % problem.group);
  pairs.row[pair] = row;
  pairs.head[pair] = head;
  pairs.visible_end[pair] = visible_end_of(entry, row);
  pairs.window_begin[pair] = entry.window_begin != nullptr ? entry.window_begin[row] : 0;
  pairs.suffix_mask[pair] = entry.suffix_mask != nullptr ? entry.suffix_mask[row] : 0;
  pairs.position[pair] = entry.positions != nullptr
                             ? entry.positions[row]
                             : static_cast<int64_t>(visible_end_of(entry, row)) - 1;
  pairs.slope[pair] = problem.slopes != nullptr ? problem.slopes[head] : 0.0f;
}

__device__ void load_queries(const Tile& tile) {
  const RowsView& rows = tile.entry.q;
  const uint32_t size = tile.problem.head_size_k;
  const uint32_t bytes = rows.type == KVSPAN_TYPE_F32 ? 4 : 2;
  for_each_element(tile.count, size, [&](uint32_t pair, uint32_t element) {
    const uint8_t* const row = row_of(rows, tile.pairs.row[pair], tile.pairs.head[pair]);
    tile.q[pair * size + element] = load_element(rows.type, row + element * bytes);
  });
}

// From the first to behind the last token that some pair may see; every thread finds the same.
__device__ void find_seen(Tile& tile) {
  tile.seen_begin = UINT64_MAX;
  tile.seen_end = 0;
  for (uint32_t pair = 0; pair < tile.count; ++pair) {
    const uint64_t begin = tile.pairs.window_begin[pair];
    const uint64_t end = tile.pairs.visible_end[pair];
    if (begin < end) {
      tile.seen_begin = begin < tile.seen_begin ? begin : tile.seen_begin;
      tile.seen_end = end > tile.seen_end ? end : tile.seen_end;
    }
  }
}

__device__ void clear(const Tile& tile, float* m, float* l, float* u) {
  if (threadIdx.x < tile.count) {
    m[threadIdx.x] = -INFINITY;
    l[threadIdx.x] = 0.0f;
  }
  const uint32_t size = tile.problem.head_size_v;
  for_each_element(
      tile.count, size, [&](uint32_t pair, uint32_t element) { u[pair * size + element] = 0.0f; });
}

__device__ uint64_t state_index(const Tile& tile, uint32_t pair) {
  return tile.pairs.row[pair] * tile.problem.q_heads + tile.pairs.head[pair];
}

__device__ void load_state(const Tile& tile, const StateView& state) {
  if (threadIdx.x < tile.count) {
    const uint64_t at = state_index(tile, threadIdx.x);
    tile.pairs.m[threadIdx.x] = state.ml[2 * at];
    tile.pairs.l[threadIdx.x] = state.ml[2 * at + 1];
  }
  const uint32_t size = tile.problem.head_size_v;
  for_each_element(tile.count, size, [&](uint32_t pair, uint32_t element) {
    tile.u[pair * size + element] = state.u[state_index(tile, pair) * size + element];
  });
}

__device__ void store_state(const Tile& tile, const StateView& state) {
  if (threadIdx.x < tile.count) {
    const uint64_t at = state_index(tile, threadIdx.x);
    state.ml[2 * at] = tile.pairs.m[threadIdx.x];
    state.ml[2 * at + 1] = tile.pairs.l[threadIdx.x];
  }
  const uint32_t size = tile.problem.head_size_v;
  for_each_element(tile.count, size, [&](uint32_t pair, uint32_t element) {
    state.u[state_index(tile, pair) * size + element] = tile.u[pair * size + element];
  });
}

// The part of [first, end) that is worth walking: what is seen, begun on the granule.
__device__ void walk_seen(const Tile& tile, uint64_t first, uint64_t end) {
  const uint64_t begin = tile.seen_begin / kGranuleTokens * kGranuleTokens;
  walk(tile, first > begin ? first : begin, end < tile.seen_end ? end : tile.seen_end);
}

__device__ void fold_split(const Tile& tile) {
  PairNumbers& pairs = tile.pairs;
  const uint32_t thread = threadIdx.x;
  if (thread < tile.count) {
    pairs.fold[thread] = fold_of(pairs.fold_m[thread], pairs.m[thread]);
    pairs.fold_m[thread] = pairs.fold[thread].m;
    pairs.fold_l[thread] = folded(pairs.fold[thread], pairs.fold_l[thread], pairs.l[thread]);
  }
  __syncthreads();
  const uint32_t size = tile.problem.head_size_v;
  for_each_element(tile.count, size, [&](uint32_t pair, uint32_t element) {
    const uint32_t at = pair * size + element;
    tile.fold_u[at] = folded(pairs.fold[pair], tile.fold_u[at], tile.u[at]);
  });
  __syncthreads();
}

__device__ void write_outputs(const Tile& tile) {
  PairNumbers& pairs = tile.pairs;
  const Problem& problem = tile.problem;
  const EntryView& entry = tile.entry;
  const uint32_t thread = threadIdx.x;
  if (thread < tile.count) {
    const uint32_t head = pairs.head[thread];
    const float* const sink = problem.sinks != nullptr ? problem.sinks + head : nullptr;
    pairs.finish[thread] = finish_of(pairs.fold_m[thread], pairs.fold_l[thread], sink);
    if (entry.lse != nullptr) {
      entry.lse[state_index(tile, thread)] = pairs.finish[thread].lse;
    }
  }
  __syncthreads();
  const uint32_t bytes = entry.out.type == KVSPAN_TYPE_F32 ? 4 : 2;
  const uint32_t size = problem.head_size_v;
  for_each_element(tile.count, size, [&](uint32_t pair, uint32_t element) {
    uint8_t* const out = row_of(entry.out, pairs.row[pair], pairs.head[pair]);
    const float value = finished(pairs.finish[pair], tile.fold_u[pair * size + element]);
    store_element(entry.out.type, value, out + element * bytes);
  });
}

// All splits of the entry, one after another.
__device__ void walk_splits(const Tile& tile) {
  clear(tile, tile.pairs.fold_m, tile.pairs.fold_l, tile.fold_u);
  const uint64_t each = tile.entry.split_tokens;
  uint64_t at = tile.seen_begin < tile.seen_end ? tile.seen_begin / each * each : tile.seen_end;
  while (at < tile.seen_end) {
    const uint64_t left = tile.seen_end - at;
    const uint64_t end = at + (left < each ? left : each);
    clear(tile, tile.pairs.m, tile.pairs.l, tile.u);
    __syncthreads();
    walk_seen(tile, at, end);
    fold_split(tile);
    at = end;
  }
  __syncthreads();
  write_outputs(tile);
}

__device__ void walk_item(const Tile& tile, const AdvanceWork& item) {
  if (item.walk == Walk::splits) {
    walk_splits(tile);
    return;
  }
  const bool fresh = item.walk == Walk::fresh;
  const bool nothing = tile.seen_begin >= tile.seen_end || item.first >= tile.seen_end ||
                       item.end <= tile.seen_begin;
  if (nothing && !fresh) {
    return;
  }
  if (fresh) {
    clear(tile, tile.pairs.m, tile.pairs.l, tile.u);
  } else {
    load_state(tile, item.state);
  }
  __syncthreads();
  if (!nothing) {
    walk_seen(tile, item.first, item.end);
  }
  store_state(tile, item.state);
}

// What a block keeps in static shared memory.
struct Kept {
  EntryView entry;  // a copy: the original lies in host memory
  PairNumbers pairs;
  GranuleRows rows;
};

static_assert(sizeof(Kept) <= kWalkStaticBytes);

__device__ void advance_block(const HeldCall& held,
                              uint64_t block,
                              Kept& kept,
                              float* floats) {
  const uint32_t most = held.view.tile_pairs;
  const AdvanceWork item = item_at(held, block, most);
  const Problem& problem = held.view.problem;
  if (threadIdx.x == 0) {
    kept.entry = reach(held, held.view.entries)[item.entry];
    reach_all(held, kept.entry);
    kept.rows.span.token_count = 0;  // none found yet
  }
  __syncthreads();
  const EntryView& entry = kept.entry;
  const uint64_t tiles = tiles_of(entry.row_count, problem.group, most);
  const uint64_t first_pair = (block - item.first_block) % tiles * most;
  const uint64_t left = uint64_t{entry.row_count} * problem.group - first_pair;
  const bool latent = problem.v_in_k != 0;
  float* const k = floats;
  float* const v = k + kGranuleTokens * (problem.head_size_k + kColumnPad);
  float* const q = v + (latent ? 0 : kGranuleTokens * problem.head_size_v);
  float* const u = q + most * problem.head_size_k;
  float* const weights = u + most * problem.head_size_v;
  float* const stage = weights + most * kGranuleTokens;
  Tile tile{held,
            problem,
            entry,
            static_cast<uint32_t>((block - item.first_block) / tiles),
            static_cast<uint32_t>(left < most ? left : most),
            0,
            0,
            kept.pairs,
            kept.rows,
            k,
            latent ? k : v,
            latent ? problem.head_size_k + kColumnPad : problem.head_size_v,
            q,
            u,
            weights,
            reinterpret_cast<uint8_t*>(stage),
            stage + kGranuleTokens * stage_stride(problem) / 4};
  if (threadIdx.x < tile.count) {
    load_pair(tile, threadIdx.x, first_pair + threadIdx.x);
  }
  __syncthreads();
  find_seen(tile);
  load_queries(tile);
  walk_item(tile, item);
  __syncthreads();  // the next tile overwrites all of it
}

__global__ void __launch_bounds__(kWalkThreads)
    advance_kernel(const __grid_constant__ HeldCall held) {
  extern __shared__ float4 shared[];
  __shared__ Kept kept;
  if (block_is_cancelled(held.view.cancel, blockIdx.x)) {
    return;
  }
  for (uint64_t block = blockIdx.x; block < held.view.blocks; block += gridDim.x) {
    advance_block(held, block, kept, reinterpret_cast<float*>(shared));
  }
}

}  // namespace

uint32_t walk_tile_pairs(const Problem& problem, const Card& card) {
  uint32_t pairs = kPairsMax;
  while (pairs != 0 &&
         4 * tile_floats(problem, true, pairs) + kWalkStaticBytes > card.shared_bytes) {
    pairs /= 2;
  }
  return pairs;
}

cudaError_t prepare_kernels(const Card& card) {
  if (const cudaError_t bad = prepare_tensor_kernels(card)) {
    return bad;
  }
  Problem largest{};
  largest.head_size_k = kHeadSizeMax;
  largest.head_size_v = kHeadSizeMax;
  const uint32_t wanted = 4 * tile_floats(largest, true, kPairsMax);
  const uint32_t there = card.shared_bytes - kWalkStaticBytes;
  return cudaFuncSetAttribute(advance_kernel,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(wanted < there ? wanted : there));
}

cudaError_t launch_advance(cudaStream_t stream, const HeldCall& call, bool walks_splits) {
  const uint64_t blocks = call.view.blocks;
  const auto grid = static_cast<uint32_t>(blocks < kBlocksMax ? blocks : kBlocksMax);
  const uint32_t bytes = 4 * tile_floats(call.view.problem, walks_splits, call.view.tile_pairs);
  advance_kernel<<<grid, kWalkThreads, bytes, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace kvspan::cuda
