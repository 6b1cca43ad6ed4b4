// SPDX-License-Identifier: Apache-2.0
// HostPages: chunks on huge-page boundaries, imported where the backend can, else taken from the
// backend.
#include "kvspan/core/history/host_pages.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <sys/mman.h>
#include <utility>

namespace kvspan {

namespace {

// x86-64 huge pages; also a multiple of every import alignment that a page-sized device has.
constexpr std::uint64_t kHugePageBytes = 2ULL << 20;

using Huge = std::unique_ptr<std::byte[], void (*)(std::byte*)>;

// Empty where there is none.
Huge make_huge(std::uint64_t size_bytes) {
  void* const block = ::operator new[](size_bytes, std::align_val_t{kHugePageBytes}, std::nothrow);
  if (block != nullptr) {
    // Advice only: without huge pages everything is as right, an import just takes longer.
    (void)madvise(block, size_bytes, MADV_HUGEPAGE);
  }
  return {static_cast<std::byte*>(block), [](std::byte* address) {
            ::operator delete[](address, std::align_val_t{kHugePageBytes});
          }};
}

}  // namespace

HostPages::HostPages(Backend backend, HostPagesOptions options)
    : backend_(std::move(backend)),
      options_(std::move(options)),
      layer_offsets_(options_.page_bytes.size()),
      free_(options_.classes.size()),
      made_(options_.classes.size()),
      ahead_(options_.classes.size()) {
  for (const HostClass& of : options_.classes) {
    std::uint64_t offset = 0;
    for (const std::uint32_t layer : of.layers) {
      layer_offsets_[layer] = offset;
      offset += options_.page_bytes[layer] * of.chunk.blocks;
    }
  }
}

Result<void> HostPages::grow(std::size_t of_class) {
  const HostChunk& shape = options_.classes[of_class].chunk;
  if (allocated_bytes_ + shape.chunk_bytes > options_.limit_bytes) {
    const std::uint64_t required = allocated_bytes_ + shape.chunk_bytes;
    return tl::unexpected(Error{
        Errc::host_memory,
        "the history needs " + std::to_string(required) + " bytes of host memory but may use " +
            std::to_string(options_.limit_bytes) + "; raise the limit or shorten the context",
        required,
        options_.limit_bytes,
        required - options_.limit_bytes,
        "history"});
  }
  auto chunk = make_chunk(of_class);
  if (!chunk) {
    return tl::unexpected(std::move(chunk).error());
  }
  const auto number = static_cast<std::uint32_t>(chunks_.size());
  std::vector<HostBlock>& free = free_[of_class];
  // Room first, then nothing fails any more, nor does giving blocks back: all of a class fit.
  free.reserve(free.capacity() + shape.blocks);
  if (chunks_.size() == chunks_.capacity()) {
    chunks_.reserve(2 * chunks_.size() + 1);
  }
  memories_.emplace(chunk->memory.get(), shape.chunk_bytes);
  chunks_.push_back(std::move(*chunk));
  allocated_bytes_ += shape.chunk_bytes;
  for (std::uint32_t index = shape.blocks; index-- > 0;) {
    free.push_back({number, index});
  }
  made_[of_class] += shape.blocks;
  return {};
}

// Core's own memory where the backend can import it, else the backend's. Zeroed before it is
// imported: a driver that pins untouched memory has the system zero it meanwhile, and lets nobody
// submit.
Result<HostPages::Chunk> HostPages::make_chunk(std::size_t of_class) {
  const std::uint64_t chunk_bytes = options_.classes[of_class].chunk.chunk_bytes;
  Chunk chunk;
  chunk.of_class = of_class;
  if (!is_imported()) {
    auto memory = backend_.allocate(KVSPAN_MEMORY_HOST, chunk_bytes);
    if (!memory) {
      return tl::unexpected(std::move(memory).error());
    }
    const auto address = backend_.map(*memory);
    if (!address) {
      return tl::unexpected(address.error());
    }
    chunk.memory = std::move(*memory);
    chunk.address = static_cast<std::byte*>(*address);
    std::memset(chunk.address, 0, chunk_bytes);
    return chunk;
  }
  std::vector<Ahead>& ahead = ahead_[of_class];
  if (ahead.empty() && !begin_ahead(of_class)) {
    return tl::unexpected(Error{Errc::host_memory,
                                "no host memory for " + std::to_string(chunk_bytes) +
                                    " bytes of history; free some or shorten the context",
                                chunk_bytes,
                                0,
                                chunk_bytes,
                                "history"});
  }
  make_way(of_class);
  Ahead& next = ahead.front();
  next.touch(chunk_bytes);
  auto memory = backend_.import_host(next.pages.get(), chunk_bytes);
  if (!memory) {
    return tl::unexpected(std::move(memory).error());
  }
  chunk.memory = std::move(*memory);
  chunk.address = next.pages.get();
  chunk.pages = std::move(next.pages);
  ahead.erase(ahead.begin());
  return chunk;
}

void HostPages::Ahead::touch(std::uint64_t end_bytes) {
  std::memset(pages.get() + touched_bytes, 0, end_bytes - touched_bytes);
  touched_bytes = end_bytes;
}

// Memory for another chunk, not zeroed yet; false where there is none.
bool HostPages::begin_ahead(std::size_t of_class) {
  Huge pages = make_huge(options_.classes[of_class].chunk.chunk_bytes);
  if (!pages) {
    return false;
  }
  ahead_[of_class].push_back({std::move(pages), 0});
  return true;
}

std::uint64_t HostPages::ahead_bytes() const {
  std::uint64_t bytes = 0;
  for (std::size_t index = 0; index < ahead_.size(); ++index) {
    bytes += ahead_[index].size() * options_.classes[index].chunk.chunk_bytes;
  }
  return bytes;
}

// What is for later gives way to the first chunk of a class, which is needed now.
void HostPages::make_way(std::size_t of_class) {
  for (std::size_t index = 0; index < ahead_.size(); ++index) {
    const std::size_t needed = index == of_class ? 1 : 0;
    while (ahead_[index].size() > needed &&
           allocated_bytes_ + ahead_bytes() > options_.limit_bytes) {
      ahead_[index].pop_back();
    }
  }
}

void HostPages::touch_ahead(std::size_t of_class,
                            std::uint64_t blocks,
                            std::uint64_t blocks_max,
                            Call call) {
  const HostChunk& shape = options_.classes[of_class].chunk;
  const std::uint64_t free = free_[of_class].size();
  const std::uint64_t room_blocks = blocks_max - std::min(blocks_max, made_[of_class]);
  if (!is_imported() || blocks == 0 || room_blocks == 0) {
    return;
  }
  // Chunks that this step makes behind its last call; else one, some steps later.
  const std::uint64_t lacking = std::min(blocks - std::min(blocks, free), room_blocks);
  const std::uint64_t chunks =
      std::max<std::uint64_t>((lacking + shape.blocks - 1) / shape.blocks, 1);
  const std::uint64_t steps = lacking != 0 ? 0 : (free - blocks) / blocks + 1;
  const std::uint64_t calls = steps * call.of + call.left;
  const std::uint64_t wanted_bytes = chunks * shape.chunk_bytes;
  std::uint64_t left_bytes =
      (wanted_bytes - std::min(wanted_bytes, touched_bytes(of_class)) + calls - 1) / calls;
  std::vector<Ahead>& ahead = ahead_[of_class];
  for (std::size_t index = 0; left_bytes != 0; ++index) {
    if (index == ahead.size() &&
        (allocated_bytes_ + ahead_bytes() + shape.chunk_bytes > options_.limit_bytes ||
         !begin_ahead(of_class))) {
      return;
    }
    Ahead& next = ahead[index];
    const std::uint64_t bytes = std::min(left_bytes, shape.chunk_bytes - next.touched_bytes);
    next.touch(next.touched_bytes + bytes);
    left_bytes -= bytes;
  }
}

std::uint64_t HostPages::touched_bytes(std::size_t of_class) const {
  std::uint64_t bytes = 0;
  for (const Ahead& each : ahead_[of_class]) {
    bytes += each.touched_bytes;
  }
  return bytes;
}

std::uint64_t HostPages::touched_bytes() const {
  std::uint64_t bytes = 0;
  for (std::size_t index = 0; index < ahead_.size(); ++index) {
    bytes += touched_bytes(index);
  }
  return bytes;
}

Result<HostBlock> HostPages::acquire(std::size_t of_class) {
  std::vector<HostBlock>& free = free_[of_class];
  if (free.empty()) {
    if (auto grown = grow(of_class); !grown) {
      return tl::unexpected(std::move(grown).error());
    }
  }
  const HostBlock block = free.back();
  free.pop_back();
  held_bytes_ += options_.classes[of_class].chunk.block_bytes;
  return block;
}

Result<void> HostPages::reserve(std::size_t of_class,
                                std::uint64_t blocks,
                                std::uint64_t blocks_max) {
  while (free_[of_class].size() < blocks && made_[of_class] < blocks_max) {
    if (auto grown = grow(of_class); !grown) {
      return grown;
    }
  }
  return {};
}

void HostPages::release(HostBlock block) noexcept {
  const std::size_t of_class = chunks_[block.chunk].of_class;
  free_[of_class].push_back(block);
  held_bytes_ -= options_.classes[of_class].chunk.block_bytes;
}

std::uint64_t HostPages::chunk_bytes(const kvspan_memory_t* memory) const {
  const auto found = memories_.find(memory);
  return found == memories_.end() ? 0 : found->second;
}

HostPage HostPages::page(HostBlock block, std::size_t layer) const {
  const Chunk& chunk = chunks_[block.chunk];
  const std::uint64_t offset = layer_offsets_[layer] + block.index * options_.page_bytes[layer];
  return {chunk.memory.get(), offset, chunk.address + offset};
}

}  // namespace kvspan
