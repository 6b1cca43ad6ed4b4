// SPDX-License-Identifier: Apache-2.0
// The kernel of run and advance on tensor cores: a block takes one tile of pairs of one item.
// Read first: block.cuh. Device code only.
#pragma once

#include "attention/held.cuh"
#include "attention/tensor/instances.hpp"
#include "attention/tensor/load.cuh"
#include "attention/tensor/scores.cuh"
#include "attention/tensor/values.cuh"
#include "cancel.cuh"

#include <type_traits>

namespace kvspan::cuda::tensor {

template <class K, class V, uint32_t kTiles>
class Kernel {
 public:
  using Owner = Block<K, V, kTiles>;
  static constexpr uint32_t pairs = Owner::pairs;

  __device__ Kernel(const HeldCall& call, uint8_t* shared)
      : call_(call.view), block_{call, call.view.problem, shared}, warp_(threadIdx.x / 32) {}

  __device__ void run() const {
    init();
    open_item(blockIdx.x);
    if (warp_ < Owner::Warps::first_summer) {
      ptx::set_registers<Owner::Warps::scorer_registers, Owner::Warps::registers>();
      Scorer<K, V, kTiles>(block_).walk();
    } else if (warp_ < Owner::Warps::first_loader) {
      ptx::set_registers<Owner::Warps::summer_registers, Owner::Warps::registers>();
      Summer<K, V, kTiles>(block_).walk();
    } else {
      ptx::set_registers<Owner::Warps::loader_registers, Owner::Warps::registers>();
      Loader<K, V, kTiles>(block_).walk();
    }
  }

 private:
  __device__ void init() const {
    typename Owner::Numbers& kept = block_.kept();
    if (threadIdx.x < kSlotsMax) {
      ptx::init(&kept.k_full[threadIdx.x], 32);
      ptx::init(&kept.v_full[threadIdx.x], 32);
      ptx::init(&kept.k_empty[threadIdx.x], Owner::Places::k_readers);
      ptx::init(&kept.v_empty[threadIdx.x], kSumWarps);
    }
    if (threadIdx.x < Owner::Numbers::weight_slots) {
      ptx::init(&kept.p_full[threadIdx.x], kTokenTiles);
      ptx::init(&kept.p_empty[threadIdx.x], kSumWarps);
    }
    if (threadIdx.x < Owner::Numbers::top_slots) {
      ptx::init(&kept.tops_full[threadIdx.x], kTokenTiles);
    }
    ptx::fence_init();
  }

  __device__ void open_item(uint64_t number) const {
    typename Owner::Numbers& kept = block_.kept();
    const Problem& problem = call_.problem;
    if (warp_ == Owner::Warps::first_loader) {
      block_.copy_near();
      const NearCall near = block_.near();
      const AdvanceWork item = item_at(near, number, call_.tile_pairs);
      copy_struct(&kept.entry, reach(near, call_.entries) + item.entry);
      if (threadIdx.x % 32 == 0) {
        kept.item = item;
        reach_all(near, kept.entry);
      }
      __syncwarp();
      const uint64_t tiles =
          tiles_on_device(kept.entry.row_count, problem.group, call_.tile_pairs);
      const uint64_t place = number - kept.item.first_block;
      const uint64_t head = divided(place, tiles);
      const uint64_t first = (place - head * tiles) * call_.tile_pairs;
      const uint64_t left = uint64_t{kept.entry.row_count} * problem.group - first;
      const auto kv_head = static_cast<uint32_t>(head);
      const auto count = static_cast<uint32_t>(left < call_.tile_pairs ? left : call_.tile_pairs);
      for (uint32_t pair = threadIdx.x % 32; pair < pairs; pair += 32) {
        load_pair(pair, pair < count, first + pair, kv_head);
      }
      __syncwarp();
      find_ranges(count);
      if (threadIdx.x % 32 == 0) {
        kept.kv_head = kv_head;
        kept.count = count;
      }
    }
    __syncthreads();
    if (warp_ >= Owner::Warps::first_loader) {
      return;  // rows can come while queries do
    }
    for (uint32_t pair = warp_; pair < pairs; pair += Owner::Warps::first_loader) {
      store_query(pair, fetch_query(pair));
    }
    ptx::sync(kQueryBarrier, 32 * Owner::Warps::first_loader);
  }

