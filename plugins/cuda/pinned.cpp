// SPDX-License-Identifier: Apache-2.0
// Read first: pinned.hpp.
#include "pinned.hpp"

namespace kvspan::cuda {

namespace {

constexpr uint64_t kSlabBytesMin = 4096;
constexpr uint64_t kChunkBytesMin = uint64_t{1} << 20;

}  // namespace

cudaError_t PinnedPool::open(int index) noexcept {
  const cudaError_t bad = pages_.open(index);
  const std::lock_guard lock(mutex_);
  return bad != cudaSuccess ? bad : add_chunk(kSlabBytesMin);
}

uint32_t PinnedPool::class_of(uint64_t bytes) noexcept {
  const uint64_t least = bytes < kSlabBytesMin ? kSlabBytesMin : bytes;
  return 64u - static_cast<uint32_t>(__builtin_clzll(least - 1));
}

// A slab's first bytes link it while it is free. The mutex is held.
void PinnedPool::keep(uint8_t* data, uint64_t bytes) noexcept {
  const uint32_t kind = class_of(bytes);
  auto* const link = reinterpret_cast<Link*>(data);
  link->next = free_[kind];
  free_[kind] = link;
}

// Page-locked bytes with a header; nullptr: `bad` says why. The mutex is held.
PinnedPool::Chunk* PinnedPool::make_chunk(uint64_t bytes,
                                          bool reservable,
                                          cudaError_t& bad) noexcept {
  uint8_t* made = nullptr;
  bad = pages_.take(bytes, made);
  if (bad != cudaSuccess) {
    return nullptr;
  }
  auto* const chunk = reinterpret_cast<Chunk*>(made);
  *chunk = {chunks_, bytes, reservable, false};
  chunks_ = chunk;
  bytes_ += bytes;
  return chunk;
}

// A chunk's header takes a slab of its own size where slabs are small, so that all stay aligned.
cudaError_t PinnedPool::add_chunk(uint64_t slab_bytes) noexcept {
  const uint64_t wanted = slab_bytes + kSlabBytesMin;
  const uint64_t bytes = wanted < kChunkBytesMin ? kChunkBytesMin : wanted;
  cudaError_t bad = cudaSuccess;
  Chunk* const chunk = make_chunk(bytes, false, bad);
  if (chunk == nullptr) {
    return bad;
  }
  auto* const base = reinterpret_cast<uint8_t*>(chunk);
  for (uint64_t at = kSlabBytesMin; at + slab_bytes <= bytes; at += slab_bytes) {
    keep(base + at, slab_bytes);
  }
  return cudaSuccess;
}

cudaError_t PinnedPool::grow(Slab& slab, uint64_t bytes) noexcept {
  if (slab.bytes >= bytes) {
    return cudaSuccess;
  }
  const uint32_t kind = class_of(bytes);
  if (kind >= kClasses) {
    return cudaErrorMemoryAllocation;
  }
  const std::lock_guard lock(mutex_);
  if (free_[kind] == nullptr) {
    if (const cudaError_t bad = add_chunk(uint64_t{1} << kind)) {
      return bad;
    }
  }
  Link* const taken = free_[kind];
  free_[kind] = taken->next;
  if (slab.data != nullptr) {
    keep(slab.data, slab.bytes);
  }
  slab = {reinterpret_cast<uint8_t*>(taken), uint64_t{1} << kind};
  return cudaSuccess;
}

void PinnedPool::give_back(Slab& slab) noexcept {
  const std::lock_guard lock(mutex_);
  if (slab.data != nullptr) {
    keep(slab.data, slab.bytes);
  }
  slab = {};
}

// The smallest one that fits and is not reserved. The mutex is held.
PinnedPool::Chunk* PinnedPool::find_reservable(uint64_t bytes) const noexcept {
  Chunk* found = nullptr;
  for (Chunk* chunk = chunks_; chunk != nullptr; chunk = chunk->next) {
    const bool fits = chunk->reservable && !chunk->reserved && chunk->bytes >= bytes;
    if (fits && (found == nullptr || chunk->bytes < found->bytes)) {
      found = chunk;
    }
  }
  return found;
}

cudaError_t PinnedPool::reserve(Slab& slab, uint64_t bytes) noexcept {
  if (slab.bytes >= bytes) {
    return cudaSuccess;
  }
  const uint64_t wanted = (bytes + 2 * kSlabBytesMin - 1) / kSlabBytesMin * kSlabBytesMin;
  Slab found;
  {
    const std::lock_guard lock(mutex_);
    Chunk* chunk = find_reservable(wanted);
    if (chunk == nullptr) {
      cudaError_t bad = cudaSuccess;
      chunk = make_chunk(wanted, true, bad);
      if (chunk == nullptr) {
        return bad;
      }
    }
    chunk->reserved = true;
    found = {reinterpret_cast<uint8_t*>(chunk) + kSlabBytesMin, chunk->bytes - kSlabBytesMin};
  }
  unreserve(slab);
  slab = found;
  return cudaSuccess;
}

void PinnedPool::unreserve(Slab& slab) noexcept {
  const std::lock_guard lock(mutex_);
  if (slab.data != nullptr) {
    reinterpret_cast<Chunk*>(slab.data - kSlabBytesMin)->reserved = false;
  }
  slab = {};
}

void PinnedPool::close() noexcept {
  const std::lock_guard lock(mutex_);
  while (chunks_ != nullptr) {
    Chunk* const chunk = chunks_;
    chunks_ = chunk->next;
    pages_.give_back(reinterpret_cast<uint8_t*>(chunk));
  }
  for (Link*& first : free_) {
    first = nullptr;
  }
  bytes_ = 0;
  pages_.close();
}

uint64_t PinnedPool::bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  const uint64_t held = pages_.held_bytes();
  return held > bytes_ ? held : bytes_;
}

}  // namespace kvspan::cuda
