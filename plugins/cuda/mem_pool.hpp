// SPDX-License-Identifier: Apache-2.0
// Memory of the card, or page-locked memory of the host, from a pool of our own. CUDA's plain frees
// wait until the whole card is idle, an engine's work included; what a pool gets back it frees
// without waiting for anybody: it is in no work any more.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace kvspan::cuda {

// Any thread; the device's context is current.
class MemPool {
 public:
  enum class Place { device, host };

  explicit MemPool(Place place) : place_(place) {}

  MemPool(const MemPool&) = delete;
  MemPool& operator=(const MemPool&) = delete;
  MemPool(MemPool&&) = delete;
  MemPool& operator=(MemPool&&) = delete;
  ~MemPool() = default;

  // For card `index`. Where there are no such pools plain allocations are used.
  [[nodiscard]] cudaError_t open(int index) noexcept;
  // Everything taken has been given back, or the context is spoilt.
  void close() noexcept;

  // Memory that every stream may use at once; the host too, at the same address, where it is there.
  [[nodiscard]] cudaError_t take(uint64_t bytes, uint8_t*& taken) noexcept;
  void give_back(uint8_t* taken) noexcept;

  // Bytes that the pool holds, in pieces of 32 MiB: now, and at most ever. 0 = not known.
  [[nodiscard]] uint64_t held_bytes() const noexcept;
  [[nodiscard]] uint64_t held_bytes_max() const noexcept;

 private:
  cudaError_t make(int index) noexcept;
  cudaError_t take_plain(uint64_t bytes, void*& made) const noexcept;
  uint64_t read(cudaMemPoolAttr attribute) const noexcept;

  const Place place_;
  cudaMemPool_t pool_ = nullptr;   // nullptr: plain allocations
  cudaStream_t stream_ = nullptr;  // orders taking and giving back; nothing else is on it
};

}  // namespace kvspan::cuda
