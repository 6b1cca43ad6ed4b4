// SPDX-License-Identifier: Apache-2.0
// The device table: one made-up device, and prepare, which keeps the host to its word.
// Replace: count and describe by your vendor's, open by a context. Without the vendor's driver
// count answers 0 or NO_DEVICE, in words. Leave the caller's current device as it was
// (KV-DEVICE-3). prepare is where you reserve staging buffers, so that submits allocate nothing.
#include "kvspan/device.h"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"

#include "plugin.hpp"

#include <cstddef>
#include <cstring>

namespace mine {
namespace {

namespace sdk = kvspan::sdk;

Plugin& plugin_of(void* self) {
  return *static_cast<Plugin*>(self);
}

kvspan_device_info_t describe() {
  kvspan_device_info_t info{};
  info.struct_size = sizeof info;
  // FAIL_STOPS and both WAIT flags hold because a queue's thread does the waiting (queue.cpp).
  // Hardware that cannot wait for the host drops them and refuses such waits with UNSUPPORTED.
  info.flags = KVSPAN_DEVICE_FREE_KNOWN | KVSPAN_DEVICE_FAIL_STOPS |
               KVSPAN_DEVICE_WAIT_UNSUBMITTED | KVSPAN_DEVICE_WAIT_HOST;
  std::memcpy(info.id, "mine-device-0000", sizeof info.id);  // the same in every process
  std::strncpy(info.name, "Made-up device in host memory", sizeof info.name - 1);
  for (uint32_t role = 0; role < KVSPAN_ROLE_COUNT; ++role) {
    info.lanes[role] = role;  // queues run beside each other
  }
  info.queues_max = kQueuesMax;
  info.depth_max = kDepthMax;
  info.cancel = KVSPAN_CANCEL_SUBMIT;
  info.allocation_bytes_max = kAllocationBytesMax;
  info.binding_bytes_max = kAllocationBytesMax;
  info.memory_alignment = kMemoryAlignment;
  info.coherence_bytes = 64;
  info.fence_delta_max = UINT64_MAX;
  return info;  // import_alignment stays 0: no import
}

kvspan_result_t check_index(uint32_t index, kvspan_error_t* error, const char* where) {
  return index == 0 ? kvspan_result_t{KVSPAN_OK}
                    : sdk::fail_argument(
                          error, {2}, where, "device %u of 1: call count for how many", index);
}

kvspan_result_t KVSPAN_CALL device_count(void* self,
                                         uint32_t* out_count,
                                         kvspan_error_t* error) noexcept {
  if (self == nullptr || out_count == nullptr) {
    const sdk::Place place{self == nullptr ? 1u : 2u};
    return sdk::fail_argument(error, place, "device.count", "a pointer is NULL: pass one");
  }
  *out_count = 1;
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL device_describe(void* self,
                                            uint32_t index,
                                            kvspan_device_info_t* out_info,
                                            kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.describe";
  if (self == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "self is NULL: pass the plugin's");
  }
  if (const kvspan_result_t bad = check_index(index, error, kWhere)) {
    return bad;
  }
  return sdk::give(out_info, describe(), error, kWhere, 3);
}

kvspan_result_t KVSPAN_CALL device_open(void* self,
                                        uint32_t index,
                                        kvspan_device_t** out_device,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.open";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (self == nullptr || out_device == nullptr) {
      const sdk::Place place{self == nullptr ? 1u : 3u};
      return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
    }
    if (const kvspan_result_t bad = check_index(index, error, kWhere)) {
      return bad;
    }
    *out_device = reinterpret_cast<kvspan_device_t*>(new Device{plugin_of(self)});
    ++plugin_of(self).devices_open;
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL device_close(kvspan_device_t* handle, kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.close";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the device is NULL: pass one");
  }
  Device* const device = device_of(handle);
  uint64_t alive = 0;
  {
    const std::lock_guard lock(device->mutex);
    alive = device->memory_count + device->queue_count + device->fence_count;
  }
  if (alive != 0) {
    return sdk::fail_amount(error,
                            KVSPAN_E_BUSY,
                            kWhere,
                            {KVSPAN_RESOURCE_NONE, 0, alive},
                            "%llu memories, queues and fences are alive: end them first",
                            number(alive));
  }
  --device->plugin.devices_open;
  delete device;
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL device_free_bytes(kvspan_device_t* handle,
                                              uint64_t* out_bytes,
                                              kvspan_error_t* error) noexcept {
  if (handle == nullptr || out_bytes == nullptr) {
    const sdk::Place place{handle == nullptr ? 1u : 2u};
    return sdk::fail_argument(error, place, "device.free_bytes", "a pointer is NULL: pass one");
  }
  Device& device = *device_of(handle);
  const std::lock_guard lock(device.mutex);
  *out_bytes = kDeviceBytes - device.device_bytes;
  return KVSPAN_OK;
}

kvspan_result_t check_request(const kvspan_prepare_t* request,
                              kvspan_error_t* error,
                              const char* where) {
  if (const kvspan_result_t bad = sdk::take(request, error, where, 2)) {
    return bad;
  }
  const sdk::Place shapes{2, offsetof(kvspan_prepare_t, shapes)};
  if (request->shape_count != 0 && request->shapes == nullptr) {
    return sdk::fail_argument(error, shapes, where, "the shapes are NULL: pass them");
  }
  if (request->shape_count != 0) {
    return sdk::fail_reasons(error, where, 0, "no attention is offered: prepare without shapes");
  }
  if (request->depth > kDepthMax) {
    const sdk::Place place{2, offsetof(kvspan_prepare_t, depth)};
    return sdk::fail_argument(
        error, place, where, "depth %u, at most %u: ask for less", request->depth, kDepthMax);
  }
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL device_prepare(kvspan_device_t* handle,
                                           const kvspan_prepare_t* request,
                                           kvspan_prepared_t* out_prepared,
                                           kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.prepare";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the device is NULL: pass one");
  }
  if (const kvspan_result_t bad = check_request(request, error, kWhere)) {
    return bad;
  }
  Device& device = *device_of(handle);
  const std::lock_guard lock(device.mutex);
  if (device.in_flight != 0) {
    return sdk::fail_amount(error,
                            KVSPAN_E_BUSY,
                            kWhere,
                            {KVSPAN_RESOURCE_NONE, 0, device.in_flight},
                            "%llu submits are in flight: wait for them",
                            number(device.in_flight));
  }
  const kvspan_prepared_t prepared{sizeof(kvspan_prepared_t), 0, 0, 0, 0};
  if (const kvspan_result_t bad = sdk::give(out_prepared, prepared, error, kWhere, 3)) {
    return bad;
  }
  device.prepared = *request;
  device.prepared->shapes = nullptr;  // borrowed for the call
  return KVSPAN_OK;
}

}  // namespace

kvspan_result_t check_prepared(const Device& device,
                               PreparedLimit limit,
                               uint64_t required,
                               kvspan_error_t* error,
                               const char* where) {
  if (!device.prepared.has_value() || required <= (*device.prepared).*limit.limit) {
    return KVSPAN_OK;
  }
  const uint64_t provided = (*device.prepared).*limit.limit;
  return sdk::fail_amount(error,
                          KVSPAN_E_HOST_MEMORY,
                          where,
                          {KVSPAN_RESOURCE_PREPARED, required, provided},
                          "%llu %s in one submit, prepare was told of %llu: prepare for more",
                          number(required),
                          limit.what,
                          number(provided));
}

const kvspan_device_table_t kDeviceTable = {sizeof(kvspan_device_table_t),
                                            0,
                                            device_count,
                                            device_describe,
                                            device_open,
                                            device_close,
                                            device_free_bytes,
                                            device_prepare};

}  // namespace mine
