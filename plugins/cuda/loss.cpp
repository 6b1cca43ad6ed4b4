// SPDX-License-Identifier: Apache-2.0
// What a failed CUDA call becomes: an error record, and a lost device where the context is spoilt.
// Read first: device.hpp.
#include "kvspan/sdk/error.hpp"

#include "device.hpp"
#include "fence.hpp"

namespace kvspan::cuda {

uint32_t lost_flags(const Device& device) noexcept {
  return KVSPAN_ERROR_STICKY | (device.lost_native.load() != 0 ? KVSPAN_ERROR_RESTART_PROCESS
                                                               : KVSPAN_ERROR_REOPEN_DEVICE);
}

kvspan_result_t report_lost(const Device& device,
                            kvspan_error_t* error,
                            const char* where) noexcept {
  const int32_t native = device.lost_native.load();
  if (native != 0) {
    sdk::fail(error,
              KVSPAN_E_DEVICE_LOST,
              where,
              "the device was lost (%s): this process cannot use it again",
              cudaGetErrorName(static_cast<cudaError_t>(native)));
  } else {
    sdk::fail(
        error, KVSPAN_E_DEVICE_LOST, where, "the device was lost: close it and open it again");
  }
  if (error != nullptr) {
    error->flags = lost_flags(device);
    error->native_code = native;
  }
  return KVSPAN_E_DEVICE_LOST;
}

void lose_device(Device& device, cudaError_t native, uint64_t submit_id) noexcept {
  if (device.lost) {
    return;
  }
  device.lost_native = static_cast<int32_t>(native);
  device.lost = true;
  for (Fence* fence = device.fences; fence != nullptr; fence = fence->next) {
    fence->fail({KVSPAN_E_DEVICE_LOST, submit_id, kLostText, static_cast<int32_t>(native)});
  }
  device.settled.notify_all();
}

kvspan_result_t report_call(Device& device,
                            cudaError_t native,
                            const char* what,
                            kvspan_error_t* error,
                            const char* where) noexcept {
  if (is_sticky(native)) {
    const std::lock_guard lock(device.mutex);
    lose_device(device, native, 0);
  }
  return report_native(native, what, error, where);
}

kvspan_result_t report_no_host_memory(uint64_t bytes,
                                      kvspan_error_t* error,
                                      const char* where) noexcept {
  return sdk::fail_amount(error,
                          KVSPAN_E_HOST_MEMORY,
                          where,
                          {KVSPAN_RESOURCE_HOST_MEMORY, bytes, 0},
                          "the host's allocator has no %llu bytes: free some and call again",
                          static_cast<unsigned long long>(bytes));
}

}  // namespace kvspan::cuda
