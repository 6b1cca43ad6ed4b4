// SPDX-License-Identifier: Apache-2.0
// Host pages that this plugin has page-locked. CUDA locks pages for the whole process and refuses a
// second lock of the same ones, but two devices may import one history, and imports may overlap. So
// a lock is made for the pages that none has locked yet, and lives as long as any import that it
// helps. Pages that somebody else had locked are used as they are and never unlocked. Read next:
// memory.cpp.
#pragma once

#include "host.hpp"

#include <cstdint>
#include <cuda_runtime_api.h>
#include <mutex>

namespace kvspan::cuda {

// Of locked pages.
struct LockedPages {
  uint8_t* on_device = nullptr;  // where the device sees them, as one run
  bool pieced = false;           // more than one lock holds them: the copy engine takes one at most
};

class Registry {
 public:
  explicit Registry(const Host& host) : host_(host) {}

  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;
  Registry(Registry&&) = delete;
  Registry& operator=(Registry&&) = delete;
  ~Registry() = default;

  // Page-locks [address, address + bytes) for the current device. On failure nothing is locked that
  // was not before. cudaErrorHostMemoryAlreadyRegistered: somebody else has locked a part of the
  // pages, or a part was let go of while an import beside it keeps the lock of both.
  [[nodiscard]] cudaError_t lock(uint8_t* address, uint64_t bytes, LockedPages& locked) noexcept;

  // Undoes one successful lock() of the same bytes.
  void unlock(uint8_t* address, uint64_t bytes) noexcept;

 private:
  // Pages that lock() was asked for and unlock() not yet.
  struct Import {
    uint8_t* address;
    uint8_t* end;
    Import* next;
  };

  // Pages that CUDA locked in one call; locks do not overlap.
  struct Lock {
    uint8_t* address;
    uint8_t* end;
    uint64_t uses;  // imports that overlap it
    bool ours;      // false: somebody else's
    Lock* next;
  };

  Lock* find(const uint8_t* at) const noexcept;
  uint8_t* gap_end(const uint8_t* at, uint8_t* end) const noexcept;
  bool is_imported(const uint8_t* address, const uint8_t* end) const noexcept;
  cudaError_t add_lock(uint8_t* address, uint8_t* end) noexcept;
  cudaError_t cover(uint8_t* address, uint8_t* end) noexcept;
  void sweep() noexcept;

  const Host& host_;
  std::mutex mutex_;
  Import* imports_ = nullptr;
  Lock* locks_ = nullptr;
};

}  // namespace kvspan::cuda
