// SPDX-License-Identifier: Apache-2.0
// What the plugin keeps: one Plugin for an open, one Device for each open device.
// The device's mutex guards every fence, the rings of its queues and the lists of its objects;
// bytes of K, V and queries are guarded by the host's fences. Lock order: Device::mutex is the only
// lock that is held while another object is looked at; the team's locks are never taken under it.
// Read next: queue.hpp (work), memory.hpp, fence.hpp, attention/work.hpp.
#pragma once

#include "kvspan/kvspan.h"

#include "host.hpp"
#include "link.hpp"
#include "team.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace kvspan::cpu {

class Queue;
struct Fence;

inline constexpr uint64_t kMemoryAlignment = 64;  // a cache line: also the coherence block
inline constexpr uint64_t kAllocationBytesMax = uint64_t{1} << 46;
inline constexpr uint64_t kFenceDeltaMax = UINT64_MAX;
inline constexpr uint32_t kQueuesMax = 64;
inline constexpr uint32_t kDepthMax = 256;
inline constexpr uint32_t kSegmentsMax = 65536;
inline constexpr uint32_t kCodecItemsMax = 65536;

// The host's options; README.md has the same list for the operator.
struct Options {
  uint32_t threads;       // "threads": of attention; default: those this process may run on
  uint64_t device_bytes;  // "device_bytes": of DEVICE memory; default: UNKNOWN_AMOUNT = no bound
  LinkModel link;         // "link_bytes_s", "link_copy_ns"; default: none
};

struct Plugin {
  Plugin(const Host& its_host, const Options& its_options) : host(its_host), options(its_options) {}

  const Host host;
  const Options options;
  std::atomic<uint32_t> devices_open{0};
};

// Counts that a submit is measured against, and what prepare() promised room for.
struct Limits {
  uint64_t segments = 0;
  uint64_t codec_items = 0;
  uint64_t attention_items = 0;
  uint64_t spans = 0;
  uint64_t pages = 0;
  uint64_t rows = 0;  // over all entries
  uint64_t entries = 0;
};

// Counters of the debug table; see kvspan_debug_counters_t.
struct Counters {
  std::atomic<uint64_t> device_allocations{0};
  std::atomic<uint64_t> submits{0};
  std::atomic<uint64_t> launches{0};
};

// Faults that a test planted: 1 = the next one, 0 = none. Guarded by Device::mutex.
struct Faults {
  uint64_t allocation_in = 0;
  uint64_t submit_in = 0;
  kvspan_result_t submit_code = KVSPAN_OK;
  uint64_t loss_in = 0;
};

// Counts a planted fault down; true when it fires.
inline bool fires(uint64_t& fault_in) {
  return fault_in != 0 && --fault_in == 0;
}

struct Device {
  explicit Device(Plugin& owner) : plugin(owner), host(owner.host), team(owner.host) {}

  Plugin& plugin;
  const Host& host;
  Team team;
  Counters counters;
  std::atomic<bool> lost{false};  // written under mutex

  std::mutex mutex;
  std::condition_variable settled;  // a fence changed, or work ended
  Fence* fences = nullptr;          // all of the device, linked
  Queue* queues = nullptr;          // all of the device, linked
  uint32_t queue_count = 0;
  uint64_t object_count = 0;  // memories, queues and fences alive
  uint64_t device_bytes = 0;  // of DEVICE memory, handed out
  uint64_t device_bytes_max = 0;
  uint64_t locked_bytes_refused = 0;  // HOST memory that could not be locked
  std::optional<Limits> prepared;
  uint32_t prepared_depth = 0;  // 0 = not bounded beyond the queue's own depth
  Faults faults;
  LinkLines lines;  // of plugin.options.link
};

// Handles are the objects' addresses; the ABI's types stay incomplete.
inline Device* device_of(kvspan_device_t* handle) {
  return reinterpret_cast<Device*>(handle);
}

inline kvspan_device_t* handle_of(Device* device) {
  return reinterpret_cast<kvspan_device_t*>(device);
}

// DEVICE_LOST with its flags: the device must be opened again.
kvspan_result_t report_lost(kvspan_error_t* error, const char* where) noexcept;

// HOST_MEMORY for `bytes` that the host did not have.
kvspan_result_t report_no_host_memory(uint64_t bytes,
                                      kvspan_error_t* error,
                                      const char* where) noexcept;

// The tables, one a file; plugin.cpp hands them out.
extern const kvspan_device_table_t kDeviceTable;        // device.cpp
extern const kvspan_memory_table_t kMemoryTable;        // memory.cpp
extern const kvspan_queue_table_t kQueueTable;          // queue.cpp
extern const kvspan_fence_table_t kFenceTable;          // fence.cpp
extern const kvspan_copy_table_t kCopyTable;            // copy.cpp
extern const kvspan_codec_table_t kCodecTable;          // codec.cpp
extern const kvspan_attention_table_t kAttentionTable;  // attention/table.cpp
extern const kvspan_debug_table_t kDebugTable;          // debug.cpp

}  // namespace kvspan::cpu
