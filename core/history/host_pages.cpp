// SPDX-License-Identifier: Apache-2.0
// HostPages: chunks on huge-page boundaries, imported where the backend can, else taken from the
// backend.
#include "kvspan/core/history/host_pages.hpp"

#include "kvspan/core/history/host_chunk.hpp"

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

HostPages::HostPages(const Backend& backend, HostPagesOptions options)
    : backend_(backend), options_(std::move(options)) {}

Result<HostPages> HostPages::create(const Backend& backend, HostPagesOptions options) {
  HostPages pages(backend, std::move(options));
  const auto chunk = host_chunk(pages.options_.page_bytes, backend.info().import_alignment);
  if (!chunk) {
    return tl::unexpected(chunk.error());
  }
  pages.chunk_blocks_ = chunk->blocks;
  pages.chunk_bytes_ = chunk->chunk_bytes;
  std::uint64_t offset = 0;
  for (const std::uint64_t bytes : pages.options_.page_bytes) {
    pages.layer_offsets_.push_back(offset);
    offset += bytes * pages.chunk_blocks_;
  }
  return pages;
}

Result<void> HostPages::grow() {
  if (allocated_bytes_ + chunk_bytes_ > options_.limit_bytes) {
    const std::uint64_t required = allocated_bytes_ + chunk_bytes_;
    return tl::unexpected(Error{
        Errc::host_memory,
        "the history needs " + std::to_string(required) + " bytes of host memory but may use " +
            std::to_string(options_.limit_bytes) + "; raise the limit or shorten the context",
        required,
        options_.limit_bytes,
        required - options_.limit_bytes,
        "history"});
  }
  Chunk chunk;
  if (backend_.info().import_alignment == 0) {
    auto memory = backend_.allocate(KVSPAN_MEMORY_HOST, chunk_bytes_);
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
        ::operator new[](chunk_bytes_, std::align_val_t{kHugePageBytes}, std::nothrow);
    if (block == nullptr) {
      return tl::unexpected(Error{Errc::host_memory,
                                  "no host memory for " + std::to_string(chunk_bytes_) +
                                      " bytes of history; free some or shorten the context",
                                  chunk_bytes_,
                                  0,
                                  chunk_bytes_,
                                  "history"});
    }
    chunk.pages = {static_cast<std::byte*>(block), free_huge};
    chunk.address = chunk.pages.get();
    // Advice only: without huge pages everything is as right, an import just takes longer.
    (void)madvise(block, chunk_bytes_, MADV_HUGEPAGE);
    auto memory = backend_.import_host(block, chunk_bytes_);
    if (!memory) {
      return tl::unexpected(std::move(memory).error());
    }
    chunk.memory = std::move(*memory);
  }
  std::memset(chunk.address, 0, chunk_bytes_);
  const auto number = static_cast<std::uint32_t>(chunks_.size());
  memories_.insert(chunk.memory.get());
  chunks_.push_back(std::move(chunk));
  allocated_bytes_ += chunk_bytes_;
  for (std::uint32_t index = chunk_blocks_; index-- > 0;) {
    free_.push_back({number, index});
  }
  return {};
}

Result<HostBlock> HostPages::acquire() {
  if (free_.empty()) {
    if (auto grown = grow(); !grown) {
      return tl::unexpected(std::move(grown).error());
    }
  }
  const HostBlock block = free_.back();
  free_.pop_back();
  return block;
}

void HostPages::release(HostBlock block) {
  free_.push_back(block);
}

bool HostPages::owns(const kvspan_memory_t* memory) const {
  return memories_.contains(memory);
}

HostPage HostPages::page(HostBlock block, std::size_t layer) const {
  const Chunk& chunk = chunks_[block.chunk];
  const std::uint64_t offset = layer_offsets_[layer] + block.index * options_.page_bytes[layer];
  return {chunk.memory.get(), offset, chunk.address + offset};
}

}  // namespace kvspan
