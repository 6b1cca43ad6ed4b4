// SPDX-License-Identifier: Apache-2.0
// How a block begins: which item is its own, what its pairs are and see, and their queries.
// Device code only.
#pragma once

#include "attention/held.cuh"
#include "attention/tensor/block.cuh"
#include "divide.cuh"
#include "plane.cuh"
#include "typed_block.cuh"

namespace kvspan::cuda::tensor {

// By a warp. `Owner`: the kernel's kind of block.
template <class Owner>
class Opener {
 public:
  __device__ explicit Opener(const Owner& block) : block_(block) {}

  // Item and pairs of block `number` of the grid.
  __device__ void open(uint64_t number) const {
    auto& kept = block_.kept();
    const AttentionCallView& view = block_.call.view;
    const Problem& problem = block_.problem;
    block_.copy_near();
    const NearCall near = block_.near();
    const AdvanceWork item = item_at(near, number, view.tile_pairs);
    copy_struct(&kept.entry, reach(near, view.entries) + item.entry);
    if (threadIdx.x % 32 == 0) {
      kept.item = item;
      reach_all(near, kept.entry);
    }
    __syncwarp();
    const uint64_t tiles = tiles_on_device(kept.entry.row_count, problem.group, view.tile_pairs);
    const uint64_t place = number - kept.item.first_block;
    const uint64_t head = divided(place, tiles);
    const uint64_t first = (place - head * tiles) * view.tile_pairs;
    const uint64_t left = uint64_t{kept.entry.row_count} * problem.group - first;
    const auto kv_head = static_cast<uint32_t>(head);
    const auto count = static_cast<uint32_t>(left < view.tile_pairs ? left : view.tile_pairs);
    for (uint32_t pair = threadIdx.x % 32; pair < Owner::pairs; pair += 32) {
      load_pair(pair, pair < count, first + pair, kv_head);
    }
    __syncwarp();
    find_ranges(count);
    if (threadIdx.x % 32 == 0) {
      kept.kv_head = kv_head;
      kept.count = count;
    }
  }

 private:
  __device__ void load_pair(uint32_t pair, bool there, uint64_t number, uint32_t kv_head) const {
    const Problem& problem = block_.problem;
    const EntryView& entry = block_.kept().entry;
    auto& all = block_.kept().pairs;
    const uint64_t row = there ? divided(number, problem.group) : 0;
    const uint32_t head =
        kv_head * problem.group + static_cast<uint32_t>(there ? number - row * problem.group : 0);
    all.row[pair] = row;
    all.head[pair] = head;
    all.visible_end[pair] = there ? entry.visible_end[row] : 0;
    all.window_begin[pair] = there && entry.window_begin != nullptr ? entry.window_begin[row] : 0;
    all.suffix_mask[pair] = there && entry.suffix_mask != nullptr ? entry.suffix_mask[row] : 0;
    all.position[pair] = !there                       ? 0
                         : entry.positions != nullptr ? entry.positions[row]
                                                      : static_cast<int64_t>(entry.visible_end[row]) - 1;
    all.slope[pair] = problem.slopes != nullptr ? problem.slopes[head] : 0.0f;
  }

  // What some pair sees, and what every pair does.
  __device__ void find_ranges(uint32_t count) const {
    auto& kept = block_.kept();
    uint64_t seen_begin = UINT64_MAX;
    uint64_t seen_end = 0;
    uint64_t open_begin = 0;
    uint64_t open_end = UINT64_MAX;
    for (uint32_t pair = threadIdx.x % 32; pair < count; pair += 32) {
      const uint64_t begin = kept.pairs.window_begin[pair];
      const uint64_t end = kept.pairs.visible_end[pair];
      if (begin < end) {
        seen_begin = begin < seen_begin ? begin : seen_begin;
        seen_end = end > seen_end ? end : seen_end;
      }
      open_begin = begin > open_begin ? begin : open_begin;
      open_end = end < open_end ? end : open_end;
    }
    seen_begin = ptx::min_of_warp(seen_begin);
    seen_end = ~ptx::min_of_warp(~seen_end);
    open_begin = ~ptx::min_of_warp(~open_begin);
    open_end = ptx::min_of_warp(open_end);
    if (threadIdx.x % 32 == 0) {
      const uint64_t suffix_begin = kept.entry.token_total - kept.entry.suffix_count;
      kept.seen_begin = seen_begin < seen_end ? seen_begin : seen_end;
      kept.seen_end = seen_end;
      kept.open_begin = open_begin;
      kept.open_end = kept.entry.suffix_count != 0 && suffix_begin < open_end ? suffix_begin : open_end;
    }
  }

  const Owner& block_;
};

__device__ inline float power_of_two(int32_t exponent) {
  return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
}

// A query, of which lane i has elements 8 i to 8 i + 7, and its largest finite magnitude.
struct Query {
  float values[8];
  float most;

  // Divided by two to this, its largest element is about 1.
  [[nodiscard]] __device__ int32_t exponent() const {
    const auto biased = static_cast<int32_t>(__float_as_uint(most) >> 23);
    return most == 0.0f ? 0 : max(-120, min(120, biased - 127));
  }
};

// Eight elements of 16 bits.
__device__ inline void widen(kvspan_type_t type, const uint4& raw, float (&out)[8]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const auto bits = static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2));
    out[i] = type == KVSPAN_TYPE_F16 ? __half2float(__ushort_as_half(bits)) : f32_from_bf16(bits);
  }
}

// Elements from `first` on: of 16 bits in one load where the row is aligned for it.
__device__ inline void fetch_eight(kvspan_type_t type,
                                   const uint8_t* row,
                                   uint32_t first,
                                   float (&out)[8]) {
  const uint32_t bytes = type == KVSPAN_TYPE_F32 ? 4 : 2;
  const uint8_t* const from = row + first * bytes;
  if (bytes == 2 && (reinterpret_cast<uint64_t>(from) & 15) == 0) {
    widen(type, *reinterpret_cast<const uint4*>(from), out);
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    out[i] = load_element(type, from + i * bytes);
  }
}

// By a warp: the largest finite magnitude of the query's values.
__device__ inline void find_most(Query& query) {
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const float magnitude = fabsf(query.values[i]);
    query.most = magnitude > query.most && magnitude != INFINITY ? magnitude : query.most;
  }
  for (uint32_t step = 16; step > 0; step /= 2) {
    query.most = fmaxf(query.most, __shfl_xor_sync(~0u, query.most, step));
  }
}

// By a warp. Zeros for a pair that is not there.
template <class K, class Owner>
__device__ Query fetch_query(const Owner& block, uint32_t pair) {
  const auto& kept = block.kept();
  const RowsView& rows = kept.entry.q;
  const uint32_t first = 8 * (threadIdx.x % 32);
  Query out{};
  if (pair < kept.count && first < K::elements(block.problem.head_size_k)) {
    const uint8_t* const row = row_of(rows, kept.pairs.row[pair], kept.pairs.head[pair]);
    fetch_eight(rows.type, row, first, out.values);
  }
  find_most(out);
  return out;
}

}  // namespace kvspan::cuda::tensor
