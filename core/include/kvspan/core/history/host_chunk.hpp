// SPDX-License-Identifier: Apache-2.0
// How pages of host memory are cut into chunks, each pinned at once, and which layers share them:
// the rules that the history follows and the budget counts by. Read next: host_pages.hpp,
// memory/budget.hpp.
#pragma once

#include "kvspan/core/error.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvspan {

// A chunk holds `blocks` page indexes of every layer of a class.
struct HostChunk {
  std::uint64_t block_bytes = 0;  // one page of each of those layers
  std::uint32_t blocks = 0;
  std::uint64_t chunk_bytes = 0;  // a multiple of the import alignment
};

// Layers whose pages are taken and given back together: those that see equally far back. Pages that
// lie further back than `kept_tokens` retire, one index of all layers of the class at once.
struct HostClass {
  std::uint64_t window_tokens = 0;  // 0 = rows see everything
  std::uint64_t kept_tokens = 0;    // behind the end of a history; 0 = everything
  std::vector<std::uint32_t> layers;
  HostChunk chunk;
};

// What classes follow from. Borrows.
struct HostClassRequest {
  std::span<const std::uint64_t> page_bytes;     // [layer]
  std::span<const std::uint64_t> window_tokens;  // [layer] 0 = everything
  std::uint64_t context_tokens = 0;
  std::uint64_t rewind_tokens = 0;     // that are kept behind a window for a truncation
  std::uint64_t import_alignment = 1;  // of the device, 0 or 1 where it asks for none
};

// A class for every window that is shorter than the context, in the order of their first layers;
// layers that may see everything are one class. Pure; any thread. Errors: host_chunk's.
[[nodiscard]] Result<std::vector<HostClass>> host_classes(const HostClassRequest& request);

// The first page that a history of `tokens` tokens keeps when it keeps this many behind its end
// for the row that comes next; 0 = everything.
[[nodiscard]] constexpr std::uint64_t first_kept_page(std::uint64_t tokens,
                                                      std::uint64_t kept_tokens,
                                                      std::uint32_t page_tokens) {
  return kept_tokens == 0 || tokens < kept_tokens ? 0 : (tokens + 1 - kept_tokens) / page_tokens;
}

// page_bytes [layer]; import_alignment of the device, 0 or 1 where it asks for none. Pure; any
// thread. Errc::invalid_argument: a block is empty or larger than what every backend imports; the
// message names both and asks for smaller pages.
[[nodiscard]] Result<HostChunk> host_chunk(std::span<const std::uint64_t> page_bytes,
                                           std::uint64_t import_alignment);

// Bytes of the chunks that hold `blocks` page indexes. The caller knows that it fits 64 bits.
[[nodiscard]] std::uint64_t chunked_bytes(const HostChunk& chunk, std::uint64_t blocks);

}  // namespace kvspan
