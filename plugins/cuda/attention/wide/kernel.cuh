// SPDX-License-Identifier: Apache-2.0
// The kernel of run and advance for wide rows: a block takes 128 pairs of one item. Read first:
// block.cuh. Device code only.
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
      : block_{call, call.view.problem, shared}, warp_(threadIdx.x / 32) {}

  __device__ void run() const {
    init();
    open_item(blockIdx.x);
    if (warp_ < Roles::first_maker) {
      ptx::set_registers<Roles::attender_registers, Roles::registers>();
      Attender<K, V>(block_).walk();
    } else if (warp_ < Roles::first_loader) {
      ptx::set_registers<Roles::maker_registers, Roles::registers>();
      Maker<K, V>(block_).walk();
    } else {
      ptx::set_registers<Roles::loader_registers, Roles::registers>();
      tensor::Loader<K, V, Owner>(block_).walk();
    }
  }

 private:
  __device__ void init() const {
    Kept& kept = block_.kept();
    if (threadIdx.x < tensor::kSlotsMax) {
      ptx::init(&kept.k_full[threadIdx.x], 32);
      ptx::init(&kept.v_full[threadIdx.x], 32);
      ptx::init(&kept.k_empty[threadIdx.x], kMakeWarps);
      ptx::init(&kept.v_empty[threadIdx.x], kMakeWarps);
    }
    if (threadIdx.x < Places::tiles) {
      ptx::init(&kept.tile_full[threadIdx.x], kMakeWarps);
      ptx::init(&kept.tile_empty[threadIdx.x], kAttendWarps);
    }
    ptx::fence_init();
  }

  __device__ void open_item(uint64_t number) const {
    if (warp_ == Roles::first_loader) {
      tensor::Opener<Owner>(block_).open(number);
    }
    __syncthreads();
    if (warp_ >= Roles::first_maker) {
      return;  // rows can come while queries do
    }
    if (are_aligned(block_.kept().entry.q)) {
      fetch_queries();
    } else {
      for (uint32_t pair = warp_; pair < kPairs; pair += kAttendWarps) {
        store_query(pair, tensor::fetch_query<K>(block_, pair));
      }
    }
    ptx::fence_async();
    ptx::sync(kQueryBarrier, kAttendThreads);
  }

  // Whether each eight elements of 16 bits are one load.
  __device__ static bool are_aligned(const RowsView& rows) {
    return ((reinterpret_cast<uint64_t>(rows.base) | rows.row_stride | rows.head_stride) & 15) == 0;
  }

  // A few rows of a warp on their way at once: one after another they are a third of what a block
  // costs beside its tokens (1,152 blocks of 2,048 rows: 16 trips of a microsecond each).
  __device__ void fetch_queries() const {
    constexpr uint32_t kAtOnce = 4;
    const auto& kept = block_.kept();
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t first = warp_; first < kPairs; first += kAtOnce * kAttendWarps) {
      uint4 raw[kAtOnce];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t pair = first + i * kAttendWarps;
        const uint8_t* const row = row_of(kept.entry.q, kept.pairs.row[pair], kept.pairs.head[pair]);
        const bool there = pair < kept.count && 8 * lane < Places::size;
        raw[i] = there ? *reinterpret_cast<const uint4*>(row + 16 * lane) : uint4{};
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        tensor::Query query{};
        tensor::widen(kept.entry.q.type, raw[i], query.values);
        tensor::find_most(query);
        store_query(first + i * kAttendWarps, query);
      }
    }
  }

  // A warp: a query as an operand, divided by a power of two that brings its largest element near 1, so
  // that it fits 16 bits whatever its size.
  __device__ void store_query(uint32_t pair, const tensor::Query& query) const {
    const uint32_t lane = threadIdx.x % 32;
    const float down = tensor::power_of_two(-query.exponent());
    if (lane == 0) {
      block_.kept().pairs.q_scale[pair] =
          __fmul_rn(block_.problem.scale, tensor::power_of_two(query.exponent()));
    }
    if (8 * lane >= Places::size) {
      return;
    }
    uint32_t words[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      words[i] = ptx::bits_of(__floats2half2_rn(__fmul_rn(query.values[2 * i], down),
                                                __fmul_rn(query.values[2 * i + 1], down)));
    }
    uint8_t* const panel = block_.q() + lane / 8 * Places::q_panel_bytes;
    *reinterpret_cast<uint4*>(panel + wgmma::unit_place(pair, lane % 8)) =
        make_uint4(words[0], words[1], words[2], words[3]);
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
  if (block_is_cancelled(call.view.cancel, blockIdx.x)) {
    return;
  }
  Kernel<K, V>(call, wide_shared).run();
#endif
}

template <class K, class V>
struct Only {
  static cudaError_t launch(cudaStream_t stream, const HeldCall& call) {
    wide_kernel<K, V><<<static_cast<uint32_t>(call.view.blocks),
                        Roles::threads,
                        Layout<K, V>::bytes,
                        stream>>>(call);
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
          {Only<K128, V128>::launch, Only<K128, V128>::prepare, 0},
          {Only<K256, V256>::launch, Only<K256, V256>::prepare, 0}};
}

}  // namespace kvspan::cuda::wide
