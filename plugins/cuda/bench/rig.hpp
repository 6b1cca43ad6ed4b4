// SPDX-License-Identifier: Apache-2.0
// The plugin under measurement, opened as a host opens it, and what rows share: memories, a queue
// with a timeline, the card's limits.
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/sdk/handle.hpp"
#include "kvspan/sdk/loader.hpp"

#include "failure.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace kvspan::cuda_bench {

using Clock = std::chrono::steady_clock;

[[nodiscard]] inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Rig {
 public:
  // Throws Failure: the file, or no device.
  explicit Rig(const std::string& file);

  [[nodiscard]] const Backend& backend() const { return *backend_; }

  [[nodiscard]] const sdk::Plugin& plugin() const { return plugin_; }

  [[nodiscard]] const BackendTables& tables() const { return backend_->tables(); }

  [[nodiscard]] kvspan_device_t* device() const { return device_.get(); }

 private:
  sdk::Plugin plugin_;
  sdk::Device device_;
  std::unique_ptr<Backend> backend_;
};

// Host memory of the plugin, mapped.
struct HostMemory {
  DeviceMemory memory;
  std::byte* address = nullptr;
};

[[nodiscard]] HostMemory host_memory(const Rig& rig, std::uint64_t bytes);
[[nodiscard]] DeviceMemory device_memory(const Rig& rig, std::uint64_t bytes);

// A queue and its timeline. Everything is throws-on-failure.
class Line {
 public:
  using Call =
      std::function<kvspan_result_t(kvspan_queue_t*, const kvspan_submit_t*, kvspan_error_t*)>;

  Line(const Rig& rig, std::uint32_t role);
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line();

  // Puts work behind `waits`; returns the point that settles it.
  kvspan_point_t submit(std::span<const kvspan_point_t> waits, const Call& call);

  // One copy submit.
  kvspan_point_t copy(std::span<const kvspan_point_t> waits,
                      std::span<const kvspan_segment_t> segments);

  // Bytes [0, bytes) of `memory` become `pattern`.
  kvspan_point_t fill(const DeviceMemory& memory, std::uint64_t bytes, std::uint8_t pattern);

  void wait(const kvspan_point_t& point) const;
  [[nodiscard]] bool reached(const kvspan_point_t& point) const;

  // Until nothing is left in the queue.
  void drain() const;

 private:
  const Rig& rig_;
  sdk::Queue queue_;
  sdk::Fence fence_;
  std::uint64_t last_ = 0;
};

// A long copy: work behind it can be queued before any of it starts.
struct Plug {
  explicit Plug(const Rig& rig);

  HostMemory source;
  DeviceMemory target;
};

inline constexpr std::uint64_t kPlugBytes = std::uint64_t{512} << 20;

// CPU seconds of the whole process and of the calling thread so far.
struct CpuTime {
  double process = 0.0;
  double thread = 0.0;
};

[[nodiscard]] CpuTime cpu_time();

}  // namespace kvspan::cuda_bench
