// SPDX-License-Identifier: Apache-2.0
// The plugin's own tables on a FakeHost, without loading a file: a device with a chosen number of
// threads, memory, queues and a fence a queue. Read next: attention_test.cpp, prepare_test.cpp,
// queue_test.cpp.
#pragma once

#include "kvspan/kvspan.h"

#include "device.hpp"
#include "fake_host.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace kvspan::cpu {

inline kvspan_error_t no_error() {
  kvspan_error_t error{};
  error.struct_size = sizeof error;
  return error;
}

// A queue and a fence that only it signals.
struct Line {
  kvspan_queue_t* queue = nullptr;
  kvspan_fence_t* fence = nullptr;
  uint64_t value = 0;
};

class Rig {
 public:
  explicit Rig(uint32_t threads = 2, uint64_t device_bytes = KVSPAN_UNKNOWN_AMOUNT)
      : Rig(Options{threads, device_bytes, {}}) {}

  explicit Rig(const Options& options)
      : plugin_(std::make_unique<Plugin>(Host(host.services()), options)) {
    expect_ok(kDeviceTable.open(plugin_.get(), 0, &device, &error), "open");
  }

  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;
  Rig(Rig&&) = delete;
  Rig& operator=(Rig&&) = delete;

  ~Rig() {
    for (const Line& line : lines_) {
      EXPECT_EQ(kQueueTable.destroy(line.queue, &error), KVSPAN_OK) << error.message;
      EXPECT_EQ(kFenceTable.destroy(line.fence, &error), KVSPAN_OK) << error.message;
    }
    for (kvspan_memory_t* memory : memories_) {
      EXPECT_EQ(kMemoryTable.release(memory, &error), KVSPAN_OK) << error.message;
    }
    EXPECT_EQ(kDeviceTable.close(device, &error), KVSPAN_OK) << error.message;
    EXPECT_EQ(host.blocks(), 0) << "the plugin kept memory of its host";
    EXPECT_EQ(host.bytes(), 0u) << "a block was freed with another size";
  }

  // HOST memory, filled with bytes that are NaN as f32, f16 and bf16.
  kvspan_memory_t* memory(uint64_t bytes, void** address = nullptr) {
    kvspan_memory_t* made = nullptr;
    expect_ok(kMemoryTable.alloc(device, KVSPAN_MEMORY_HOST, bytes, &made, &error), "alloc");
    void* at = nullptr;
    expect_ok(kMemoryTable.map(made, &at, &error), "map");
    std::memset(at, 0xFF, bytes);
    if (address != nullptr) {
      *address = at;
    }
    memories_.push_back(made);
    return made;
  }

  Line& line(uint32_t role, uint32_t depth = 0) {
    Line made;
    const kvspan_queue_options_t options{sizeof options, role, depth, 0};
    expect_ok(kQueueTable.create(device, &options, &made.queue, &error), "queue");
    expect_ok(kFenceTable.create(device, 0, &made.fence, &error), "fence");
    lines_.reserve(64);  // lines keep their place
    lines_.push_back(made);
    return lines_.back();
  }

  // Submits through call(queue, submit, error) with one signal; does not wait.
  template <class Call>
  kvspan_result_t submit(Line& line, const Call& call, std::vector<kvspan_point_t> waits = {}) {
    const kvspan_point_t signal{line.fence, line.value + 1};
    kvspan_submit_t submit{};
    submit.struct_size = sizeof submit;
    submit.waits = waits.data();
    submit.wait_count = static_cast<uint32_t>(waits.size());
    submit.signals = &signal;
    submit.signal_count = 1;
    submit.submit_id = line.value + 1;
    error = no_error();
    const kvspan_result_t result = call(line.queue, &submit, &error);
    line.value += result == KVSPAN_OK ? 1 : 0;
    return result;
  }

  kvspan_result_t wait(const Line& line) {
    const kvspan_point_t point{line.fence, line.value};
    error = no_error();
    return kFenceTable.wait(device, &point, 1, KVSPAN_WAIT_ALL, UINT64_MAX, &error);
  }

  // Submits and waits; expects both to work.
  template <class Call>
  void settle(Line& line, const Call& call) {
    expect_ok(submit(line, call), "submit");
    expect_ok(wait(line), "wait");
  }

  void expect_ok(kvspan_result_t result, const std::string& what) const {
    EXPECT_EQ(result, KVSPAN_OK) << what << ": " << error.message;
  }

  FakeHost host;
  kvspan_device_t* device = nullptr;
  kvspan_error_t error = no_error();

 private:
  std::unique_ptr<Plugin> plugin_;
  std::vector<Line> lines_;
  std::vector<kvspan_memory_t*> memories_;
};

}  // namespace kvspan::cpu