  __device__ void load_pair(uint32_t pair, bool there, uint64_t number, uint32_t kv_head) const {
    const Problem& problem = call_.problem;
    const EntryView& entry = block_.kept().entry;
    PairsOf<pairs>& all = block_.kept().pairs;
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
    typename Owner::Numbers& kept = block_.kept();
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

  // A query, of which lane i has elements 8 i to 8 i + 7, and its largest finite magnitude.
  struct Query {
    float values[8];
    float most;
  };

  __device__ Query fetch_query(uint32_t pair) const {
    typename Owner::Numbers& kept = block_.kept();
    const RowsView& rows = kept.entry.q;
    const uint32_t first = 8 * (threadIdx.x % 32);
    Query out{};
    if (pair < kept.count && first < K::elements(call_.problem.head_size_k)) {
      const uint8_t* const row = row_of(rows, kept.pairs.row[pair], kept.pairs.head[pair]);
      fetch_eight(rows.type, row, first, out.values);
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const float magnitude = fabsf(out.values[i]);
      out.most = magnitude > out.most && magnitude != INFINITY ? magnitude : out.most;
    }
    for (uint32_t step = 16; step > 0; step /= 2) {
      out.most = fmaxf(out.most, __shfl_xor_sync(~0u, out.most, step));
    }
    return out;
  }

  // Elements from `first` on: of 16 bits in one load where the row is aligned for it.
  __device__ static void fetch_eight(kvspan_type_t type,
                                     const uint8_t* row,
                                     uint32_t first,
                                     float (&out)[8]) {
    const uint32_t bytes = type == KVSPAN_TYPE_F32 ? 4 : 2;
    const uint8_t* const from = row + first * bytes;
    if (bytes == 2 && (reinterpret_cast<uint64_t>(from) & 15) == 0) {
      const uint4 four = *reinterpret_cast<const uint4*>(from);
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        const auto bits = static_cast<uint16_t>(words[i / 2] >> 16 * (i % 2));
        out[i] = type == KVSPAN_TYPE_F16 ? __half2float(__ushort_as_half(bits)) : f32_from_bf16(bits);
      }
      return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      out[i] = load_element(type, from + i * bytes);
    }
  }

  // A warp: a query as operands, divided by a power of two that brings its largest element near 1, so
  // that it fits 16 bits whatever its size. An f32 query becomes two numbers an element.
  __device__ void store_query(uint32_t pair, const Query& query) const {
    using Places = typename Owner::Places;
    typename Owner::Numbers& kept = block_.kept();
    const uint32_t lane = threadIdx.x % 32;
    uint8_t* const to = block_.q() + pair * Places::q_stride;
    const int32_t biased = static_cast<int32_t>(__float_as_uint(query.most) >> 23);
    const int32_t exponent = query.most == 0.0f ? 0 : max(-120, min(120, biased - 127));
    const float down = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23);
    if (lane == 0) {
      kept.pairs.q_scale[pair] =
          __fmul_rn(call_.problem.scale, __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23));
    }
    float stored = 0.0f;
    if (8 * lane < K::elements(call_.problem.head_size_k)) {
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        uint8_t* const at = to + 2 * query_place<K>(8 * lane + i);
        stored = __fadd_rn(stored, store_element_of(at, __fmul_rn(query.values[i], down)));
      }
    }
    if constexpr (KOperand<K>::scales_products) {  // four lanes have a block of 32 elements
      stored = __fadd_rn(stored, __shfl_xor_sync(~0u, stored, 1));
      stored = __fadd_rn(stored, __shfl_xor_sync(~0u, stored, 2));
      if (lane % 4 == 0 && 8 * lane < K::elements(call_.problem.head_size_k)) {
        kept.pairs.q_bias[lane / 4][pair] = __fmul_rn(-KOperand<K>::bias, stored);
      }
    }
  }

  // Returns what the operands amount to.
  __device__ float store_element_of(uint8_t* at, float value) const {
    using Places = typename Owner::Places;
    using Number = std::conditional_t<K::is_bf16, __nv_bfloat16, __half>;
    const Number high = rounded<Number>(value);
    *reinterpret_cast<Number*>(at) = high;
    const float first = static_cast<float>(high);
    if (Places::q_parts != 2 || block_.q_parts() != 2) {
      return first;
    }
    const float rest = value - first;
    const Number low = rounded<Number>(isfinite(rest) ? rest : 0.0f);  // else the first says it
    *reinterpret_cast<Number*>(at + pairs * Places::q_stride) = low;
    return __fadd_rn(first, static_cast<float>(low));
  }

  template <class Number>
  __device__ static Number rounded(float value) {
    if constexpr (std::is_same_v<Number, __nv_bfloat16>) {
      return __float2bfloat16_rn(value);
    } else {
      return __float2half_rn(value);
    }
  }

  const AttentionCallView& call_;
  const Owner block_;
  const uint32_t warp_;
};

