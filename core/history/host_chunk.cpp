// SPDX-License-Identifier: Apache-2.0
// The rule of chunks: as many blocks as one import takes, and no more than a short conversation
// should pin. The rule of classes: one a window.
#include "kvspan/core/history/host_chunk.hpp"

#include "kvspan/core/layout/checked.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {

namespace {

// The largest import that every backend accepts.
constexpr std::uint64_t kChunkBytesMax = 64ULL << 20;

// A chunk of this many page blocks is one growth step: small enough that a short conversation pins
// little.
constexpr std::uint32_t kChunkBlocksMax = 16;

}  // namespace

Result<HostChunk> host_chunk(std::span<const std::uint64_t> page_bytes,
                             std::uint64_t import_alignment) {
  HostChunk chunk;
  bool fits = true;
  for (const std::uint64_t bytes : page_bytes) {
    const auto sum = checked_add(chunk.block_bytes, bytes);
    fits = fits && sum.has_value();
    chunk.block_bytes = sum.value_or(UINT64_MAX);
  }
  if (!fits || chunk.block_bytes == 0 || chunk.block_bytes > kChunkBytesMax) {
    return tl::unexpected(
        error_of(Errc::invalid_argument,
                 "one page of all layers takes " + std::to_string(chunk.block_bytes) +
                     " bytes, but at least 1 and at most " + std::to_string(kChunkBytesMax) +
                     " bytes can be imported at once; use smaller pages",
                 "history"));
  }
  const std::uint64_t fitting = kChunkBytesMax / chunk.block_bytes;
  chunk.blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(fitting, kChunkBlocksMax));
  chunk.chunk_bytes =
      align_up(chunk.block_bytes * chunk.blocks, std::max<std::uint64_t>(import_alignment, 1));
  return chunk;
}

Result<std::vector<HostClass>> host_classes(const HostClassRequest& request) {
  std::vector<HostClass> classes;
  for (std::uint32_t layer = 0; layer < request.page_bytes.size(); ++layer) {
    std::uint64_t window = request.window_tokens[layer];
    const auto sum = checked_add(window, request.rewind_tokens);
    const bool ends = window != 0 && sum && *sum < request.context_tokens;
    window = ends ? window : 0;
    auto found = std::find_if(classes.begin(), classes.end(), [window](const HostClass& of) {
      return of.window_tokens == window;
    });
    if (found == classes.end()) {
      classes.push_back({window, ends ? *sum : 0, {}, {}});
      found = classes.end() - 1;
    }
    found->layers.push_back(layer);
  }
  for (HostClass& of : classes) {
    std::vector<std::uint64_t> page_bytes;
    for (const std::uint32_t layer : of.layers) {
      page_bytes.push_back(request.page_bytes[layer]);
    }
    auto chunk = host_chunk(page_bytes, request.import_alignment);
    if (!chunk) {
      return tl::unexpected(std::move(chunk).error());
    }
    of.chunk = *chunk;
  }
  return classes;
}

std::uint64_t chunked_bytes(const HostChunk& chunk, std::uint64_t blocks) {
  return (blocks + chunk.blocks - 1) / chunk.blocks * chunk.chunk_bytes;
}

}  // namespace kvspan
