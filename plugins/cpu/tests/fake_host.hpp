// SPDX-License-Identifier: Apache-2.0
// A host for tests: counts what a plugin holds, fails the nth allocation, answers options.
#pragma once

#include "kvspan/host.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>

namespace kvspan::cpu {

class FakeHost {
 public:
  explicit FakeHost(std::map<std::string, std::string> options = {})
      : options_(std::move(options)) {
    services_.struct_size = sizeof services_;
    services_.log_level = KVSPAN_LOG_DEBUG;
    services_.self = reinterpret_cast<kvspan_host_t*>(this);
    services_.log = [](kvspan_host_t* self, uint32_t, const char*, uint32_t) noexcept {
      ++of(self).lines_;
    };
    services_.alloc = [](kvspan_host_t* self, uint64_t bytes, uint64_t alignment) noexcept {
      return of(self).alloc(bytes, alignment);
    };
    services_.free = [](kvspan_host_t* self, void* block, uint64_t bytes, uint64_t) noexcept {
      if (block != nullptr) {
        --of(self).blocks_;
        of(self).bytes_ -= bytes;
        std::free(block);
      }
    };
    services_.now_ns = [](kvspan_host_t*) noexcept {
      return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    };
    services_.option =
        [](kvspan_host_t* self, const char* key, char* target, uint64_t capacity) noexcept {
          return of(self).option(key, target, capacity);
        };
  }

  [[nodiscard]] const kvspan_host_services_t* services() const { return &services_; }

  // Allocations ever asked for, blocks and bytes held now, lines logged.
  [[nodiscard]] uint64_t asked() const { return asked_; }

  [[nodiscard]] int64_t blocks() const { return blocks_; }

  [[nodiscard]] uint64_t bytes() const { return bytes_; }

  [[nodiscard]] uint64_t lines() const { return lines_; }

  // The nth allocation from now fails, once; 0 = none.
  void fail_in(uint64_t nth) { fail_at_ = nth == 0 ? 0 : asked_ + nth; }

 private:
  static FakeHost& of(kvspan_host_t* self) { return *reinterpret_cast<FakeHost*>(self); }

  void* alloc(uint64_t bytes, uint64_t alignment) {
    if (++asked_ == fail_at_) {
      return nullptr;
    }
    const uint64_t unit = alignment < sizeof(void*) ? sizeof(void*) : alignment;
    void* const block = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (block != nullptr) {
      ++blocks_;
      bytes_ += bytes;
    }
    return block;
  }

  uint64_t option(const char* key, char* target, uint64_t capacity) const {
    const auto found = options_.find(key);
    if (found == options_.end()) {
      return 0;
    }
    const std::string& value = found->second;
    if (capacity > 0) {
      const uint64_t bytes = value.size() < capacity ? value.size() : capacity - 1;
      std::memcpy(target, value.data(), bytes);
      target[bytes] = '\0';
    }
    return value.size();
  }

  std::map<std::string, std::string> options_;
  kvspan_host_services_t services_{};
  std::atomic<uint64_t> asked_{0};
  std::atomic<uint64_t> fail_at_{0};
  std::atomic<int64_t> blocks_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> lines_{0};
};

}  // namespace kvspan::cpu
