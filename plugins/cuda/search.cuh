// SPDX-License-Identifier: Apache-2.0
// Finding the item that a piece of work belongs to. Device code only.
#pragma once

#include <cstdint>

namespace kvspan::cuda {

// The last index in [0, count) whose first(index) is at or before `wanted`; first(0) is. A whole
// warp asks for one number: it looks at 32 places at once, since each lies in host memory and costs
// a trip over the link.
template <class First>
__device__ uint64_t find_last(uint64_t count, uint64_t wanted, First&& first) {
  const uint32_t lane = threadIdx.x % 32;
  uint64_t low = 0;
  uint64_t high = count;
  while (high - low > 1) {
    const uint64_t step = (high - low + 31) / 32;
    const uint64_t at = low + lane * step;
    const unsigned before = __ballot_sync(~0u, at < high && first(at) <= wanted);
    low += (31 - static_cast<uint32_t>(__clz(static_cast<int>(before)))) * step;
    high = high - low < step ? high : low + step;
  }
  return low;
}

// The same by one thread, of items that lie near.
template <class First>
__device__ uint64_t find_last_alone(uint64_t count, uint64_t wanted, First&& first) {
  uint64_t at = 0;
  while (at + 1 < count && first(at + 1) <= wanted) {
    ++at;
  }
  return at;
}

}  // namespace kvspan::cuda
