// SPDX-License-Identifier: Apache-2.0
// The kernel of run and advance for wide rows: a block takes 128 pairs of one item, then of another.
// Read first: block.cuh. Device code only.
#pragma once

#include "attention/tensor/instances.hpp"
#include "attention/tensor/load.cuh"
#include "attention/tensor/open.cuh"
#include "attention/wide/attend.cuh"
#include "attention/wide/make.cuh"
#include "cancel.cuh"

namespace kvspan::cuda::wide {

template <class K, class V>
class Kernel {
 public:
  using Owner = Block<K, V>;
  using Places = typename Owner::Places;

  __device__ Kernel(const HeldCall& call, uint8_t* shared)
      : block_{{call, call.view.problem, shared}, {}}, warp_(threadIdx.x / 32) {}

  __device__ void run() const {
    init();
    if (warp_ < Roles::first_maker) {
      ptx::set_registers<Roles::attender_registers, Roles::registers>();
      attend();
    } else if (warp_ < Roles::first_loader) {
      ptx::set_registers<Roles::maker_registers, Roles::registers>();
      Maker<K, V>(block_).walk();
    } else {
      ptx::set_registers<Roles::loader_registers, Roles::registers>();
      load();
    }
  }

 private:
  using Loader = tensor::Loader<K, V, Owner>;

  __device__ void init() const {
    Kept& kept = block_.kept();
    if (threadIdx.x < tensor::kSlotsMax) {
      ptx::init(&kept.k_full[threadIdx.x], 32);
      ptx::init(&kept.v_full[threadIdx.x], 32);
      ptx::init(&kept.k_empty[threadIdx.x], kMakeWarps * ptx::kWarpArrivals);
      ptx::init(&kept.v_empty[threadIdx.x], kMakeWarps * ptx::kWarpArrivals);
    }
    if (threadIdx.x < Places::tiles) {
      ptx::init(&kept.tile_full[threadIdx.x], kMakeWarps * ptx::kWarpArrivals);
      ptx::init(&kept.tile_empty[threadIdx.x], kAttendWarps * ptx::kWarpArrivals);
    }
    if (threadIdx.x < 2) {
      ptx::init(&kept.item_full[threadIdx.x], 32);
      ptx::init(&kept.item_empty[threadIdx.x],
                kAttendThreads + 32 * Loader::working_warps(block_));
    }
    ptx::fence_init();
    if (warp_ == Roles::first_loader) {
      block_.copy_near();
    }
    __syncthreads();
  }

  __device__ void attend() const {
    Attender<K, V> attender(block_);
    while (attender.block().wait_for_item()) {
      attender.walk();
      attender.block().leave_item();
    }
  }

  __device__ void load() const {
    const uint32_t warp = warp_ - Roles::first_loader;
    if (warp >= Loader::working_warps(block_)) {
      return;
    }
    Loader loader(block_);
    Owner& block = loader.block();
    uint64_t number = blockIdx.x;
    while (warp == 0 ? open(block, number) : block.wait_for_item()) {
      loader.walk();
      block.leave_item();
      number += gridDim.x;
    }
    loader.end();
    loader.tell_over();
  }

  // Number `number` of the call's items and tiles, unless there is none or it is not wanted any more.
  __device__ bool open(Owner& block, uint64_t number) const {
    auto& kept = block.kept();
    ptx::wait(&kept.item_empty[block.items.slot], block.items.parity ^ 1);
    const AttentionCallView& view = block.call.view;
    const bool over = number >= view.blocks || warp_finds_cancelled(view.cancel, number);
    if (!over) {
      tensor::Opener<Owner>(block).open(number);
    }
    if (threadIdx.x % 32 == 0) {
      block.opened().over = over;
    }
    __syncwarp();
    ptx::arrive(&kept.item_full[block.items.slot]);
    if (!over) {
      fetch_state(block);
    }
    return !over;
  }

  // Brings the state that the attending warps will read near, while they are at the item before.
  __device__ static void fetch_state(const Owner& block) {
    const Item& opened = block.opened();
    if (opened.item.walk != Walk::resume) {
      return;
    }
    for (uint32_t pair = threadIdx.x % 32; pair < opened.count; pair += 32) {
      const tensor::PairPlace at = tensor::place_of(opened, block.problem, pair);
      const uint64_t index = at.row * block.problem.q_heads + at.head;
      ptx::fetch_near(opened.item.state.u + index * Places::size, Places::size * sizeof(float));
    }
  }

  const Owner block_;
  const uint32_t warp_;
};

template <class K, class V>
__global__ void __launch_bounds__(Roles::threads, 1)
    wide_kernel(const __grid_constant__ HeldCall call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // warpgroup instructions are of 9.0 alone
  extern __shared__ __align__(1024) uint8_t wide_shared[];
  ptx::let_next_kernel_start();  // run_fold.cu waits for our end by itself
  Kernel<K, V>(call, wide_shared).run();
#endif
}

template <class K, class V>
struct Only {
  static cudaError_t launch(cudaStream_t stream, const HeldCall& call, uint32_t multiprocessors) {
    const uint64_t blocks = call.view.blocks;
    const auto grid = static_cast<uint32_t>(blocks < multiprocessors ? blocks : multiprocessors);
    wide_kernel<K, V><<<grid, Roles::threads, Layout<K, V>::bytes, stream>>>(call);
    return cudaGetLastError();
  }

  static cudaError_t prepare() {
    return cudaFuncSetAttribute(wide_kernel<K, V>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(Layout<K, V>::bytes));
  }
};

// Instances of one pair of types, head sizes 128 and 256.
template <kvspan_type_t kK, kvspan_type_t kV>
constexpr tensor::WideFamily family_of() {
  using K128 = tensor::Fixed<kK, 128>;
  using V128 = tensor::Fixed<kV, 128>;
  using K256 = tensor::Fixed<kK, 256>;
  using V256 = tensor::Fixed<kV, 256>;
  return {kK,
          kV,
          {Only<K128, V128>::launch, Only<K128, V128>::prepare},
          {Only<K256, V256>::launch, Only<K256, V256>::prepare}};
}

}  // namespace kvspan::cuda::wide
