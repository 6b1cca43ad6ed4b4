// SPDX-License-Identifier: Apache-2.0
// How a block asks whether its work was cancelled. Device code only. Read first: cancel.hpp.
#pragma once

#include "cancel.hpp"

#include <cstdint>

namespace kvspan::cuda {

// All threads of block `block` of its grid: whether it shall do nothing. Who finds the word set
// marks the work as cancelled, for the host and for the other blocks to see.
__device__ inline bool block_is_cancelled(const Cancel& cancel, uint64_t block) {
  if (cancel.word == nullptr || block < kBlindBlocks) {
    return false;
  }
  bool set = false;
  if (threadIdx.x == 0) {
    volatile uint32_t* const mirror = cancel.mirror;
    set = *mirror == cancel.number;
    if (!set && block % kLookStride == 0 && *static_cast<const volatile uint32_t*>(cancel.word) != 0) {
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

}  // namespace kvspan::cuda
