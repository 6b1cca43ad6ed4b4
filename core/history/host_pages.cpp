// SPDX-License-Identifier: Apache-2.0
// HostPages: chunks on huge-page boundaries, imported where the backend can, else taken from the
// backend.
#include "kvspan/core/history/host_pages.hpp"

#include <cstring>
#include <new>
#include <string>
#include <sys/mman.h>
#include <utility>

namespace kvspan {

namespace {

// x86-64 huge pages; also a multiple of every import alignment that a page-sized device has.
constexpr std::uint64_t kHugePageBytes = 2ULL << 20;

void free_huge(std::byte* address) {
  ::operator delete[](address, std::align_val_t{kHugePageBytes});
}

}  // namespace

HostPages::HostPages(Backend backend, HostPagesOptions options)
    : backend_(std::move(backend)),
      options_(std::move(options)),
      layer_offsets_(options_.page_bytes.size()),
      free_(options_.classes.size()) {
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
  auto chunk = make_chunk(shape.chunk_bytes);
  if (!chunk) {
    return tl::unexpected(std::move(chunk).error());
  }
  chunk->of_class = of_class;
  std::memset(chunk->address, 0, shape.chunk_bytes);
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
  return {};
}

// Core's own memory where the backend can import it, else the backend's.
Result<HostPages::Chunk> HostPages::make_chunk(std::uint64_t chunk_bytes) const {
  Chunk chunk;
  if (backend_.info().import_alignment == 0) {
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
  } else {
    void* const block =
        ::operator new[](chunk_bytes, std::align_val_t{kHugePageBytes}, std::nothrow);
    if (block == nullptr) {
      return tl::unexpected(Error{Errc::host_memory,
                                  "no host memory for " + std::to_string(chunk_bytes) +
                                      " bytes of history; free some or shorten the context",
                                  chunk_bytes,
                                  0,
                                  chunk_bytes,
                                  "history"});
    }
    chunk.pages = {static_cast<std::byte*>(block), free_huge};
    chunk.address = chunk.pages.get();
    // Advice only: without huge pages everything is as right, an import just takes longer.
    (void)madvise(block, chunk_bytes, MADV_HUGEPAGE);
    auto memory = backend_.import_host(block, chunk_bytes);
    if (!memory) {
      return tl::unexpected(std::move(memory).error());
    }
    chunk.memory = std::move(*memory);
  }
  return chunk;
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
