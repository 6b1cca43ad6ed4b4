// SPDX-License-Identifier: Apache-2.0
// Pages of host memory that hold K/V history: core's own, grown in chunks, each made reachable by
// the device when it is made. Knows bytes and addresses, not tokens. One of the few files that know
// the operating system (huge pages). Read next: sequence_history.hpp.
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

namespace kvspan {

struct HostPagesOptions {
  std::vector<std::uint64_t> page_bytes;   // [layer]
  std::uint64_t limit_bytes = UINT64_MAX;  // all chunks together
};

// One page index of every layer.
struct HostBlock {
  std::uint32_t chunk = 0;
  std::uint32_t index = 0;  // inside the chunk
};

// Where a page of one layer lies.
struct HostPage {
  kvspan_memory_t* memory = nullptr;
  std::uint64_t offset = 0;      // bytes inside memory
  std::byte* address = nullptr;  // [page_bytes of the layer]
};

// Grows by whole chunks of at most 64 MiB (one import that every backend accepts) and never moves
// or shrinks a page, so that offsets in flight stay true. Inside a chunk pages are layer-major:
// consecutive pages of a layer are adjacent. Fresh pages are zero. Thread class: SYNC(host pages).
class HostPages {
 public:
  // Allocates nothing yet. Errors: invalid_argument when a block cannot fit one import.
  [[nodiscard]] static Result<HostPages> create(const Backend& backend, HostPagesOptions options);

  // A free block, from a new chunk if need be. Errors: host_memory with required, provided and
  // missing bytes; nothing changed then.
  [[nodiscard]] Result<HostBlock> acquire();

  // Gives a block back; no pending work may name it.
  void release(HostBlock block);

  [[nodiscard]] HostPage page(HostBlock block, std::size_t layer) const;

  [[nodiscard]] std::uint64_t allocated_bytes() const { return allocated_bytes_; }

  // Whether a memory is one of the chunks, all of which are this large.
  [[nodiscard]] bool owns(const kvspan_memory_t* memory) const;

  [[nodiscard]] std::uint64_t chunk_bytes() const { return chunk_bytes_; }

 private:
  struct Chunk {
    std::unique_ptr<std::byte[], void (*)(std::byte*)> pages{nullptr,
                                                             nullptr};  // empty: plugin's memory
    DeviceMemory memory;
    std::byte* address = nullptr;
  };

  HostPages(const Backend& backend, HostPagesOptions options);
  [[nodiscard]] Result<void> grow();

  Backend backend_;
  HostPagesOptions options_;
  std::vector<std::uint64_t>
      layer_offsets_;  // [layer] bytes from a chunk's start, for a whole chunk
  std::uint32_t chunk_blocks_ = 0;
  std::uint64_t chunk_bytes_ = 0;
  std::uint64_t allocated_bytes_ = 0;
  std::vector<Chunk> chunks_;
  std::unordered_set<const kvspan_memory_t*> memories_;  // of all chunks
  std::vector<HostBlock> free_;
};

}  // namespace kvspan
