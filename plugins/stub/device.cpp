// SPDX-License-Identifier: Apache-2.0
// The device table with prepare, and the debug table with faults and counters.
// prepare reserves nothing here, but holds the host to what it said. Read next: plugin.hpp.
#include "kvspan/device.h"

#include "kvspan/debug.h"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate_shape.hpp"

#include "attention_rules.hpp"
#include "plugin.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>

namespace kvspan::stub {
namespace {

Plugin& plugin_of(void* self) {
  return *static_cast<Plugin*>(self);
}

kvspan_device_info_t describe_one(const Options& options) {
  const bool one = options.schedule.mode == QueueMode::one;
  const bool stops = options.schedule.failed_waits == FailedWaits::stop;
  kvspan_device_info_t info{};
  info.struct_size = sizeof info;
  info.flags = KVSPAN_DEVICE_FREE_KNOWN | (stops ? KVSPAN_DEVICE_FAIL_STOPS : 0);
  std::memcpy(info.id, "kvspan-stub-0000", sizeof info.id);
  std::strncpy(info.name, "Stub (virtual time, reference arithmetic)", sizeof info.name - 1);
  for (std::uint32_t role = 0; role < KVSPAN_ROLE_COUNT; ++role) {
    info.lanes[role] = one ? 0 : role;
  }
  info.queues_max = kQueuesMax;
  info.depth_max = kDepthMax;
  info.cancel = KVSPAN_CANCEL_SUBMIT;
  info.allocation_bytes_max = kAllocationBytesMax;
  info.binding_bytes_max = kAllocationBytesMax;
  info.memory_alignment = kMemoryAlignment;
  info.import_alignment = kImportAlignment;
  info.import_bytes_max = kImportBytesMax;
  info.coherence_bytes = 1;
  info.context_bytes = 0;
  info.fence_delta_max = kFenceDeltaMax;
  return info;
}

kvspan_result_t check_index(const Plugin& plugin,
                            std::uint32_t index,
                            kvspan_error_t* error,
                            const char* where) {
  if (index < plugin.options.device_count) {
    return KVSPAN_OK;
  }
  return sdk::fail_argument(error,
                            sdk::Place{2},
                            where,
                            "device %u of %u: call count for how many there are",
                            index,
                            plugin.options.device_count);
}

kvspan_result_t KVSPAN_CALL device_count(void* self,
                                         std::uint32_t* out_count,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.count";
  if (self == nullptr || out_count == nullptr) {
    const sdk::Place place{self == nullptr ? 1u : 2u};
    return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
  }
  *out_count = plugin_of(self).options.device_count;
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL device_describe(void* self,
                                            std::uint32_t index,
                                            kvspan_device_info_t* out_info,
                                            kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.describe";
  if (self == nullptr) {
    return sdk::fail_argument(error, sdk::Place{1}, kWhere, "self is NULL: pass the plugin's");
  }
  if (const kvspan_result_t bad = check_index(plugin_of(self), index, error, kWhere)) {
    return bad;
  }
  return sdk::give(out_info, describe_one(plugin_of(self).options), error, kWhere, 3);
}

kvspan_result_t KVSPAN_CALL device_open(void* self,
                                        std::uint32_t index,
                                        kvspan_device_t** out_device,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.open";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (self == nullptr || out_device == nullptr) {
      const sdk::Place place{self == nullptr ? 1u : 3u};
      return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
    }
    Plugin& plugin = plugin_of(self);
    if (const kvspan_result_t bad = check_index(plugin, index, error, kWhere)) {
      return bad;
    }
    auto device = std::make_unique<Device>(plugin, plugin.options.schedule);
    const std::lock_guard lock(plugin.mutex);
    ++plugin.devices_open;
    *out_device = handle_of(device.release());
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL device_close(kvspan_device_t* handle, kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.close";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the device is NULL: pass one");
    }
    Device* const device = device_of(handle);
    const std::lock_guard lock(device->plugin.mutex);
    const std::uint64_t fences = device->scheduler.fence_count();
    const std::uint64_t alive = device->memory_count + device->queue_count + fences;
    if (alive != 0) {
      return sdk::fail_amount(error,
                              KVSPAN_E_BUSY,
                              kWhere,
                              {KVSPAN_RESOURCE_NONE, 0, alive},
                              "%llu memories, %u queues and %llu fences are alive: end them first",
                              sdk::number(device->memory_count),
                              device->queue_count,
                              sdk::number(fences));
    }
    --device->plugin.devices_open;
    delete device;
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL device_free_bytes(kvspan_device_t* handle,
                                              std::uint64_t* out_bytes,
                                              kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.free_bytes";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_bytes == nullptr) {
      const sdk::Place place{handle == nullptr ? 1u : 2u};
      return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
    }
    const Device& device = *device_of(handle);
    const std::lock_guard lock(device.plugin.mutex);
    if (device.scheduler.lost().has_value()) {
      return report(*device.scheduler.lost(), error, kWhere);
    }
    *out_bytes = device.plugin.options.device_bytes - device.device_bytes;
    return KVSPAN_OK;
  });
}

