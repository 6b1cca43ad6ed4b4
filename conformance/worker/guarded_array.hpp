// SPDX-License-Identifier: Apache-2.0
// An array that ends where memory ends: the page behind it cannot be touched, so reading past it is
// a crash, and protect() takes the array itself away, so reading it later is one too.
#ifndef KVSPAN_CONFORMANCE_WORKER_GUARDED_ARRAY_H
#define KVSPAN_CONFORMANCE_WORKER_GUARDED_ARRAY_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <type_traits>
#include <unistd.h>
#include <vector>

namespace kvspan::conformance {

/// Whole pages with one behind them that cannot be touched.
class GuardedPages {
 public:
  explicit GuardedPages(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    usable_ = (bytes + page - 1) / page * page + (bytes == 0 ? page : 0);
    void* all =
        ::mmap(nullptr, usable_ + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    base_ = all == MAP_FAILED ? nullptr : static_cast<uint8_t*>(all);
    mapped_ = usable_ + page;
    if (base_ != nullptr) {
      ::mprotect(base_ + usable_, page, PROT_NONE);
    }
  }

  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;
  GuardedPages(GuardedPages&&) = delete;
  GuardedPages& operator=(GuardedPages&&) = delete;

  ~GuardedPages() {
    if (base_ != nullptr) {
      ::munmap(base_, mapped_);
    }
  }

  /// NULL when the system gave none.
  uint8_t* end() const { return base_ == nullptr ? nullptr : base_ + usable_; }

  void protect() { ::mprotect(base_, usable_, PROT_NONE); }

 private:
  uint8_t* base_ = nullptr;
  std::size_t usable_ = 0;
  std::size_t mapped_ = 0;
};

/// Arrays of one call, copied to the ends of pages of their own.
class GuardedArrays {
 public:
  /// NULL for an empty array.
  template <class T>
  T* keep(const T* values, std::size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (values == nullptr || count == 0) {
      return nullptr;
    }
    pages_.push_back(std::make_unique<GuardedPages>(count * sizeof(T)));
    uint8_t* at = pages_.back()->end() - count * sizeof(T);
    std::memcpy(at, values, count * sizeof(T));
    return reinterpret_cast<T*>(at);
  }

  template <class T>
  T* keep(const std::vector<T>& values) {
    return keep(values.data(), values.size());
  }

  /// From now on a touch is a crash.
  void protect() {
    for (const auto& one : pages_) {
      one->protect();
    }
  }

 private:
  std::vector<std::unique_ptr<GuardedPages>> pages_;
};

}  // namespace kvspan::conformance

#endif
