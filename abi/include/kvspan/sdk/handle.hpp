// SPDX-License-Identifier: Apache-2.0
// Move-only owners of the ABI's four handles: Device, Memory, Queue, Fence. A destructor destroys;
// it cannot wait, so what the plugin calls BUSY stays alive and is lost: reset() first where that
// can be. An owner must die before the device that made it, and all before the plugin. Not here:
// opening a plugin (loader.hpp). `P` is a Plugin, or anything with its accessors.
#pragma once

#include "kvspan/device.h"
#include "kvspan/fence.h"
#include "kvspan/memory.h"
#include "kvspan/queue.h"
#include "kvspan/sdk/error.hpp"

#include <cstdint>
#include <utility>

namespace kvspan::sdk {

/// A handle and the slot that ends it. Thread class: that of the slot.
template <class H>
class Owned {
 public:
  using Destroy = kvspan_result_t(KVSPAN_CALL*)(H*, kvspan_error_t*) KVSPAN_NOTHROW;

  Owned() = default;

  Owned(H* handle, Destroy destroy) noexcept : handle_(handle), destroy_(destroy) {}

  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  Owned(Owned&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), destroy_(other.destroy_) {}

  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      (void)reset();
      handle_ = std::exchange(other.handle_, nullptr);
      destroy_ = other.destroy_;
    }
    return *this;
  }

  ~Owned() { (void)reset(); }

  /// Destroys now. On failure (BUSY) the handle stays owned: settle its work and call again.
  kvspan_result_t reset(kvspan_error_t* error = nullptr) noexcept {
    if (handle_ == nullptr) {
      return KVSPAN_OK;
    }
    const kvspan_result_t result = destroy_(handle_, error);
    if (result == KVSPAN_OK) {
      handle_ = nullptr;
    }
    return result;
  }

  /// Borrowed; NULL when empty.
  H* get() const noexcept { return handle_; }

  /// Gives the handle up: the caller destroys it.
  H* release() noexcept { return std::exchange(handle_, nullptr); }

  explicit operator bool() const noexcept { return handle_ != nullptr; }

 protected:
  /// What a creating slot returned, checked: OK comes with a handle, and nothing else does.
  static kvspan_result_t adopt(kvspan_result_t result,
                               Owned made,
                               Owned& out,
                               kvspan_error_t* error,
                               const char* where) noexcept {
    if (result != KVSPAN_OK) {
      (void)made.release();
      return result < 0 ? result
                        : fail(error,
                               KVSPAN_E_INTERNAL,
                               where,
                               "the plugin returned %d, which this slot may not: report it",
                               result);
    }
    if (!made) {
      return fail(error,
                  KVSPAN_E_INTERNAL,
                  where,
                  "the plugin returned OK and no handle: report it to its maker");
    }
    out = std::move(made);
    return KVSPAN_OK;
  }

 private:
  H* handle_ = nullptr;
  Destroy destroy_ = nullptr;
};

/// An open device.
class Device : public Owned<kvspan_device_t> {
 public:
  /// Opens device `index`. Errors as the device table's open; INTERNAL: OK without a handle.
  template <class P>
  [[nodiscard]] static kvspan_result_t open(const P& plugin,
                                            std::uint32_t index,
                                            Device& out,
                                            kvspan_error_t* error) noexcept {
    kvspan_device_t* made = nullptr;
    const kvspan_device_table_t* table = plugin.device();
    const kvspan_result_t result = table->open(plugin.self(), index, &made, error);
    return adopt(result, Owned(made, table->close), out, error, "device.open");
  }
};

/// A memory of a device.
class Memory : public Owned<kvspan_memory_t> {
 public:
  /// `bytes` bytes of KVSPAN_MEMORY_DEVICE or _HOST. Errors as the memory table's alloc.
  template <class P>
  [[nodiscard]] static kvspan_result_t alloc(const P& plugin,
                                             kvspan_device_t* device,
                                             std::uint32_t kind,
                                             std::uint64_t bytes,
                                             Memory& out,
                                             kvspan_error_t* error) noexcept {
    kvspan_memory_t* made = nullptr;
    const kvspan_memory_table_t* table = plugin.memory();
    const kvspan_result_t result = table->alloc(device, kind, bytes, &made, error);
    return adopt(result, Owned(made, table->release), out, error, "memory.alloc");
  }

  /// The caller's own pages, which outlive the owner. Errors as the memory table's import_host.
  template <class P>
  [[nodiscard]] static kvspan_result_t import_host(const P& plugin,
                                                   kvspan_device_t* device,
                                                   void* address,
                                                   std::uint64_t bytes,
                                                   Memory& out,
                                                   kvspan_error_t* error) noexcept {
    kvspan_memory_t* made = nullptr;
    const kvspan_memory_table_t* table = plugin.memory();
    const kvspan_result_t result = table->import_host(device, address, bytes, &made, error);
    return adopt(result, Owned(made, table->release), out, error, "memory.import_host");
  }
};

/// A queue of a device.
class Queue : public Owned<kvspan_queue_t> {
 public:
  /// Role and depth in `options`, struct_size set. Errors as the queue table's create.
  template <class P>
  [[nodiscard]] static kvspan_result_t create(const P& plugin,
                                              kvspan_device_t* device,
                                              const kvspan_queue_options_t& options,
                                              Queue& out,
                                              kvspan_error_t* error) noexcept {
    kvspan_queue_t* made = nullptr;
    const kvspan_queue_table_t* table = plugin.queue();
    const kvspan_result_t result = table->create(device, &options, &made, error);
    return adopt(result, Owned(made, table->destroy), out, error, "queue.create");
  }
};

/// A timeline fence of a device.
class Fence : public Owned<kvspan_fence_t> {
 public:
  /// A fence at `initial`. Errors as the fence table's create.
  template <class P>
  [[nodiscard]] static kvspan_result_t create(const P& plugin,
                                              kvspan_device_t* device,
                                              std::uint64_t initial,
                                              Fence& out,
                                              kvspan_error_t* error) noexcept {
    kvspan_fence_t* made = nullptr;
    const kvspan_fence_table_t* table = plugin.fence();
    const kvspan_result_t result = table->create(device, initial, &made, error);
    return adopt(result, Owned(made, table->destroy), out, error, "fence.create");
  }
};

}  // namespace kvspan::sdk