/// Every shape that the host announces makes sense and is offered.
kvspan_result_t check_shapes(const Device& device,
                             const kvspan_prepare_t& request,
                             kvspan_error_t* error,
                             const char* where) {
  const sdk::Place place{2, offsetof(kvspan_prepare_t, shapes)};
  if (request.shape_count != 0 && request.shapes == nullptr) {
    return sdk::fail_argument(error, place, where, "the shapes are NULL: pass them");
  }
  const Options& options = device.plugin.options;
  for (std::uint32_t i = 0; i < request.shape_count; ++i) {
    if (const kvspan_result_t bad = sdk::check_shape(&request.shapes[i], error, where)) {
      return bad;
    }
    const kvspan_attention_caps_t caps =
        answer(request.shapes[i], {options.granule, options.split_count});
    if (caps.level == KVSPAN_LEVEL_UNSUPPORTED) {
      return sdk::fail_reasons(error,
                               where,
                               caps.reasons,
                               "shape %u is not offered: ask query for the nearest that is",
                               i);
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
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the device is NULL: pass one");
    }
    if (const kvspan_result_t bad = sdk::take(request, error, kWhere, 2)) {
      return bad;
    }
    if (request->depth > kDepthMax) {
      return sdk::fail_argument(error,
                                {2, offsetof(kvspan_prepare_t, depth)},
                                kWhere,
                                "depth %u, at most %u: ask for less",
                                request->depth,
                                kDepthMax);
    }
    Device& device = *device_of(handle);
    const std::lock_guard lock(device.plugin.mutex);
    if (device.scheduler.lost().has_value()) {
      return report(*device.scheduler.lost(), error, kWhere);
    }
    if (const kvspan_result_t bad = check_shapes(device, *request, error, kWhere)) {
      return bad;
    }
    const std::uint64_t in_flight = device.scheduler.in_flight();
    if (in_flight != 0) {
      return sdk::fail_amount(error,
                              KVSPAN_E_BUSY,
                              kWhere,
                              {KVSPAN_RESOURCE_NONE, 0, in_flight},
                              "%llu submits are in flight: wait for them",
                              sdk::number(in_flight));
    }
    const kvspan_prepared_t prepared = {sizeof(kvspan_prepared_t), 0, 0, 0, 0};
    if (const kvspan_result_t bad = sdk::give(out_prepared, prepared, error, kWhere, 3)) {
      return bad;
    }
    device.prepared = *request;
    device.prepared->shapes = nullptr;  // borrowed for the call
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL debug_fault(kvspan_device_t* handle,
                                        std::uint32_t kind,
                                        std::uint64_t nth,
                                        kvspan_result_t code,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "debug.fault";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the device is NULL: pass one");
    }
    if (kind != 0 && nth == 0) {
      return sdk::fail_argument(error, sdk::Place{3}, kWhere, "nth counts from 1");
    }
    Device& device = *device_of(handle);
    const std::lock_guard lock(device.plugin.mutex);
    SubmitFaults& faults = device.scheduler.faults();
    switch (kind) {
      case 0:
        device.fail_allocation_in = 0;
        faults = {};
        return KVSPAN_OK;
      case KVSPAN_FAULT_ALLOCATION:
        device.fail_allocation_in = nth;
        return KVSPAN_OK;
      case KVSPAN_FAULT_SUBMIT:
        if (code >= 0) {
          return sdk::fail_argument(
              error, sdk::Place{4}, kWhere, "%d is no error code: pass one below 0", code);
        }
        faults.fail_in = nth;
        faults.fail_code = code;
        return KVSPAN_OK;
      case KVSPAN_FAULT_DEVICE:
        faults.lose_in = nth;
        return KVSPAN_OK;
      default:
        return sdk::fail_reasons(
            error, kWhere, 0, "fault kind %u: use one of KVSPAN_FAULT_*", kind);
    }
  });
}

kvspan_result_t KVSPAN_CALL debug_counters(kvspan_device_t* handle,
                                           kvspan_debug_counters_t* out_counters,
                                           kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "debug.counters";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the device is NULL: pass one");
    }
    const Device& device = *device_of(handle);
    const std::lock_guard lock(device.plugin.mutex);
    kvspan_debug_counters_t counters{};
    counters.struct_size = sizeof counters;
    counters.device_allocations = device.allocations;
    counters.device_bytes = device.device_bytes;
    counters.device_bytes_max = device.device_bytes_max;
    counters.submits = device.scheduler.submits();
    counters.launches = device.scheduler.launches();
    return sdk::give(out_counters, counters, error, kWhere, 2);
  });
}

}  // namespace

kvspan_result_t check_prepared(const Device& device,
                               PreparedLimit limit,
                               std::uint64_t required,
                               kvspan_error_t* error,
                               const char* where) {
  if (!device.prepared.has_value() || required <= (*device.prepared).*limit.limit) {
    return KVSPAN_OK;
  }
  const std::uint64_t provided = (*device.prepared).*limit.limit;
  return sdk::fail_amount(error,
                          KVSPAN_E_HOST_MEMORY,
                          where,
                          {KVSPAN_RESOURCE_PREPARED, required, provided},
                          "%llu %s in one submit, prepare was told of %llu: prepare for more",
                          sdk::number(required),
                          limit.what,
                          sdk::number(provided));
}

const kvspan_device_table_t kDeviceTable = {sizeof(kvspan_device_table_t),
                                            0,
                                            device_count,
                                            device_describe,
                                            device_open,
                                            device_close,
                                            device_free_bytes,
                                            device_prepare};

const kvspan_debug_table_t kDebugTable = {
    sizeof(kvspan_debug_table_t), 0, debug_fault, debug_counters};

}  // namespace kvspan::stub
