// SPDX-License-Identifier: Apache-2.0
// What kernels need to see a cancel word. Read next: cancel.cuh (how they look).
#pragma once

#include <cstdint>

namespace kvspan::cuda {

// Addresses as the device sees them.
struct Cancel {
  const uint32_t* word;  // the caller's, in host memory; nullptr = not cancellable
  uint32_t* seen;        // the packet's, in host memory: set by who finds the word set
  uint32_t* mirror;      // the queue's, on the device: holds `number` once the word was found set
  uint32_t number;       // of this submit in its queue
};

// Blocks that never look: they run at once, and what they do is done in less time than their looks
// at one word over the link would take, which come one after another (1.2 us each on PCIe 5).
inline constexpr uint32_t kBlindBlocks = 132;
// Of the others every so many-th looks at the word itself.
inline constexpr uint32_t kLookStride = 64;
// The same of a kernel whose blocks are done in a few microseconds: as one in 64 of its thousands
// of blocks they took nearly all of its time (a fold of 2,048 rows: 192 looks, 199 us), and beside
// a copy up even three took 15 us of 19. With fewer blocks than this it is done sooner than it
// looks.
inline constexpr uint32_t kShortLookStride = 16384;

}  // namespace kvspan::cuda
