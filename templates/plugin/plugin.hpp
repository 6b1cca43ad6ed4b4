// SPDX-License-Identifier: Apache-2.0
// What the plugin keeps, and the numbers that describe its device. One mutex a device guards
// everything that is not const: slow, and easy to believe. Replace the numbers by your device's;
// each is a promise that the conformance suite tries. Read next: device.cpp, then one file a table.
#pragma once

#include "kvspan/kvspan.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace mine {

inline constexpr uint64_t kDeviceBytes = 1ull << 30;         // of device memory in all
inline constexpr uint64_t kAllocationBytesMax = 1ull << 31;  // in one allocation
inline constexpr uint64_t kMemoryAlignment = 64;             // where a memory starts
inline constexpr uint32_t kQueuesMax = 32;
inline constexpr uint32_t kDepthMax = 256;  // submits in flight a queue
inline constexpr uint32_t kSegmentsMax = 4096;
inline constexpr uint32_t kCodecItemsMax = 4096;

struct Plugin {
  const kvspan_host_services_t* const host;  // log, clock, options: all that you may take
  std::atomic<uint32_t> devices_open = 0;
};

struct Device {
  Plugin& plugin;
  std::mutex mutex{};
  std::condition_variable settled{};  // a fence rose or failed
  std::optional<kvspan_prepare_t> prepared{};
  uint32_t queue_count = 0;
  uint64_t memory_count = 0;
  uint64_t fence_count = 0;
  uint64_t device_bytes = 0;  // held by DEVICE memories
  uint64_t in_flight = 0;     // submits of all queues that have not settled
};

// A handle is the object's address; the ABI's types stay incomplete.
inline Device* device_of(kvspan_device_t* handle) {
  return reinterpret_cast<Device*>(handle);
}

inline unsigned long long number(uint64_t value) {  // for %llu
  return value;
}

// A submit carries `required` of `what`; OK before the first prepare, and within what it was told.
// The device's mutex is held.
struct PreparedLimit {
  uint32_t kvspan_prepare_t::*limit;
  const char* what;
};

kvspan_result_t check_prepared(const Device& device,
                               PreparedLimit limit,
                               uint64_t required,
                               kvspan_error_t* error,
                               const char* where);

extern const kvspan_device_table_t kDeviceTable;  // device.cpp
extern const kvspan_memory_table_t kMemoryTable;  // memory.cpp
extern const kvspan_fence_table_t kFenceTable;    // fence.cpp
extern const kvspan_queue_table_t kQueueTable;    // queue.cpp
extern const kvspan_copy_table_t kCopyTable;      // copy.cpp
extern const kvspan_codec_table_t kCodecTable;    // codec.cpp

}  // namespace mine
