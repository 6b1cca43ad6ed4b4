// SPDX-License-Identifier: Apache-2.0
// The plugin under measurement, opened as a host opens it, and what rows share: memories, a queue
// with a timeline, the card's limits.
#pragma once

#include "kvspan/bench/line.hpp"
#include "kvspan/bench/spread.hpp"
#include "kvspan/core/backend/backend.hpp"
#include "kvspan/sdk/handle.hpp"
#include "kvspan/sdk/loader.hpp"

#include "failure.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvspan::cuda_bench {

using bench::Clock;
using bench::seconds_since;

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

using bench::HostMemory;

[[nodiscard]] HostMemory host_memory(const Rig& rig, std::uint64_t bytes);
[[nodiscard]] DeviceMemory device_memory(const Rig& rig, std::uint64_t bytes);

// bench::Line, which throws where that returns an error.
class Line {
 public:
  Line(const Rig& rig, std::uint32_t role)
      : line_(take(bench::Line::create(rig.backend(), role), "a queue")) {}

  kvspan_point_t submit(std::span<const kvspan_point_t> waits, const bench::Line::Call& call) {
    return take(line_.submit(waits, call), "submitting");
  }

  kvspan_point_t copy(std::span<const kvspan_point_t> waits,
                      std::span<const kvspan_segment_t> segments) {
    return take(line_.copy(waits, segments), "copying");
  }

  kvspan_point_t fill(const DeviceMemory& memory, std::uint64_t bytes, std::uint8_t pattern) {
    return take(line_.fill(memory, bytes, pattern), "filling");
  }

  void wait(const kvspan_point_t& point) const { take(line_.wait(point), "waiting"); }

  [[nodiscard]] bool reached(const kvspan_point_t& point) const { return line_.reached(point); }

 private:
  bench::Line line_;
};

// A long copy: work behind it can be queued before any of it starts.
struct Plug {
  explicit Plug(const Rig& rig);

  HostMemory source;
  DeviceMemory target;
};

inline constexpr std::uint64_t kPlugBytes = std::uint64_t{512} << 20;

}  // namespace kvspan::cuda_bench
