// SPDX-License-Identifier: Apache-2.0
// Read first: counted_new.hpp.
#include "counted_new.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

// The count has to outlive and precede everything that allocates.
std::atomic<uint64_t>& news() {
  static constinit std::atomic<uint64_t> count{0};
  return count;
}

}  // namespace

void* operator new(std::size_t bytes) {
  news().fetch_add(1, std::memory_order_relaxed);
  if (void* const block = std::malloc(bytes == 0 ? 1 : bytes)) {
    return block;
  }
  throw std::bad_alloc();
}

void operator delete(void* block) noexcept {
  std::free(block);
}

void operator delete(void* block, std::size_t) noexcept {
  std::free(block);
}

namespace kvspan::cpu {

uint64_t news_so_far() {
  return news().load(std::memory_order_relaxed);
}

}  // namespace kvspan::cpu
