// SPDX-License-Identifier: Apache-2.0
// The debug table: counters, and faults that tests plant.
#include "kvspan/debug.h"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"

#include "device.hpp"

namespace kvspan::cuda {
namespace {

kvspan_result_t KVSPAN_CALL debug_fault(kvspan_device_t* handle,
                                        uint32_t kind,
                                        uint64_t nth,
                                        kvspan_result_t code,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "debug.fault";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the device is NULL: pass one");
  }
  if (kind != 0 && nth == 0) {
    return sdk::fail_argument(error, {3}, kWhere, "nth is 0: count from 1");
  }
  if (kind == KVSPAN_FAULT_SUBMIT && code >= 0) {
    return sdk::fail_argument(error, {4}, kWhere, "code %d is no failure: use one below 0", code);
  }
  Device& device = *device_of(handle);
  const std::lock_guard lock(device.mutex);
  switch (kind) {
    case 0:
      device.faults = Faults{};
      return KVSPAN_OK;
    case KVSPAN_FAULT_ALLOCATION:
      device.faults.allocation_in = nth;
      return KVSPAN_OK;
    case KVSPAN_FAULT_SUBMIT:
      device.faults.submit_in = nth;
      device.faults.submit_code = code;
      return KVSPAN_OK;
    case KVSPAN_FAULT_DEVICE:
      device.faults.loss_in = nth;
      return KVSPAN_OK;
    default:
      return sdk::fail_reasons(error, kWhere, 0, "fault kind %u cannot be planted here", kind);
  }
}

kvspan_result_t KVSPAN_CALL debug_counters(kvspan_device_t* handle,
                                           kvspan_debug_counters_t* out_counters,
                                           kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "debug.counters";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the device is NULL: pass one");
  }
  Device& device = *device_of(handle);
  kvspan_debug_counters_t counters{};
  counters.device_allocations = device.counters.device_allocations.load(std::memory_order_relaxed);
  counters.submits = device.counters.submits.load(std::memory_order_relaxed);
  counters.launches = device.counters.launches.load(std::memory_order_relaxed);
  uint64_t pool_bytes_max = 0;
  {
    const Current current(device.driver, device.context);
    pool_bytes_max = device.pool.held_bytes_max();
  }
  {
    const std::lock_guard lock(device.mutex);
    counters.device_bytes = device.device_bytes;
    counters.device_bytes_max = device.device_bytes_max;
  }
  if (counters.device_bytes_max < pool_bytes_max) {
    counters.device_bytes_max = pool_bytes_max;
  }
  return sdk::give(out_counters, counters, error, kWhere, 2);
}

}  // namespace

const kvspan_debug_table_t kDebugTable = {
    sizeof(kvspan_debug_table_t), 0, debug_fault, debug_counters};

}  // namespace kvspan::cuda
