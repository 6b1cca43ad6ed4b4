// SPDX-License-Identifier: Apache-2.0
// How pages of host memory are cut into chunks, each pinned at once: the rule that the history
// follows and the budget counts by. Read next: host_pages.hpp, memory/budget.hpp.
#pragma once

#include "kvspan/core/error.hpp"

#include <cstdint>
#include <span>

namespace kvspan {

// A chunk holds `blocks` page indexes of every layer.
struct HostChunk {
  std::uint64_t block_bytes = 0;  // one page of every layer
  std::uint32_t blocks = 0;
  std::uint64_t chunk_bytes = 0;  // a multiple of the import alignment
};

// page_bytes [layer]; import_alignment of the device, 0 or 1 where it asks for none. Pure; any
// thread. Errc::invalid_argument: a block is empty or larger than what every backend imports; the
// message names both and asks for smaller pages.
[[nodiscard]] Result<HostChunk> host_chunk(std::span<const std::uint64_t> page_bytes,
                                           std::uint64_t import_alignment);

// Bytes of the chunks that hold `blocks` page indexes. The caller knows that it fits 64 bits.
[[nodiscard]] std::uint64_t chunked_bytes(const HostChunk& chunk, std::uint64_t blocks);

}  // namespace kvspan
