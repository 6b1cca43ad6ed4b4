// SPDX-License-Identifier: Apache-2.0
// A memory of the stub: a run of this process's own address space, whatever its kind. Device memory
// is only reserved until it is touched, so offsets beyond 2^32 cost nothing, and it cannot be
// mapped, so that no host gets away with touching it. Read next: memory.cpp.
#pragma once

#include "kvspan/memory.h"

#include "plugin.hpp"

#include <cstddef>
#include <cstdint>

namespace kvspan::stub {

struct Memory {
  Device& device;
  const std::uint32_t kind = KVSPAN_MEMORY_DEVICE;  ///< KVSPAN_MEMORY_*
  std::byte* const address = nullptr;
  const std::uint64_t bytes = 0;
  std::uint64_t mapped_bytes = 0;  ///< what to unmap; 0 for memory of the caller
  std::uint64_t uses = 0;          ///< how often pending work names it
};

inline Memory* memory_of(kvspan_memory_t* handle) {
  return reinterpret_cast<Memory*>(handle);
}

inline kvspan_memory_t* handle_of(Memory* memory) {
  return reinterpret_cast<kvspan_memory_t*>(memory);
}

/// Byte `offset` of a memory; the range was checked when the work was submitted.
inline std::byte* address_of(kvspan_memory_t* handle, std::uint64_t offset) {
  return memory_of(handle)->address + offset;
}

}  // namespace kvspan::stub
