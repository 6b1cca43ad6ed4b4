// SPDX-License-Identifier: Apache-2.0
// The device table: one device, the processor that this process runs on.
// Read first: device.hpp. What prepare() reserves is described in layout.hpp.
#include "device.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate_shape.hpp"

#include "attention/rules.hpp"
#include "layout.hpp"
#include "queue.hpp"

#include <cpuid.h>
#include <cstddef>
#include <cstring>

namespace kvspan::cpu {

kvspan_result_t report_lost(kvspan_error_t* error, const char* where) noexcept {
  sdk::fail(error, KVSPAN_E_DEVICE_LOST, where, "the device was lost: close it and open it again");
  if (error != nullptr) {
    error->flags = KVSPAN_ERROR_STICKY | KVSPAN_ERROR_REOPEN_DEVICE;
  }
  return KVSPAN_E_DEVICE_LOST;
}

kvspan_result_t report_no_host_memory(uint64_t bytes,
                                      kvspan_error_t* error,
                                      const char* where) noexcept {
  return sdk::fail_amount(error,
                          KVSPAN_E_HOST_MEMORY,
                          where,
                          {KVSPAN_RESOURCE_HOST_MEMORY, bytes, 0},
                          "the host's allocator has no %llu bytes: free some and call again",
                          sdk::number(bytes));
}

namespace {

// The processor's own name, or a plain word where it has none. 48 bytes at most.
void copy_processor_name(char (&name)[64]) {
  unsigned int words[12] = {};
  auto top = static_cast<unsigned int>(__get_cpuid_max(0x80000000u, nullptr));
  if (top >= 0x80000004u) {
    for (unsigned int i = 0; i < 3; ++i) {
      unsigned int* const part = words + 4 * i;
      __get_cpuid(0x80000002u + i, part, part + 1, part + 2, part + 3);
    }
  }
  std::memcpy(name, words, sizeof words);
  name[sizeof words] = '\0';
  if (name[0] == '\0') {
    std::memcpy(name, "x86-64 processor", sizeof "x86-64 processor");
  }
}

kvspan_device_info_t describe(const Plugin& plugin) {
  kvspan_device_info_t info{};
  info.flags = KVSPAN_DEVICE_UNIFIED_MEMORY | KVSPAN_DEVICE_FAIL_STOPS |
               KVSPAN_DEVICE_WAIT_UNSUBMITTED | KVSPAN_DEVICE_WAIT_HOST;
  if (plugin.options.device_bytes != KVSPAN_UNKNOWN_AMOUNT) {
    info.flags |= KVSPAN_DEVICE_FREE_KNOWN;
  }
  std::memcpy(info.id, "host-processor-0", sizeof info.id);
  copy_processor_name(info.name);
  for (uint32_t role = 0; role < KVSPAN_ROLE_COUNT; ++role) {
    info.lanes[role] = role;
  }
  info.queues_max = kQueuesMax;
  info.depth_max = kDepthMax;
  info.cancel = KVSPAN_CANCEL_ITEM;
  info.allocation_bytes_max = kAllocationBytesMax;
  info.binding_bytes_max = kAllocationBytesMax;
  info.memory_alignment = kMemoryAlignment;
  info.import_alignment = kMemoryAlignment;
  info.import_bytes_max = kAllocationBytesMax;
  info.coherence_bytes = kMemoryAlignment;
  info.context_bytes = 0;
  info.fence_delta_max = kFenceDeltaMax;
  return info;
}

kvspan_result_t KVSPAN_CALL device_count(void* self,
                                         uint32_t* out_count,
                                         kvspan_error_t* error) noexcept {
  if (self == nullptr || out_count == nullptr) {
    return sdk::fail_argument(
        error, {self == nullptr ? 1u : 2u}, "device.count", "an argument is NULL: pass one");
  }
  *out_count = 1;
  return KVSPAN_OK;
}

kvspan_result_t check_index(const void* self,
                            uint32_t index,
                            kvspan_error_t* error,
                            const char* where) {
  if (self == nullptr) {
    return sdk::fail_argument(error, {1}, where, "the plugin is NULL: pass plugin.self");
  }
  if (index != 0) {
    return sdk::fail_argument(error, {2}, where, "device %u of 1: call count again", index);
  }
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL device_describe(void* self,
                                            uint32_t index,
                                            kvspan_device_info_t* out_info,
                                            kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.describe";
  if (const kvspan_result_t bad = check_index(self, index, error, kWhere)) {
    return bad;
  }
  return sdk::give(out_info, describe(*static_cast<const Plugin*>(self)), error, kWhere, 3);
}

kvspan_result_t KVSPAN_CALL device_open(void* self,
                                        uint32_t index,
                                        kvspan_device_t** out_device,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.open";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (const kvspan_result_t bad = check_index(self, index, error, kWhere)) {
      return bad;
    }
    if (out_device == nullptr) {
      return sdk::fail_argument(error, {3}, kWhere, "out_device is NULL: pass one");
    }
    Plugin& plugin = *static_cast<Plugin*>(self);
    Device* const device = plugin.host.make<Device>(plugin);
    if (device == nullptr) {
      return report_no_host_memory(sizeof(Device), error, kWhere);
    }
    const uint32_t threads = plugin.options.threads;
    if (!device->team.start(threads)) {
      plugin.host.unmake(device);
      return report_no_host_memory(Scratch::bytes() * threads, error, kWhere);
    }
    plugin.devices_open.fetch_add(1);
    *out_device = handle_of(device);
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL device_close(kvspan_device_t* handle, kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.close";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, {1}, kWhere, "the device is NULL: pass one");
    }
    Device* const device = device_of(handle);
    {
      const std::lock_guard lock(device->mutex);
      if (device->object_count != 0) {
        return sdk::fail_amount(error,
                                KVSPAN_E_BUSY,
                                kWhere,
                                {KVSPAN_RESOURCE_NONE, 0, device->object_count},
                                "%llu memories, queues and fences are alive: destroy them first",
                                sdk::number(device->object_count));
      }
    }
    Plugin& plugin = device->plugin;
    plugin.host.unmake(device);  // joins the team
    plugin.devices_open.fetch_sub(1);
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL device_free_bytes(kvspan_device_t* handle,
                                              uint64_t* out_bytes,
                                              kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.free_bytes";
  if (handle == nullptr || out_bytes == nullptr) {
    return sdk::fail_argument(
        error, {handle == nullptr ? 1u : 2u}, kWhere, "an argument is NULL: pass one");
  }
  Device& device = *device_of(handle);
  if (device.lost) {
    return report_lost(error, kWhere);
  }
  const uint64_t budget = device.plugin.options.device_bytes;
  const std::lock_guard lock(device.mutex);
  *out_bytes = budget == KVSPAN_UNKNOWN_AMOUNT ? budget : budget - device.device_bytes;
  return KVSPAN_OK;
}

// Every shape must be one that the query grants; `limits` grows to what they need.
kvspan_result_t add_shapes(const kvspan_prepare_t& request,
                           Limits& limits,
                           kvspan_error_t* error,
                           const char* where) {
  if (request.shape_count != 0 && request.shapes == nullptr) {
    return sdk::fail_argument(error,
                              {2, offsetof(kvspan_prepare_t, shapes)},
                              where,
                              "shapes is NULL: pass shape_count of them");
  }
  for (uint32_t i = 0; i < request.shape_count; ++i) {
    const kvspan_attention_shape_t& shape = request.shapes[i];
    if (const kvspan_result_t bad = sdk::check_shape(&shape, error, where)) {
      return bad;
    }
    kvspan_attention_caps_t caps{};
    if (!answer(shape, caps)) {
      return sdk::fail_argument(
          error, {2}, where, "shape %u: an amount does not fit 64 bits: ask for less", i);
    }
    if (caps.level == KVSPAN_LEVEL_UNSUPPORTED) {
      return sdk::fail_reasons(
          error, where, caps.reasons, "shape %u is not offered: ask query for the nearest", i);
    }
    const uint64_t rows = uint64_t{shape.rows_max} * shape.entries_max;
    limits.rows = rows > limits.rows ? rows : limits.rows;
    limits.entries = shape.entries_max > limits.entries ? shape.entries_max : limits.entries;
  }
  return KVSPAN_OK;
}

// Gives every queue slabs for the limits. The device's mutex is held.
kvspan_result_t reserve_all(Device& device,
                            const Limits& limits,
                            kvspan_error_t* error,
                            const char* where) {
  const uint64_t slab_bytes = prepared_slab_bytes(limits);
  for (Queue* queue = device.queues; queue != nullptr; queue = queue->next) {
    if (const uint32_t pending = queue->in_flight()) {
      return sdk::fail_amount(error,
                              KVSPAN_E_BUSY,
                              where,
                              {KVSPAN_RESOURCE_NONE, 0, pending},
                              "%u submits are in flight: wait for them, then prepare",
                              pending);
    }
  }
  for (Queue* queue = device.queues; queue != nullptr; queue = queue->next) {
    if (!queue->reserve(slab_bytes)) {
      return report_no_host_memory(slab_bytes * queue->depth(), error, where);
    }
  }
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL device_prepare(kvspan_device_t* handle,
                                           const kvspan_prepare_t* request,
                                           kvspan_prepared_t* out_prepared,
                                           kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.prepare";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_prepared == nullptr) {
      return sdk::fail_argument(
          error, {handle == nullptr ? 1u : 3u}, kWhere, "an argument is NULL: pass one");
    }
    if (const kvspan_result_t bad = sdk::take(request, error, kWhere, 2)) {
      return bad;
    }
    Device& device = *device_of(handle);
    if (device.lost) {
      return report_lost(error, kWhere);
    }
    if (request->depth > kDepthMax) {
      return sdk::fail_argument(error,
                                {2, offsetof(kvspan_prepare_t, depth)},
                                kWhere,
                                "depth %u, at most %u: ask for less",
                                request->depth,
                                kDepthMax);
    }
    Limits limits;
    limits.segments = request->segments_max;
    limits.codec_items = request->codec_items_max;
    limits.attention_items = request->attention_items_max;
    limits.spans = request->spans_max;
    limits.pages = request->page_list_max;
    if (const kvspan_result_t bad = add_shapes(*request, limits, error, kWhere)) {
      return bad;
    }
    const std::lock_guard lock(device.mutex);
    if (const kvspan_result_t bad = reserve_all(device, limits, error, kWhere)) {
      return bad;
    }
    kvspan_prepared_t prepared{};
    prepared.host_bytes = device.team.scratch_bytes();
    for (const Queue* queue = device.queues; queue != nullptr; queue = queue->next) {
      prepared.host_bytes += queue->slab_bytes();
    }
    if (const kvspan_result_t bad = sdk::give(out_prepared, prepared, error, kWhere, 3)) {
      return bad;
    }
    device.prepared = limits;
    device.prepared_depth = request->depth;
    return KVSPAN_OK;
  });
}

}  // namespace

const kvspan_device_table_t kDeviceTable = {sizeof(kvspan_device_table_t),
                                            0,
                                            device_count,
                                            device_describe,
                                            device_open,
                                            device_close,
                                            device_free_bytes,
                                            device_prepare};

}  // namespace kvspan::cpu
