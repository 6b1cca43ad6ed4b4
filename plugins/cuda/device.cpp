// SPDX-License-Identifier: Apache-2.0
// The device table: the cards that the driver offers, and what prepare() reserves.
// Read first: device.hpp. The layout of what is reserved: layout.hpp.
#include "device.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate_shape.hpp"

#include "attention/rules.hpp"
#include "layout.hpp"
#include "queue.hpp"
#include "thread.hpp"

#include <cstddef>
#include <cstring>

namespace kvspan::cuda {

namespace {

// Of what the driver says is free, a single allocation cannot have the last pieces.
constexpr uint64_t kFreeReserveBytes = uint64_t{64} << 20;
constexpr uint64_t kFreeGranuleBytes = uint64_t{2} << 20;

unsigned long long number(uint64_t value) {
  return value;
}

// How many devices there are; cudaSuccess with 0 is a driver without a card.
cudaError_t count_devices(uint32_t& count) noexcept {
  const SignalsBlocked blocked;  // the driver may start threads
  int version = 0;
  count = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) {
    cudaGetLastError();
    return cudaErrorInsufficientDriver;
  }
  int found = 0;
  const cudaError_t native = cudaGetDeviceCount(&found);
  cudaGetLastError();
  if (native == cudaSuccess) {
    count = static_cast<uint32_t>(found);
  }
  return native == cudaErrorNoDevice ? cudaSuccess : native;
}

kvspan_device_info_t describe(const cudaDeviceProp& card) {
  kvspan_device_info_t info{};
  info.flags = KVSPAN_DEVICE_FREE_KNOWN;
  static_assert(sizeof info.id == sizeof card.uuid.bytes);
  std::memcpy(info.id, card.uuid.bytes, sizeof info.id);
  std::memcpy(info.name, card.name, sizeof info.name - 1);  // zeros behind the name in both
  for (uint32_t role = 0; role < KVSPAN_ROLE_COUNT; ++role) {
    info.lanes[role] = role;
  }
  info.queues_max = kQueuesMax;
  info.depth_max = kDepthMax;
  info.cancel = KVSPAN_CANCEL_SUBMIT;
  info.allocation_bytes_max = kAllocationBytesMax;
  info.binding_bytes_max = kAllocationBytesMax;
  info.memory_alignment = kMemoryAlignment;
  info.import_alignment = kImportAlignment;
  info.import_bytes_max = kAllocationBytesMax;
  info.coherence_bytes = 64;
  info.context_bytes = kContextBytes;
  info.fence_delta_max = kFenceDeltaMax;
  return info;
}

kvspan_result_t KVSPAN_CALL device_count(void* self,
                                         uint32_t* out_count,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "device.count";
  if (self == nullptr || out_count == nullptr) {
    return sdk::fail_argument(
        error, {self == nullptr ? 1u : 2u}, kWhere, "an argument is NULL: pass one");
  }
  uint32_t count = 0;
  if (const cudaError_t native = count_devices(count)) {
    return report_no_device(native, error, kWhere);
  }
  *out_count = count;
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
  cudaDeviceProp card{};
  if (const cudaError_t native = cudaGetDeviceProperties(&card, static_cast<int>(index))) {
    cudaGetLastError();
    return report_native(native, "reading the card's properties", error, kWhere);
  }
  return sdk::give(out_info, describe(card), error, kWhere, 3);
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
    return open_device(*static_cast<Plugin*>(self), {index, nullptr}, out_device, error, kWhere);
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
                                "%llu memories, queues, fences and graphs are alive: destroy "
                                "them first",
                                number(device->object_count));
      }
    }
    close_device(*device);
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
    return report_lost(device, error, kWhere);
  }
  std::size_t free_now = 0;
  std::size_t total = 0;
  cudaError_t native = cudaSuccess;
  {
    const Current current(device.driver, device.context);
    native = cudaMemGetInfo(&free_now, &total);
  }
  if (native != cudaSuccess) {
    return report_call(device, native, "asking for free memory", error, kWhere);
  }
  const uint64_t usable = free_now > kFreeReserveBytes ? free_now - kFreeReserveBytes : 0;
  *out_bytes = usable / kFreeGranuleBytes * kFreeGranuleBytes;
  return KVSPAN_OK;
}

// Every shape must be one that the query grants; `limits` grows to what they need.
kvspan_result_t add_shapes(const Card& card,
                           const kvspan_prepare_t& request,
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
    if (!answer(card, shape, caps)) {
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
                            const Reserved& wanted,
                            kvspan_error_t* error,
                            const char* where) {
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
    const kvspan_result_t bad = queue->reserve(wanted, error, where);
    if (bad != KVSPAN_OK) {
      return bad;
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
      return report_lost(device, error, kWhere);
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
    if (const kvspan_result_t bad = add_shapes(device.card, *request, limits, error, kWhere)) {
      return bad;
    }
    const Current current(device.driver, device.context);
    const std::lock_guard lock(device.mutex);
    const Reserved wanted{prepared_slab_bytes(limits), request->depth};
    if (const kvspan_result_t bad = reserve_all(device, wanted, error, kWhere)) {
      return bad;
    }
    kvspan_prepared_t prepared{};
    prepared.host_bytes = device.pinned.bytes();
    prepared.locked_bytes = prepared.host_bytes;
    if (const kvspan_result_t bad = sdk::give(out_prepared, prepared, error, kWhere, 3)) {
      return bad;
    }
    for (Queue* queue = device.queues; queue != nullptr; queue = queue->next) {
      queue->use_reserved(wanted);
    }
    device.prepared = limits;
    device.prepared_depth = request->depth;
    return KVSPAN_OK;
  });
}

}  // namespace

kvspan_result_t check_index(const void* self,
                            uint32_t index,
                            kvspan_error_t* error,
                            const char* where) {
  if (self == nullptr) {
    return sdk::fail_argument(error, {1}, where, "the plugin is NULL: pass plugin.self");
  }
  uint32_t count = 0;
  if (const cudaError_t native = count_devices(count)) {
    return report_no_device(native, error, where);
  }
  if (index >= count) {
    return sdk::fail_argument(error, {2}, where, "device %u of %u: call count again", index, count);
  }
  return KVSPAN_OK;
}

const kvspan_device_table_t kDeviceTable = {sizeof(kvspan_device_table_t),
                                            0,
                                            device_count,
                                            device_describe,
                                            device_open,
                                            device_close,
                                            device_free_bytes,
                                            device_prepare};

}  // namespace kvspan::cuda
