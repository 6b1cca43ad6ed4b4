// SPDX-License-Identifier: Apache-2.0
// Pages of host memory that hold K/V history: core's own, grown in chunks, each made reachable by
// the device when it is made. Knows bytes and addresses, not tokens. One of the few files that know
// the operating system (huge pages). Read next: sequence_history.hpp.
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/core/error.hpp"
#include "kvspan/core/history/host_chunk.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace kvspan {

struct HostPagesOptions {
  std::vector<std::uint64_t> page_bytes;   // [layer]
  std::vector<HostClass> classes;          // each layer is in one
  std::uint64_t limit_bytes = UINT64_MAX;  // all chunks together
};

// One page index of every layer of a class.
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
// or shrinks a page, so that offsets in flight stay true. A chunk belongs to one class; inside it
// pages are layer-major: consecutive pages of a layer are adjacent. Fresh pages are zero. Memory is
// zeroed little by little before it becomes a chunk (touch_ahead()), since that is most of what a
// chunk costs: 25 of 28 ms for 61 MiB on one machine, in which no other thread can submit where a
// driver does it (docs/measuring). Thread class: SYNC(host pages).
class HostPages {
 public:
  // Allocates nothing yet.
  HostPages(Backend backend, HostPagesOptions options);

  // A free block of a class, from a new chunk if need be. Errors: host_memory with required,
  // provided and missing bytes; nothing changed then, nor by an exception.
  [[nodiscard]] Result<HostBlock> acquire(std::size_t of_class);

  // Makes chunks until `blocks` of a class are free or it has `blocks_max` in all, ahead of who
  // acquires them. Errors: as acquire(); what was made stays.
  [[nodiscard]] Result<void> reserve(std::size_t of_class,
                                     std::uint64_t blocks,
                                     std::uint64_t blocks_max);

  // A call of those of a step in which more is zeroed.
  struct Call {
    std::uint32_t left = 1;  // this one and those behind it
    std::uint32_t of = 1;
  };

  // Zeroes a part of the memory of chunks to come, for steps that take `blocks` each: so much that
  // as much at each call has all of it zeroed when reserve() of so many blocks makes a chunk of it
  // behind the last call of a step. Nothing where the backend makes its own memory. Errors: none;
  // what there is no memory for, or no limit, is left to reserve(), which tells.
  void touch_ahead(std::size_t of_class, std::uint64_t blocks, std::uint64_t blocks_max, Call call);

  // Gives a block back; no pending work may name it.
  void release(HostBlock block) noexcept;

  // `layer` is of the block's class.
  [[nodiscard]] HostPage page(HostBlock block, std::size_t layer) const;

  [[nodiscard]] std::uint64_t allocated_bytes() const { return allocated_bytes_; }

  // Zeroed for chunks to come and not part of allocated_bytes(): nobody can reach it yet.
  [[nodiscard]] std::uint64_t touched_bytes() const;

  // Of those allocated, in blocks that were acquired and not released.
  [[nodiscard]] std::uint64_t held_bytes() const { return held_bytes_; }

  // Bytes of a memory that is one of the chunks; 0 for any other.
  [[nodiscard]] std::uint64_t chunk_bytes(const kvspan_memory_t* memory) const;

 private:
  using Huge = std::unique_ptr<std::byte[], void (*)(std::byte*)>;

  struct Chunk {
    Huge pages{nullptr, nullptr};  // empty: plugin's memory
    DeviceMemory memory;
    std::byte* address = nullptr;
    std::size_t of_class = 0;
  };

  // Memory of a chunk to come, zero up to `touched_bytes`.
  struct Ahead {
    Huge pages{nullptr, nullptr};
    std::uint64_t touched_bytes = 0;

    void touch(std::uint64_t end_bytes);
  };

  [[nodiscard]] bool is_imported() const { return backend_.info().import_alignment != 0; }

  [[nodiscard]] Result<void> grow(std::size_t of_class);
  [[nodiscard]] Result<Chunk> make_chunk(std::size_t of_class);
  [[nodiscard]] bool begin_ahead(std::size_t of_class);
  void make_way(std::size_t of_class);
  [[nodiscard]] std::uint64_t ahead_bytes() const;
  [[nodiscard]] std::uint64_t touched_bytes(std::size_t of_class) const;

  Backend backend_;
  HostPagesOptions options_;
  std::vector<std::uint64_t> layer_offsets_;  // [layer] bytes from the start of a chunk
  std::uint64_t allocated_bytes_ = 0;
  std::uint64_t held_bytes_ = 0;
  std::vector<Chunk> chunks_;
  std::unordered_map<const kvspan_memory_t*, std::uint64_t> memories_;  // bytes of each chunk
  std::vector<std::vector<HostBlock>> free_;  // [class], with room for all blocks of the class
  std::vector<std::uint64_t> made_;           // [class] blocks of all chunks
  std::vector<std::vector<Ahead>> ahead_;     // [class] in the order of their use
};

}  // namespace kvspan
