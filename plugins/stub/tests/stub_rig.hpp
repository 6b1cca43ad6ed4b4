// SPDX-License-Identifier: Apache-2.0
// An open stub for one test: plugin, device, queues, fences, and calls that report what went wrong.
// Not here: what every backend must do (conformance/cases).
#pragma once

#include "kvspan/kvspan.h"
#include "kvspan/sdk/handle.hpp"
#include "kvspan/sdk/loader.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace kvspan::stub_test {

using Options = std::map<std::string, std::string>;

/// A fresh error record that a slot may fill.
inline kvspan_error_t blank() {
  kvspan_error_t error{};
  error.struct_size = sizeof error;
  return error;
}

inline kvspan_result_t load(const Options& options, sdk::Plugin& plugin, kvspan_error_t& error) {
  const char* const folder = std::getenv("KVSPAN_TEST_PLUGINS");
  sdk::LoadOptions load_options;
  load_options.options = options;
  const std::string path = std::string(folder == nullptr ? "." : folder) + "/kvspan-stub.so";
  return sdk::Plugin::load(path, load_options, plugin, &error);
}

/// Points of a submit, by value so that calls read like sentences.
struct Points {
  std::vector<kvspan_point_t> waits{};
  std::vector<kvspan_point_t> signals{};
  std::uint64_t id = 0;
  std::uint32_t flags = 0;
  kvspan_memory_t* cancel = nullptr;

  kvspan_submit_t submit() const {
    kvspan_submit_t made{};
    made.struct_size = sizeof made;
    made.flags = flags;
    made.wait_count = static_cast<std::uint32_t>(waits.size());
    made.signal_count = static_cast<std::uint32_t>(signals.size());
    made.waits = waits.data();
    made.signals = signals.data();
    made.cancel_memory = cancel;
    made.submit_id = id;
    return made;
  }
};

class Rig {
 public:
  explicit Rig(const Options& options) : error(blank()) {
    EXPECT_EQ(load(options, plugin_, error), KVSPAN_OK) << error.message;
    EXPECT_EQ(sdk::Device::open(plugin_, 0, device_, &error), KVSPAN_OK) << error.message;
  }

  const sdk::Plugin& plugin() const { return plugin_; }

  kvspan_device_t* device() const { return device_.get(); }

  kvspan_error_t error;  ///< of the last call that failed

  sdk::Queue queue(std::uint32_t role, std::uint32_t depth = 0) {
    sdk::Queue made;
    const kvspan_queue_options_t options = {sizeof options, role, depth, 0};
    EXPECT_EQ(sdk::Queue::create(plugin_, device(), options, made, &error), KVSPAN_OK)
        << error.message;
    return made;
  }

  sdk::Fence fence(std::uint64_t initial = 0) {
    sdk::Fence made;
    EXPECT_EQ(sdk::Fence::create(plugin_, device(), initial, made, &error), KVSPAN_OK)
        << error.message;
    return made;
  }

  sdk::Memory memory(std::uint32_t kind, std::uint64_t bytes) {
    sdk::Memory made;
    EXPECT_EQ(try_memory(kind, bytes, made), KVSPAN_OK) << error.message;
    return made;
  }

  kvspan_result_t try_memory(std::uint32_t kind, std::uint64_t bytes, sdk::Memory& out) {
    return sdk::Memory::alloc(plugin_, device(), kind, bytes, out, &error);
  }

  std::uint8_t* bytes(const sdk::Memory& memory) {
    void* address = nullptr;
    EXPECT_EQ(plugin_.memory()->map(memory.get(), &address, &error), KVSPAN_OK) << error.message;
    return static_cast<std::uint8_t*>(address);
  }

  kvspan_result_t fill(const sdk::Queue& queue,
                       const kvspan_range_t& range,
                       std::uint64_t pattern,
                       const Points& points) {
    const kvspan_submit_t submit = points.submit();
    return plugin_.copy()->fill(queue.get(), &range, pattern, 1, &submit, &error);
  }

  kvspan_result_t copy(const sdk::Queue& queue,
                       const std::vector<kvspan_segment_t>& segments,
                       const Points& points) {
    const kvspan_submit_t submit = points.submit();
    return plugin_.copy()->copy(
        queue.get(), segments.data(), static_cast<std::uint32_t>(segments.size()), &submit, &error);
  }

  kvspan_result_t wait(const std::vector<kvspan_point_t>& points,
                       std::uint64_t timeout_ns = UINT64_MAX,
                       std::uint32_t mode = KVSPAN_WAIT_ALL) {
    return plugin_.fence()->wait(device(),
                                 points.data(),
                                 static_cast<std::uint32_t>(points.size()),
                                 mode,
                                 timeout_ns,
                                 &error);
  }

  kvspan_debug_counters_t counters() {
    kvspan_debug_counters_t counters{};
    counters.struct_size = sizeof counters;
    EXPECT_EQ(plugin_.debug()->counters(device(), &counters, &error), KVSPAN_OK);
    return counters;
  }

  kvspan_result_t fault(std::uint32_t kind, std::uint64_t nth, kvspan_result_t code = KVSPAN_OK) {
    return plugin_.debug()->fault(device(), kind, nth, code, &error);
  }

 private:
  sdk::Plugin plugin_;
  sdk::Device device_;
};

/// One row of bytes from one place to another.
inline kvspan_segment_t segment(const sdk::Memory& source,
                                std::uint64_t source_offset,
                                const sdk::Memory& target,
                                std::uint64_t target_offset,
                                std::uint64_t bytes) {
  return {source.get(), target.get(), source_offset, target_offset, bytes, 1, 0, 0};
}

/// Numbers of a test, the same everywhere (splitmix64).
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}

  std::uint64_t below(std::uint64_t bound) {
    state_ += 0x9E3779B97F4A7C15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (z ^ (z >> 31)) % bound;
  }

 private:
  std::uint64_t state_;
};

}  // namespace kvspan::stub_test
