// SPDX-License-Identifier: Apache-2.0
// A memory of the device. All kinds are ordinary memory of this process; DEVICE memory still cannot
// be mapped, so that a host which works here works on a card. Read next: memory.cpp.
#pragma once

#include "kvspan/memory.h"

#include "device.hpp"

#include <atomic>
#include <cstdint>

namespace kvspan::cpu {

struct Memory {
  Device& device;
  const uint32_t kind;  // KVSPAN_MEMORY_*
  uint8_t* const address;
  const uint64_t bytes;
  const uint64_t mapped_bytes;    // to unmap; 0 for memory of the caller
  std::atomic<uint64_t> uses{0};  // times that pending work names it
};

inline Memory* memory_of(kvspan_memory_t* handle) {
  return reinterpret_cast<Memory*>(handle);
}

inline kvspan_memory_t* handle_of(Memory* memory) {
  return reinterpret_cast<kvspan_memory_t*>(memory);
}

// Byte `offset` of a memory; nullptr of none. The range has been checked.
inline uint8_t* address_of(kvspan_memory_t* handle, uint64_t offset) {
  return handle == nullptr ? nullptr : memory_of(handle)->address + offset;
}

}  // namespace kvspan::cpu
