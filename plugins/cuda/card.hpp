// SPDX-License-Identifier: Apache-2.0
// What the choice of kernels, and so the query's answers, depend on of a card.
#pragma once

#include <cstdint>

namespace kvspan::cuda {

struct Card {
  uint32_t capability = 0;  // compute capability, 10 * major + minor
  uint32_t multiprocessors = 0;
  uint32_t shared_bytes = 0;  // of shared memory that a block may have
};

// What blocks may have on cards of today: capability 9.0 and 10.x; 8.0; 8.6, 8.9 and 12.x; 7.5 has
// 64 KiB. Source: the CUDA programming guide, "Technical Specifications per Compute Capability",
// less the KiB that the system takes.
inline constexpr uint32_t kShared227KiB = 227 * 1024;
inline constexpr uint32_t kShared163KiB = 163 * 1024;
inline constexpr uint32_t kShared99KiB = 99 * 1024;

}  // namespace kvspan::cuda
