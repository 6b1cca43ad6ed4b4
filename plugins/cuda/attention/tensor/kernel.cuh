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
      Loader<K, V, Owner> loader(block_);
      loader.walk();
      loader.end();
    }
  }

 private:
  __device__ void init() const {
    typename Owner::Numbers& kept = block_.kept();
    if (threadIdx.x < kSlotsMax) {
      ptx::init(&kept.k_full[threadIdx.x], 32);
      ptx::init(&kept.v_full[threadIdx.x], 32);
      ptx::init(&kept.k_empty[threadIdx.x], Owner::Places::k_readers * ptx::kWarpArrivals);
      ptx::init(&kept.v_empty[threadIdx.x], kSumWarps * ptx::kWarpArrivals);
    }
    if (threadIdx.x < Owner::Numbers::weight_slots) {
      ptx::init(&kept.p_full[threadIdx.x], kTokenTiles * ptx::kWarpArrivals);
      ptx::init(&kept.p_empty[threadIdx.x], kSumWarps * ptx::kWarpArrivals);
    }
    if (threadIdx.x < Owner::Numbers::top_slots) {
      ptx::init(&kept.tops_full[threadIdx.x], kTokenTiles * ptx::kWarpArrivals);
    }
    ptx::fence_init();
  }

  __device__ void open_item(uint64_t number) const {
    if (warp_ == Owner::Warps::first_loader) {
      block_.copy_near();
      const Opener<Owner> opener(block_);
      opener.open(number);
      opener.place_pairs();
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
  if constexpr (ptx::kShared == K::shared_max) {  // elsewhere nobody launches it
    extern __shared__ __align__(128) uint8_t shared[];
    ptx::let_next_kernel_start();  // run_fold.cu waits for our end by itself
    if (block_is_cancelled(call.view.cancel, blockIdx.x)) {
      return;
    }
    Kernel<K, V, kTiles>(call, shared).run();
  }
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

// Instances of one pair of sides, by the tiles of 8 pairs that a block takes: those that there is
// room for. Those that load any type have it for three only.
template <class K, class V, bool kAll>
struct Sized {
  template <uint32_t kTiles>
  static constexpr bool has = (kAll || kTiles == 3) && Layout<K, V, kTiles>::fits;

  static constexpr uint32_t tiles = (has<1> ? 1u << 1 : 0) | (has<3> ? 1u << 3 : 0) |
                                    (has<6> ? 1u << 6 : 0) | (has<8> ? 1u << 8 : 0);

  // Calls visit(number of tiles) for each instance until one is not a success.
  template <class Visit>
  static cudaError_t for_each(Visit&& visit) {
    cudaError_t bad = cudaSuccess;
    const auto one = [&]<uint32_t kTiles>(std::integral_constant<uint32_t, kTiles> number) {
      if constexpr (has<kTiles>) {
        bad = bad != cudaSuccess ? bad : visit(number);
      }
    };
    one(std::integral_constant<uint32_t, 1>());
    one(std::integral_constant<uint32_t, 3>());
    one(std::integral_constant<uint32_t, 6>());
    one(std::integral_constant<uint32_t, 8>());
    return bad;
  }

  static cudaError_t launch(cudaStream_t stream, const HeldCall& call) {
    return for_each([&](auto number) {
      return call.view.tile_pairs == 8 * number() ? launch_tiles<K, V, number()>(stream, call)
                                                  : cudaSuccess;
    });
  }

  static cudaError_t prepare() {
    return for_each([](auto number) { return prepare_tiles<K, V, number()>(); });
  }
};

template <class K, class V, bool kAll>
constexpr Instance instance_of() {
  return {Sized<K, V, kAll>::launch, Sized<K, V, kAll>::prepare, Sized<K, V, kAll>::tiles};
}

template <kvspan_type_t kK, kvspan_type_t kV, uint32_t kSize>
constexpr Sizes sizes_of() {
  const auto with = []<uint32_t kShared>(std::integral_constant<uint32_t, kShared>) {
    return instance_of<Fixed<kK, kSize, kShared>, Fixed<kV, kSize, kShared>, true>();
  };
  return {{with(std::integral_constant<uint32_t, kShared227KiB>()),
           with(std::integral_constant<uint32_t, kShared163KiB>()),
           with(std::integral_constant<uint32_t, kShared99KiB>())}};
}

template <kvspan_type_t kK, kvspan_type_t kV>
constexpr Family family_of() {
  return {kK, kV, sizes_of<kK, kV, 128>(), sizes_of<kK, kV, 256>()};
}

template <bool kKBf16, bool kVBf16>
constexpr Instance loaded_of() {
  return instance_of<Loaded<kKBf16>, Loaded<kVBf16>, false>();
}

}  // namespace kvspan::cuda::tensor
