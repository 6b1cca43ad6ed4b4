// SPDX-License-Identifier: Apache-2.0
// A memory: here a block of this process, whatever its kind. Replace `address` by what your device
// calls an allocation; keep `uses`, which makes memory that pending work names BUSY, never freed.
#pragma once

#include "kvspan/memory.h"
#include "kvspan/sdk/validate_range.hpp"

#include "plugin.hpp"

#include <cstddef>
#include <cstdint>

namespace mine {

struct Memory {
  Device& device;
  const uint32_t kind;  // KVSPAN_MEMORY_*
  const uint64_t bytes;
  std::byte* const address;
  uint64_t uses = 0;  // how often pending work names it; the device's mutex guards it
};

inline Memory* memory_of(kvspan_memory_t* handle) {
  return reinterpret_cast<Memory*>(handle);
}

// Byte `offset` of a memory, which was checked when the work was submitted.
inline std::byte* address_of(kvspan_memory_t* handle, uint64_t offset) {
  return memory_of(handle)->address + offset;
}

// How the checks of the SDK (kvspan/sdk/validate.hpp) learn how long a memory is.
struct OwnBytes {
  const Device* device;

  uint64_t operator()(kvspan_memory_t* handle) const {
    const Memory& memory = *memory_of(handle);
    return &memory.device == device ? memory.bytes : kvspan::sdk::kForeignMemory;
  }
};

}  // namespace mine
