// SPDX-License-Identifier: Apache-2.0
// How a block asks whether its work was cancelled. Device code only.
#pragma once

#include <cstdint>

namespace kvspan::cuda {

// All threads of a block: whether the word is set now. Marks the work as cancelled then, for the
// host to see. nullptr: never.
__device__ inline bool block_is_cancelled(const uint32_t* word, uint32_t* seen) {
  if (word == nullptr) {
    return false;
  }
  const bool set = threadIdx.x == 0 && *reinterpret_cast<const volatile uint32_t*>(word) != 0;
  if (set) {
    *reinterpret_cast<volatile uint32_t*>(seen) = 1;
    __threadfence_system();
  }
  return __syncthreads_or(set ? 1 : 0) != 0;
}

}  // namespace kvspan::cuda
