// SPDX-License-Identifier: Apache-2.0
// What the plugin keeps: one Plugin for an open, one Device for each open device.
// The device's mutex guards every fence, the rings of its queues and the lists of its objects. It
// is never held while CUDA is asked to wait. Lock order: Device::mutex, then PinnedPool's; the
// registry's mutex is taken alone.
// Read next: queue.hpp (work), memory.hpp, fence.hpp, driver.hpp.
#pragma once

#include "kvspan/graph.h"
#include "kvspan/kvspan.h"

#include "card.hpp"
#include "driver.hpp"
#include "host.hpp"
#include "mem_pool.hpp"
#include "pinned.hpp"
#include "registry.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace kvspan::cuda {

class Queue;
struct Fence;

// What a context of this plugin holds on an H200 with a driver for CUDA 13; an estimate.
inline constexpr uint64_t kContextBytes = uint64_t{600} << 20;
inline constexpr uint64_t kMemoryAlignment = 64;
inline constexpr uint64_t kImportAlignment = 4096;  // a page
inline constexpr uint64_t kAllocationBytesMax = uint64_t{1} << 46;
inline constexpr uint64_t kFenceDeltaMax = UINT64_MAX;
inline constexpr uint32_t kQueuesMax = 32;
// With the events and kernels of each, what a stream takes without making its caller wait.
inline constexpr uint32_t kDepthMax = 128;
inline constexpr uint32_t kSegmentsMax = 4096;
inline constexpr uint32_t kCodecItemsMax = 4096;

struct Plugin {
  explicit Plugin(const Host& its_host) : host(its_host), registry(host) {}

  const Host host;
  Registry registry;  // of page-locked pages: CUDA locks them for all devices at once
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
  explicit Device(Plugin& owner) : plugin(owner), host(owner.host) {}

  Plugin& plugin;
  const Host& host;
  Driver driver;
  CUdevice ordinal = 0;
  Card card;
  CUcontext context = nullptr;  // the device's primary one, retained; or an engine's
  bool borrowed = false;        // the engine's: never released
  MemPool pool{MemPool::Place::device};
  PinnedPool pinned;
  Counters counters;
  std::atomic<bool> lost{false};        // written under mutex
  std::atomic<int32_t> lost_native{0};  // CUDA's code of the loss; 0 = a planted one

  std::mutex mutex;
  std::condition_variable settled;  // a fence came to what is wanted, or the device was lost
  Fence* fences = nullptr;          // all of the device, linked
  Queue* queues = nullptr;          // all of the device, linked
  uint32_t queue_count = 0;
  uint64_t object_count = 0;  // memories, queues, fences and graphs alive
  uint64_t device_bytes = 0;  // of DEVICE memory, handed out
  uint64_t device_bytes_max = 0;
  std::optional<Limits> prepared;
  uint32_t prepared_depth = 0;  // 0 = not bounded beyond the queue's own depth
  Faults faults;
};

// Handles are the objects' addresses; the ABI's types stay incomplete.
inline Device* device_of(kvspan_device_t* handle) {
  return reinterpret_cast<Device*>(handle);
}

inline kvspan_device_t* handle_of(Device* device) {
  return reinterpret_cast<kvspan_device_t*>(device);
}

// OK, or why there is no card `index`; `self` is the plugin.
kvspan_result_t check_index(const void* self,
                            uint32_t index,
                            kvspan_error_t* error,
                            const char* where);

struct Opened {
  uint32_t index;     // of the card; checked
  CUcontext context;  // the engine's; nullptr = the primary one
};

// open.cpp. Makes a device, or nothing.
kvspan_result_t open_device(Plugin& plugin,
                            const Opened& opened,
                            kvspan_device_t** out_device,
                            kvspan_error_t* error,
                            const char* where);

// Ends a device without objects.
void close_device(Device& device);

// Error flags of a lost device: a real loss needs a new process, a planted one a new open.
uint32_t lost_flags(const Device& device) noexcept;

// DEVICE_LOST with its flags and CUDA's code.
kvspan_result_t report_lost(const Device& device,
                            kvspan_error_t* error,
                            const char* where) noexcept;

// Marks the device lost and fails every fence, so that every wait returns. The device's mutex is
// held. Only the first loss counts.
void lose_device(Device& device, cudaError_t native, uint64_t submit_id) noexcept;

// A failed CUDA call of a slot as its error; a sticky one loses the device.
kvspan_result_t report_call(Device& device,
                            cudaError_t native,
                            const char* what,
                            kvspan_error_t* error,
                            const char* where) noexcept;

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
extern const kvspan_native_table_t kNativeTable;        // native.cpp
extern const kvspan_debug_table_t kDebugTable;          // debug.cpp
extern const kvspan_graph_table_t kGraphTable;          // graph.cpp

}  // namespace kvspan::cuda
