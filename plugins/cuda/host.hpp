// SPDX-License-Identifier: Apache-2.0
// The host's services as the plugin uses them: memory with owners, log lines, clock, options.
// Everything that the plugin keeps for itself comes from here; K, V and what the host allocates as
// memory of the device does not (memory.cpp). Read next: device.hpp.
#pragma once

#include "kvspan/host.h"

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace kvspan::cuda {

class Host {
 public:
  explicit Host(const kvspan_host_services_t* services) : services_(services) {}

  // nullptr when the host has no memory.
  [[nodiscard]] void* alloc(uint64_t bytes, uint64_t alignment) const noexcept {
    return services_->alloc(services_->self, bytes, alignment);
  }

  void free(void* block, uint64_t bytes, uint64_t alignment) const noexcept {
    services_->free(services_->self, block, bytes, alignment);
  }

  // An object of its own; nullptr when the host has no memory. unmake() ends it.
  template <class T, class... Arguments>
  [[nodiscard]] T* make(Arguments&&... arguments) const {
    void* const block = alloc(sizeof(T), alignof(T));
    return block == nullptr ? nullptr : new (block) T(std::forward<Arguments>(arguments)...);
  }

  template <class T>
  void unmake(T* object) const noexcept {
    object->~T();
    free(object, sizeof(T), alignof(T));
  }

  [[nodiscard]] uint64_t now_ns() const noexcept { return services_->now_ns(services_->self); }

  // One line, printf's format, cut at 255 bytes.
  [[gnu::format(printf, 3, 4)]] void log(uint32_t level, const char* format, ...) const noexcept;

  // The option as a decimal number; `absent` when it is not set. False: set, but not such a number.
  [[nodiscard]] bool option(const char* key, uint64_t absent, uint64_t& value) const noexcept;

 private:
  const kvspan_host_services_t* services_;
};

// A piece of the host's memory, 64-byte aligned, given back by the destructor.
class Block {
 public:
  Block() = default;

  Block(Block&& other) noexcept { swap(other); }

  Block& operator=(Block&& other) noexcept {
    Block taken(std::move(other));
    swap(taken);
    return *this;
  }

  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  ~Block() {
    if (data_ != nullptr) {
      host_->free(data_, bytes_, kAlignment);
    }
  }

  // Empty when the host has no memory; zero bytes are always empty.
  [[nodiscard]] static Block of(const Host& host, uint64_t bytes) noexcept {
    Block block;
    block.data_ = bytes == 0 ? nullptr : static_cast<uint8_t*>(host.alloc(bytes, kAlignment));
    block.bytes_ = block.data_ == nullptr ? 0 : bytes;
    block.host_ = &host;
    return block;
  }

  [[nodiscard]] uint8_t* data() const noexcept { return data_; }

  [[nodiscard]] uint64_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr uint64_t kAlignment = 64;

  void swap(Block& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  const Host* host_ = nullptr;
  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Gives out arrays of a block one after another, each 64-byte aligned; without a block it only
// counts. A layout is a function that cuts its arrays in order: run once to count, once to place.
class Cutter {
 public:
  explicit Cutter(uint8_t* block) : block_(block) {}

  template <class T>
  void cut(T*& array, uint64_t elements) {
    array = block_ == nullptr ? nullptr : reinterpret_cast<T*>(block_ + bytes_);
    // NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers is meant where T is one
    bytes_ += (elements * sizeof(T) + 63) / 64 * 64;
  }

  [[nodiscard]] bool counts() const { return block_ == nullptr; }

  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  uint8_t* block_;
  uint64_t bytes_ = 0;
};

}  // namespace kvspan::cuda
