// SPDX-License-Identifier: Apache-2.0
// Read first: failing_new.hpp.
#include "failing_new.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

// The count has to outlive and precede everything that allocates.
struct Failing {
  std::atomic<std::uint64_t> left{0};  // news until one fails; 0: none will
  std::atomic<bool> goes_on{false};
  std::atomic<bool> failed{false};
};

Failing& failing() {
  static constinit Failing value;
  return value;
}

bool fails_now() {
  Failing& state = failing();
  if (state.failed.load() && state.goes_on.load()) {
    return true;
  }
  if (state.left.load() == 0 || state.left.fetch_sub(1) != 1) {
    return false;
  }
  state.failed.store(true);
  return true;
}

}  // namespace

void* operator new(std::size_t bytes) {
  if (fails_now()) {
    throw std::bad_alloc();
  }
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

namespace kvspan::test {

void fail_new(std::uint64_t nth, NewFails how) {
  failing().failed.store(false);
  failing().goes_on.store(how == NewFails::from_then_on);
  failing().left.store(nth);
}

bool new_has_failed() {
  return failing().failed.load();
}

}  // namespace kvspan::test
