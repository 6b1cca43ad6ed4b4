// SPDX-License-Identifier: Apache-2.0
// How a block asks whether its work was cancelled. Device code only. Read first: cancel.hpp.
#pragma once

#include "cancel.hpp"

#include <cstdint>

namespace kvspan::cuda {

// Whether block `block` of its grid shall look, or see whether another did.
__device__ inline bool is_blind(const Cancel& cancel, uint64_t block) {
  return cancel.word == nullptr || block < kBlindBlocks;
}

// By one thread of it: whether the block shall do nothing. Who finds the word set marks the work as
// cancelled, for the host and for the other blocks to see. Every `stride`-th block looks.
__device__ inline bool finds_cancelled(const Cancel& cancel, uint64_t block, uint32_t stride) {
  volatile uint32_t* const mirror = cancel.mirror;
  bool set = *mirror == cancel.number;
  if (!set && block % stride == 0 && *static_cast<const volatile uint32_t*>(cancel.word) != 0) {
    set = true;
    *mirror = cancel.number;
  }
  if (set) {
    *static_cast<volatile uint32_t*>(cancel.seen) = 1;
    __threadfence_system();
  }
  return set;
}

// The same by all threads of the block.
__device__ inline bool block_is_cancelled(const Cancel& cancel,
                                          uint64_t block,
                                          uint32_t stride = kLookStride) {
  if (is_blind(cancel, block)) {
    return false;
  }
  const bool set = threadIdx.x == 0 && finds_cancelled(cancel, block, stride);
  return __syncthreads_or(set ? 1 : 0) != 0;
}

// The same by a warp, of a block that does the work of several: `block` is what one of them would be.
__device__ inline bool warp_finds_cancelled(const Cancel& cancel, uint64_t block) {
  if (is_blind(cancel, block)) {
    return false;
  }
  const bool set = threadIdx.x % 32 == 0 && finds_cancelled(cancel, block, kLookStride);
  return __any_sync(~0u, set ? 1 : 0) != 0;
}

// The same of a kernel with short blocks in one dimension.
__device__ inline bool short_block_is_cancelled(const Cancel& cancel) {
  return gridDim.x > kShortLookStride && block_is_cancelled(cancel, blockIdx.x, kShortLookStride);
}

}  // namespace kvspan::cuda
