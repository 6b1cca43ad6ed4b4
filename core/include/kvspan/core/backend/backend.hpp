// SPDX-License-Identifier: Apache-2.0
// The typed face of one opened device: its tables, its facts, and memory handles that give
// themselves back. Opens nothing: the host loads the plugin, opens the device and hands both in;
// they outlive every Backend. Read next: lane.hpp (queues and fences), session/session.hpp (who
// uses all of it).
#pragma once

#include "kvspan/core/backend/reservations.hpp"
#include "kvspan/core/error.hpp"
#include "kvspan/kvspan.h"

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace kvspan {

// The tables of one plugin. `attention` and `debug` may be null (optional tables), the others
// never.
struct BackendTables {
  const kvspan_device_table_t* device = nullptr;
  const kvspan_memory_table_t* memory = nullptr;
  const kvspan_queue_table_t* queue = nullptr;
  const kvspan_fence_table_t* fence = nullptr;
  const kvspan_copy_table_t* copy = nullptr;
  const kvspan_codec_table_t* codec = nullptr;
  const kvspan_attention_table_t* attention = nullptr;
  const kvspan_debug_table_t* debug = nullptr;
};

// Owns one memory of the device and releases it. Move-only. Release happens when nothing pending
// names it: owners drain their lanes first.
class DeviceMemory {
 public:
  DeviceMemory() = default;

  DeviceMemory(const kvspan_memory_table_t* table,
               kvspan_memory_t* memory,
               std::uint64_t size_bytes)
      : table_(table), memory_(memory), size_bytes_(size_bytes) {}

  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }

  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    DeviceMemory taken(std::move(other));
    swap(taken);
    return *this;
  }

  ~DeviceMemory();

  [[nodiscard]] kvspan_memory_t* get() const { return memory_; }

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }

  explicit operator bool() const { return memory_ != nullptr; }

  // Hands the memory over to somebody who releases it.
  [[nodiscard]] kvspan_memory_t* detach() { return std::exchange(memory_, nullptr); }

 private:
  void swap(DeviceMemory& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(memory_, other.memory_);
    std::swap(size_bytes_, other.size_bytes_);
  }

  const kvspan_memory_table_t* table_ = nullptr;
  kvspan_memory_t* memory_ = nullptr;
  std::uint64_t size_bytes_ = 0;
};

// A device as core sees it. Cheap to copy; owns nothing of the device. One Backend and its copies
// for each opened device: they share what its sessions have reserved. Thread class: ANY for const
// members.
class Backend {
 public:
  Backend(const BackendTables& tables, kvspan_device_t* device, const kvspan_device_info_t& info)
      : tables_(tables),
        device_(device),
        info_(info),
        reservations_(std::make_shared<Reservations>()) {}

  [[nodiscard]] const BackendTables& tables() const { return tables_; }

  [[nodiscard]] kvspan_device_t* device() const { return device_; }

  [[nodiscard]] const kvspan_device_info_t& info() const { return info_; }

  [[nodiscard]] Reservations& reservations() const { return *reservations_; }

  // Device memory or host memory of the plugin. Fails with device_memory or host_memory and exact
  // amounts where the plugin knows them: free some or ask for less.
  [[nodiscard]] Result<DeviceMemory> allocate(std::uint32_t kind, std::uint64_t size_bytes) const;

  // Makes the caller's pages reachable; the pages outlive the handle. `address` and `size_bytes`
  // are multiples of info().import_alignment.
  [[nodiscard]] Result<DeviceMemory> import_host(void* address, std::uint64_t size_bytes) const;

  // The host address of a memory's byte 0.
  [[nodiscard]] Result<void*> map(const DeviceMemory& memory) const;

  // What its copies can do. Fails as the plugin does.
  [[nodiscard]] Result<kvspan_copy_limits_t> copy_limits() const;

  // The capability of a shape. Fails with `unsupported`, naming reasons and the nearest that works,
  // when the level is below native: core never runs a converted shape that nobody consented to.
  [[nodiscard]] Result<kvspan_attention_caps_t> query(const kvspan_attention_shape_t& shape) const;

 private:
  BackendTables tables_;
  kvspan_device_t* device_;
  kvspan_device_info_t info_;
  std::shared_ptr<Reservations> reservations_;
};

// A multiple of all alignments of a copy, in bytes: what rows of a geometry must be aligned to, so
// that no copy of a row reaches into its neighbours. Pure; any thread.
[[nodiscard]] std::uint64_t copy_alignment(const kvspan_copy_limits_t& limits);

// An error record ready to be passed to a slot.
[[nodiscard]] kvspan_error_t empty_error();

}  // namespace kvspan