template <class K, class V, uint32_t kTiles>
__global__ void __launch_bounds__((Roles<K, V, kTiles>::threads), 1)
    tensor_kernel(const __grid_constant__ HeldCall call) {
  extern __shared__ __align__(128) uint8_t shared[];
  ptx::let_next_kernel_start();  // run_fold.cu waits for our end by itself
  if (block_is_cancelled(call.view.cancel, blockIdx.x)) {
    return;
  }
  Kernel<K, V, kTiles>(call, shared).run();
}

template <class K, class V, uint32_t kTiles>
cudaError_t launch_tiles(cudaStream_t stream, const HeldCall& call) {
  tensor_kernel<K, V, kTiles>
      <<<static_cast<uint32_t>(call.view.blocks),
         Roles<K, V, kTiles>::threads,
         Layout<K, V, kTiles>::bytes,
         stream>>>(call);
  return cudaGetLastError();
}

template <class K, class V, uint32_t kTiles>
cudaError_t prepare_tiles() {
  return cudaFuncSetAttribute(tensor_kernel<K, V, kTiles>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(Layout<K, V, kTiles>::bytes));
}

// Instances of one pair of sides, by the tiles of 8 pairs that a block takes. Those that load any
// type have room for three.
template <class K, class V, bool kAll>
struct Sized {
  static cudaError_t launch(cudaStream_t stream, const HeldCall& call) {
    if constexpr (kAll) {
      switch (call.view.tile_pairs / 8) {
        case 1:
          return launch_tiles<K, V, 1>(stream, call);
        case 6:
          return launch_tiles<K, V, 6>(stream, call);
        case 8:
          return launch_tiles<K, V, 8>(stream, call);
        default:
          break;
      }
    }
    return launch_tiles<K, V, 3>(stream, call);
  }

  static cudaError_t prepare() {
    cudaError_t bad = prepare_tiles<K, V, 3>();
    if constexpr (kAll) {
      bad = bad != cudaSuccess ? bad : prepare_tiles<K, V, 1>();
      bad = bad != cudaSuccess ? bad : prepare_tiles<K, V, 6>();
      bad = bad != cudaSuccess ? bad : prepare_tiles<K, V, 8>();
    }
    return bad;
  }
};

template <class K, class V, bool kAll>
constexpr Instance instance_of() {
  return {Sized<K, V, kAll>::launch, Sized<K, V, kAll>::prepare};
}

template <kvspan_type_t kK, kvspan_type_t kV>
constexpr Family family_of() {
  return {kK,
          kV,
          instance_of<Fixed<kK, 128>, Fixed<kV, 128>, true>(),
          instance_of<Fixed<kK, 256>, Fixed<kV, 256>, true>()};
}

template <bool kKBf16, bool kVBf16>
constexpr Instance loaded_of() {
  return instance_of<Loaded<kKBf16>, Loaded<kVBf16>, false>();
}

}  // namespace kvspan::cuda::tensor
