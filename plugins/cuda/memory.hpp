// SPDX-License-Identifier: Apache-2.0
// A memory of the device: the card's own or an engine's, page-locked host memory, or the caller's
// pages locked for the time of the import. The device reaches all of them. Read next: memory.cpp.
#pragma once

#include "kvspan/memory.h"

#include "device.hpp"

#include <atomic>
#include <cstdint>

namespace kvspan::cuda {

struct Memory {
  Device& device;
  const uint32_t kind;          // KVSPAN_MEMORY_*
  uint8_t* const address;       // as the device sees it
  uint8_t* const host_address;  // as the host sees it; nullptr for DEVICE
  const uint64_t bytes;
  const uint64_t held_bytes;      // allocated, mapped or locked for it; 0 of an engine's
  const bool pieced;              // several locks hold its pages: nothing for the copy engine
  std::atomic<uint64_t> uses{0};  // times that pending work names it
  std::atomic<uint64_t> pins{0};  // times that a graph names it
};

inline Memory* memory_of(kvspan_memory_t* handle) {
  return reinterpret_cast<Memory*>(handle);
}

inline kvspan_memory_t* handle_of(Memory* memory) {
  return reinterpret_cast<kvspan_memory_t*>(memory);
}

// Names DEVICE memory that an engine owns; the range has been checked. Releasing it frees nothing.
kvspan_result_t borrow_memory(Device& device,
                              uint8_t* address,
                              uint64_t bytes,
                              kvspan_memory_t** out_memory,
                              kvspan_error_t* error,
                              const char* where);

// Byte `offset` of a memory as the device sees it; nullptr of none. The range has been checked.
inline uint8_t* address_of(kvspan_memory_t* handle, uint64_t offset) {
  return handle == nullptr ? nullptr : memory_of(handle)->address + offset;
}

}  // namespace kvspan::cuda
