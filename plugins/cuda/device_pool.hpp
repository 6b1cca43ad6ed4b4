// SPDX-License-Identifier: Apache-2.0
// The card's memory that alloc hands out. CUDA's plain free waits until the whole card is idle, an
// engine's work included; a pool of our own gives bytes back without waiting for anybody: what
// release() frees is in no work any more.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace kvspan::cuda {

// Any thread; the device's context is current.
class DevicePool {
 public:
  DevicePool() = default;
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;
  DevicePool(DevicePool&&) = delete;
  DevicePool& operator=(DevicePool&&) = delete;
  ~DevicePool() = default;

  // Of card `index`. Where that has no pools plain allocations are used.
  [[nodiscard]] cudaError_t open(int index) noexcept;
  // Everything taken has been given back, or the context is spoilt.
  void close() noexcept;

  // Memory that every stream may use at once.
  [[nodiscard]] cudaError_t take(uint64_t bytes, uint8_t*& taken) noexcept;
  void give_back(uint8_t* taken) noexcept;

  // The most bytes of the card that the pool ever held: it takes them in pieces of 32 MiB. 0 = not
  // known.
  [[nodiscard]] uint64_t held_bytes_max() const noexcept;

 private:
  cudaMemPool_t pool_ = nullptr;   // nullptr: plain allocations
  cudaStream_t stream_ = nullptr;  // orders taking and giving back; nothing else is on it
};

}  // namespace kvspan::cuda
