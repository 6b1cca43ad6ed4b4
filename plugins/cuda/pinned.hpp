// SPDX-License-Identifier: Apache-2.0
// Slabs of page-locked memory that kernels read in place: where a submit keeps its descriptors.
// They never travel through a stream, so that a small submit does not queue behind large copies.
// A slab is never given back to the system before the device closes. Read next: queue.hpp
// (Packet).
#pragma once

#include "mem_pool.hpp"

#include <cstdint>
#include <cuda_runtime_api.h>
#include <mutex>

namespace kvspan::cuda {

struct Slab {
  uint8_t* data = nullptr;  // the same address on host and device
  uint64_t bytes = 0;
};

// Sizes of grown slabs are powers of two; those of one size are kept in a list. What is reserved is
// exact, to a page. Any thread; the device's context is current.
class PinnedPool {
 public:
  PinnedPool() = default;
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  PinnedPool(PinnedPool&&) = delete;
  PinnedPool& operator=(PinnedPool&&) = delete;
  ~PinnedPool() = default;

  // For card `index`. Takes the first pages here: that lasts 8 to 20 ms, which no submit may.
  [[nodiscard]] cudaError_t open(int index) noexcept;

  // Makes `slab` hold `bytes` at least; a smaller one that it held goes back. On failure it keeps
  // what it held.
  [[nodiscard]] cudaError_t grow(Slab& slab, uint64_t bytes) noexcept;

  void give_back(Slab& slab) noexcept;

  // Makes `slab` hold `bytes` at least, all in one; gives back what it held before, unless that is
  // enough. On failure it keeps what it held.
  [[nodiscard]] cudaError_t reserve(Slab& slab, uint64_t bytes) noexcept;

  // Undoes reserve(): for the next one that fits.
  void unreserve(Slab& slab) noexcept;

  // Frees all chunks: every slab is dead then.
  void close() noexcept;

  // Page-locked bytes held.
  [[nodiscard]] uint64_t bytes() const noexcept;

 private:
  static constexpr uint32_t kClasses = 48;

  struct Link {
    Link* next;
  };

  struct Chunk {
    Chunk* next;
    uint64_t bytes;  // all of it
    bool reservable;
    bool reserved;
  };

  static uint32_t class_of(uint64_t bytes) noexcept;
  void keep(uint8_t* data, uint64_t bytes) noexcept;
  Chunk* make_chunk(uint64_t bytes, bool reservable, cudaError_t& bad) noexcept;
  cudaError_t add_chunk(uint64_t slab_bytes) noexcept;
  Chunk* find_reservable(uint64_t bytes) const noexcept;

  mutable std::mutex mutex_;
  MemPool pages_{MemPool::Place::host};
  Link* free_[kClasses] = {};  // slabs of 2^class bytes
  Chunk* chunks_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace kvspan::cuda
