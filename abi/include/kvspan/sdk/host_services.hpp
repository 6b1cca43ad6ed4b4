// SPDX-License-Identifier: Apache-2.0
// What a host lends a plugin: log, memory, clock, options, from one options struct.
// Not here: opening a plugin (loader.hpp).
#pragma once

#include "kvspan/host.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace kvspan::sdk {

/// What becomes of the mapped file when a plugin has closed.
enum class Unload {
  keep_mapped,  ///< sanitizers keep their stacks, and no late callback of a vendor library crashes
  unmap         ///< dlclose; for tests of unloading
};

/// How a plugin is loaded. The functions are called from any thread, also at the same time, until
/// the plugin has closed, and throw nothing.
struct LoadOptions {
  std::map<std::string, std::string> options;  ///< of the plugin: "threads" -> "2"
  /// One line without a line end; unset: lines are dropped.
  std::function<void(std::uint32_t level, std::string_view text)> log;
  std::uint32_t log_level = KVSPAN_LOG_WARNING;
  /// Memory for the plugin's own bookkeeping; unset: operator new. Both or none. NULL = out of
  /// memory.
  std::function<void*(std::uint64_t bytes, std::uint64_t alignment)> alloc;
  std::function<void(void* block, std::uint64_t bytes, std::uint64_t alignment)> free;
  /// Nanoseconds that never go back; unset: the steady clock.
  std::function<std::uint64_t()> now_ns;
  Unload unload = Unload::keep_mapped;
};

/// The table of host services over a LoadOptions. Does not move: the plugin holds its address.
class HostServices {
 public:
  explicit HostServices(LoadOptions options) : options_(std::move(options)) {
    table_.struct_size = sizeof table_;
    table_.log_level = options_.log ? options_.log_level : KVSPAN_LOG_ERROR;
    table_.self = reinterpret_cast<kvspan_host_t*>(this);
    table_.log = log;
    table_.alloc = alloc;
    table_.free = free;
    table_.now_ns = now_ns;
    table_.option = option;
  }

  HostServices(const HostServices&) = delete;
  HostServices& operator=(const HostServices&) = delete;
  HostServices(HostServices&&) = delete;
  HostServices& operator=(HostServices&&) = delete;
  ~HostServices() = default;

  const kvspan_host_services_t* table() const noexcept { return &table_; }

  const LoadOptions& options() const noexcept { return options_; }

 private:
  static const LoadOptions& of(kvspan_host_t* self) noexcept {
    return reinterpret_cast<HostServices*>(self)->options_;
  }

  static void KVSPAN_CALL log(kvspan_host_t* self,
                              std::uint32_t level,
                              const char* text,
                              std::uint32_t byte_count) noexcept {
    const LoadOptions& options = of(self);
    if (options.log && level <= options.log_level && text != nullptr) {
      options.log(level, std::string_view(text, byte_count));
    }
  }

  static void* KVSPAN_CALL alloc(kvspan_host_t* self,
                                 std::uint64_t bytes,
                                 std::uint64_t alignment) noexcept {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
      return nullptr;
    }
    const LoadOptions& options = of(self);
    if (options.alloc) {
      return options.alloc(bytes, alignment);
    }
    return ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
  }

  static void KVSPAN_CALL free(kvspan_host_t* self,
                               void* block,
                               std::uint64_t bytes,
                               std::uint64_t alignment) noexcept {
    if (block == nullptr) {
      return;
    }
    const LoadOptions& options = of(self);
    if (options.free) {
      options.free(block, bytes, alignment);
    } else {
      ::operator delete(block, std::align_val_t(alignment));
    }
  }

  static std::uint64_t KVSPAN_CALL now_ns(kvspan_host_t* self) noexcept {
    const LoadOptions& options = of(self);
    if (options.now_ns) {
      return options.now_ns();
    }
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
  }

  static std::uint64_t KVSPAN_CALL option(kvspan_host_t* self,
                                          const char* key,
                                          char* target,
                                          std::uint64_t capacity) noexcept {
    const std::map<std::string, std::string>& options = of(self).options;
    const std::string_view wanted(key == nullptr ? "" : key);
    for (const auto& [name, value] : options) {  // few, and no allocation for the key
      if (name != wanted) {
        continue;
      }
      if (capacity != 0 && target != nullptr) {
        const std::size_t bytes = value.size() < capacity ? value.size() : capacity - 1;
        std::memcpy(target, value.data(), bytes);
        target[bytes] = '\0';
      }
      return value.size();
    }
    return 0;
  }

  LoadOptions options_;
  kvspan_host_services_t table_{};
};

}  // namespace kvspan::sdk
