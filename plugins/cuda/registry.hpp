// SPDX-License-Identifier: Apache-2.0
// Host pages that this plugin has page-locked. CUDA locks pages for the whole process and refuses a
// second lock of the same ones, but two devices may import one history: so locks are counted here.
// Pages that somebody else had locked are used as they are and never unlocked. Read next:
// memory.cpp.
#pragma once

#include "host.hpp"

#include <cstdint>
#include <cuda_runtime_api.h>
#include <mutex>

namespace kvspan::cuda {

class Registry {
 public:
  explicit Registry(const Host& host) : host_(host) {}

  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;
  Registry(Registry&&) = delete;
  Registry& operator=(Registry&&) = delete;
  ~Registry() = default;

  // Page-locks [address, address + bytes) and gives its address on the current device. On failure
  // nothing is locked that was not before. cudaErrorHostMemoryAlreadyRegistered: part of the pages,
  // but not all of them, is locked already.
  [[nodiscard]] cudaError_t lock(uint8_t* address, uint64_t bytes, uint8_t*& on_device) noexcept;

  // Undoes one successful lock() of the same bytes.
  void unlock(uint8_t* address, uint64_t bytes) noexcept;

 private:
  struct Range {
    uint8_t* address;
    uint64_t bytes;
    uint64_t uses;
    bool ours;  // false: somebody else's lock
    Range* next;
  };

  Range** find(const uint8_t* address, uint64_t bytes) noexcept;

  const Host& host_;
  std::mutex mutex_;
  Range* ranges_ = nullptr;
};

}  // namespace kvspan::cuda
