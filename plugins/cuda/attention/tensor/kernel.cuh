// SPDX-License-Identifier: Apache-2.0
// The kernel of run and advance on tensor cores: a block takes one tile of pairs of one item.
// Read first: block.cuh. Device code only.
#pragma once

#include "attention/tensor/instances.hpp"
#include "attention/tensor/load.cuh"
#include "attention/tensor/open.cuh"
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
      Loader<K, V, Owner>(block_).walk();
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
    if (warp_ == Owner::Warps::first_loader) {
      Opener<Owner>(block_).open(number);
    }
    __syncthreads();
    if (warp_ >= Owner::Warps::first_loader) {
      return;  // rows can come while queries do
    }
    for (uint32_t pair = warp_; pair < pairs; pair += Owner::Warps::first_loader) {
      store_query(pair, fetch_query<K>(block_, pair));
    }
    ptx::sync(kQueryBarrier, 32 * Owner::Warps::first_loader);
  }

  // A warp: a query as operands, divided by a power of two that brings its largest element near 1, so
  // that it fits 16 bits whatever its size. One that needs two parts becomes two numbers an element.
  __device__ void store_query(uint32_t pair, const Query& query) const {
    using Places = typename Owner::Places;
    typename Owner::Numbers& kept = block_.kept();
    const uint32_t lane = threadIdx.x % 32;
    uint8_t* const to = block_.q() + pair * Places::q_stride;
    const float down = power_of_two(-query.exponent());
    if (lane == 0) {
      kept.pairs.q_scale[pair] = __fmul_rn(call_.problem.scale, power_of_two(query.exponent()));
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
        kept.q_bias[lane / 4][pair] = __fmul_rn(-KOperand<K>::bias, stored);
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
