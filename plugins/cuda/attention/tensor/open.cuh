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

// Row and query head of a pair of the tile; of one that is not there those of the entry's first pair.
struct PairPlace {
  uint64_t row;
  uint32_t head;
};

template <uint32_t kPairs>
__device__ PairPlace place_of(const Opened<kPairs>& opened, const Problem& problem, uint32_t pair) {
  const uint64_t number = pair < opened.count ? opened.first_pair + pair : 0;
  const uint64_t row = divided(number, problem.group);
  return {row, opened.kv_head * problem.group + static_cast<uint32_t>(number - row * problem.group)};
}

// What ALiBi asks of a pair: where its row is in the sequence, and its slope.
template <class Pairs, uint32_t kPairs>
__device__ void lean(Pairs& pairs,
                     const Opened<kPairs>& opened,
                     const Problem& problem,
                     uint32_t pair,
                     const PairPlace& place) {
  const int64_t* const positions = opened.entry.positions;
  pairs.position[pair] = positions != nullptr && pair < opened.count
                             ? positions[place.row]
                             : static_cast<int64_t>(opened.sight.visible_end[pair]) - 1;
  pairs.slope[pair] = problem.slopes != nullptr ? problem.slopes[place.head] : 0.0f;
}

// By a warp. `Owner`: the kernel's kind of block.
template <class Owner>
class Opener {
 public:
  __device__ explicit Opener(const Owner& block) : block_(block) {}

  // Number `number` of the call's items and tiles, behind copy_near().
  __device__ void open(uint64_t number) const {
    auto& opened = block_.opened();
    const AttentionCallView& view = block_.call.view;
    const Problem& problem = block_.problem;
    const NearCall near = block_.near();
    const AdvanceWork item = item_at(near, number, view.tile_pairs);
    copy_struct(&opened.entry, reach(near, view.entries) + item.entry);
    if (threadIdx.x % 32 == 0) {
      opened.item = item;
      reach_all(near, opened.entry);
    }
    __syncwarp();
    const uint64_t tiles = tiles_on_device(opened.entry.row_count, problem.group, view.tile_pairs);
    const uint64_t place = number - opened.item.first_block;
    const uint64_t head = divided(place, tiles);
    const uint64_t first = (place - head * tiles) * view.tile_pairs;
    const uint64_t left = uint64_t{opened.entry.row_count} * problem.group - first;
    const auto count = static_cast<uint32_t>(left < view.tile_pairs ? left : view.tile_pairs);
    if (threadIdx.x % 32 == 0) {
      opened.first_pair = first;
      opened.kv_head = static_cast<uint32_t>(head);
      opened.count = count;
    }
    for (uint32_t pair = threadIdx.x % 32; pair < Owner::pairs; pair += 32) {
      see(pair, pair < count, first + pair);
    }
    __syncwarp();
    find_ranges(count);
  }

  // Numbers that not every kernel keeps for each pair of the tile that is open.
  __device__ void place_pairs() const {
    const auto& opened = block_.opened();
    auto& pairs = block_.kept().pairs;
    for (uint32_t pair = threadIdx.x % 32; pair < Owner::pairs; pair += 32) {
      const PairPlace place = place_of(opened, block_.problem, pair);
      pairs.row[pair] = place.row;
      pairs.head[pair] = place.head;
      lean(pairs, opened, block_.problem, pair, place);
    }
  }

 private:
  __device__ void see(uint32_t pair, bool there, uint64_t number) const {
    const EntryView& entry = block_.opened().entry;
    auto& all = block_.opened().sight;
    const uint64_t row = there ? divided(number, block_.problem.group) : 0;
    all.visible_end[pair] = there ? visible_end_of(entry, row) : 0;
    all.window_begin[pair] = there && entry.window_begin != nullptr ? entry.window_begin[row] : 0;
    all.suffix_mask[pair] = there && entry.suffix_mask != nullptr ? entry.suffix_mask[row] : 0;
  }

  // What some pair sees, and what every pair does.
  __device__ void find_ranges(uint32_t count) const {
    auto& opened = block_.opened();
    uint64_t seen_begin = UINT64_MAX;
    uint64_t seen_end = 0;
    uint64_t open_begin = 0;
    uint64_t open_end = UINT64_MAX;
    for (uint32_t pair = threadIdx.x % 32; pair < count; pair += 32) {
      const uint64_t begin = opened.sight.window_begin[pair];
      const uint64_t end = opened.sight.visible_end[pair];
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
      const uint64_t suffix_begin = opened.entry.token_total - opened.entry.suffix_count;
      opened.seen_begin = seen_begin < seen_end ? seen_begin : seen_end;
      opened.seen_end = seen_end;
      opened.open_begin = open_begin;
      opened.open_end =
          opened.entry.suffix_count != 0 && suffix_begin < open_end ? suffix_begin : open_end;
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

// The largest finite magnitude of a lane's values, and of those before.
__device__ inline void find_most_of(Query& query) {
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const float magnitude = fabsf(query.values[i]);
    query.most = magnitude > query.most && magnitude != INFINITY ? magnitude : query.most;
  }
}

// The same of the whole query, by its warp.
__device__ inline void find_most(Query& query) {
  find_most_of(query);
  for (uint32_t step = 16; step > 0; step /= 2) {
    query.most = fmaxf(query.most, __shfl_xor_sync(~0u, query.most, step));
  }
}

// By a warp. Zeros for a pair that is not there.
template <class K, class Owner>
__device__ Query fetch_query(const Owner& block, uint32_t pair) {
  const auto& opened = block.opened();
  const RowsView& rows = opened.entry.q;
  const uint32_t first = 8 * (threadIdx.x % 32);
  Query out{};
  if (pair < opened.count && first < K::elements(block.problem.head_size_k)) {
    const PairPlace place = place_of(opened, block.problem, pair);
    const uint8_t* const row = row_of(rows, place.row, place.head);
    fetch_eight(rows.type, row, first, out.values);
  }
  find_most(out);
  return out;
}

}  // namespace kvspan::cuda::tensor
