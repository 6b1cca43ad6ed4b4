// SPDX-License-Identifier: Apache-2.0
// How a block asks whether its work was cancelled. Device code only. Read first: cancel.hpp.
#pragma once

#include "cancel.hpp"

#include <cstdint>

namespace kvspan::cuda {

// All threads of block `block` of its grid: whether it shall do nothing. Who finds the word set
// marks the work as cancelled, for the host and for the other blocks to see. Every `stride`-th
// block looks.
__device__ inline bool block_is_cancelled(const Cancel& cancel,
                                          uint64_t block,
                                          uint32_t stride = kLookStride) {
  if (cancel.word == nullptr || block < kBlindBlocks) {
    return false;
  }
  bool set = false;
  if (threadIdx.x == 0) {
    volatile uint32_t* const mirror = cancel.mirror;
    set = *mirror == cancel.number;
    if (!set && block % stride == 0 && *static_cast<const volatile uint32_t*>(cancel.word) != 0) {
      set = true;
      *mirror = cancel.number;
    }
    if (set) {
      *static_cast<volatile uint32_t*>(cancel.seen) = 1;
      __threadfence_system();
    }
  }
  return __syncthreads_or(set ? 1 : 0) != 0;
}

// The same of a kernel with short blocks in one dimension.
__device__ inline bool short_block_is_cancelled(const Cancel& cancel) {
  const uint32_t few = gridDim.x / kShortLooks;
  return block_is_cancelled(cancel, blockIdx.x, few > kLookStride ? few : kLookStride);
}

}  // namespace kvspan::cuda
