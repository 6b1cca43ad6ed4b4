// SPDX-License-Identifier: Apache-2.0
// Quotients of numbers that nearly always fit 32 bits: a division of 64 bits is a hundred
// instructions, and those of a block's beginning were a good part of it. Device code only.
#pragma once

#include <cstdint>

namespace kvspan::cuda {

__device__ inline uint64_t divided(uint64_t a, uint64_t b) {
  return ((a | b) >> 32) == 0 ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b;
}

}  // namespace kvspan::cuda
