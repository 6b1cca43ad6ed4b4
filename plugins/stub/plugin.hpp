// SPDX-License-Identifier: Apache-2.0
// What the stub keeps: one Plugin for an open, one Device for each open device, and how both turn
// into the opaque handles of the ABI. Every field is guarded by Plugin::mutex unless it is const:
// one lock for everything is slow and easy to believe. Not here: work (scheduler.hpp), memory
// (memory.hpp), queues (queue.hpp). Read next: scheduler.hpp.
#pragma once

#include "kvspan/kvspan.h"

#include "scheduler.hpp"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace kvspan::stub {

/// What the operator may set through the host's option(); README.md has the same list in words.
struct Options {
  ScheduleOptions schedule;       ///< "seed", "queues", "delay_max_ticks", "fail_stops"
  std::uint32_t granule = 4;      ///< "granule": tokens, a power of two <= 64
  std::uint32_t split_count = 4;  ///< "splits": N for decode; prefill has half, at least 1
  std::uint64_t device_bytes = 1ull << 40;  ///< "device_bytes": virtual bytes of DEVICE memory
  std::uint64_t deadlock_ms = 2000;  ///< "deadlock_ms": how long an endless wait may be hopeless
  std::uint32_t device_count = 1;    ///< "zero_devices" = yes makes it 0
};

/// Limits that are the same for every device of the stub: the tightest that the ABI allows where
/// that keeps hosts honest, plainly large elsewhere.
inline constexpr std::uint64_t kAllocationBytesMax = 1ull << 41;
inline constexpr std::uint64_t kMemoryAlignment = 64;
inline constexpr std::uint64_t kImportAlignment = 64;
inline constexpr std::uint64_t kImportBytesMax = 64ull << 20;
inline constexpr std::uint64_t kFenceDeltaMax = (1ull << 31) - 1;
inline constexpr std::uint32_t kQueuesMax = 64;
inline constexpr std::uint32_t kDepthMax = 256;
inline constexpr std::uint32_t kSegmentsMax = 4096;
inline constexpr std::uint32_t kCodecItemsMax = 4096;

struct Plugin {
  Plugin(const kvspan_host_services_t* services, const Options& chosen)
      : host(services), options(chosen) {}

  const kvspan_host_services_t* const host;
  const Options options;
  std::mutex mutex;
  std::condition_variable changed;  ///< work ran, or somebody submitted, signalled or failed
  std::uint32_t devices_open = 0;
};

struct Device {
  Device(Plugin& owner, const ScheduleOptions& schedule) : plugin(owner), scheduler(schedule) {}

  Plugin& plugin;
  Scheduler scheduler;
  std::optional<kvspan_prepare_t> prepared;  ///< limits only: `shapes` is NULL
  std::uint32_t queue_count = 0;
  std::uint64_t memory_count = 0;
  std::uint64_t allocations = 0;
  std::uint64_t device_bytes = 0;
  std::uint64_t device_bytes_max = 0;
  std::uint64_t fail_allocation_in = 0;  ///< 1 = the next allocation fails; 0 = none planted
};

// Handles are the objects' addresses; the ABI's types stay incomplete.
inline Device* device_of(kvspan_device_t* handle) {
  return reinterpret_cast<Device*>(handle);
}

inline kvspan_device_t* handle_of(Device* device) {
  return reinterpret_cast<kvspan_device_t*>(device);
}

/// OK, or PREPARED with the exact amount: a submit carries `required` of `what`, prepare() was told
/// of `limit`. Always OK before the first prepare.
struct PreparedLimit {
  std::uint32_t kvspan_prepare_t::*limit;
  const char* what;
};

[[nodiscard]] kvspan_result_t check_prepared(const Device& device,
                                             PreparedLimit limit,
                                             std::uint64_t required,
                                             kvspan_error_t* error,
                                             const char* where);

// The tables, one a file; plugin.cpp hands them out.
extern const kvspan_device_table_t kDeviceTable;        // device.cpp
extern const kvspan_debug_table_t kDebugTable;          // device.cpp
extern const kvspan_memory_table_t kMemoryTable;        // memory.cpp
extern const kvspan_queue_table_t kQueueTable;          // queue.cpp
extern const kvspan_fence_table_t kFenceTable;          // queue.cpp
extern const kvspan_copy_table_t kCopyTable;            // copy.cpp
extern const kvspan_codec_table_t kCodecTable;          // codec.cpp
extern const kvspan_attention_table_t kAttentionTable;  // attention.cpp

}  // namespace kvspan::stub
