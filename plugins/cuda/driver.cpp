// SPDX-License-Identifier: Apache-2.0
// Read first: driver.hpp.
#include "driver.hpp"

#include "kvspan/sdk/error.hpp"

namespace kvspan::cuda {

namespace {

// Any driver of the plugin's own major has these.
constexpr unsigned int kDriverVersion = 12000;

template <class Function>
bool find_one(const char* name, Function& function) noexcept {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t native =
      cudaGetDriverEntryPointByVersion(name, &found, kDriverVersion, cudaEnableDefault, &status);
  function = reinterpret_cast<Function>(found);
  return native == cudaSuccess && status == cudaDriverEntryPointSuccess && found != nullptr;
}

}  // namespace

bool Driver::find() noexcept {
  return find_one("cuDeviceGet", device_get) &&
         find_one("cuDevicePrimaryCtxRetain", primary_retain) &&
         find_one("cuDevicePrimaryCtxRelease", primary_release) &&
         find_one("cuCtxPushCurrent", push) && find_one("cuCtxPopCurrent", pop) &&
         find_one("cuCtxGetDevice", context_device) && find_one("cuStreamGetCtx", stream_context) &&
         find_one("cuPointerGetAttributes", pointer_attributes);
}

bool is_sticky(cudaError_t native) noexcept {
  static constexpr cudaError_t kSticky[] = {cudaErrorECCUncorrectable,
                                            cudaErrorNvlinkUncorrectable,
                                            cudaErrorIllegalAddress,
                                            cudaErrorLaunchTimeout,
                                            cudaErrorContextIsDestroyed,
                                            cudaErrorHardwareStackError,
                                            cudaErrorIllegalInstruction,
                                            cudaErrorMisalignedAddress,
                                            cudaErrorInvalidAddressSpace,
                                            cudaErrorInvalidPc,
                                            cudaErrorLaunchFailure,
                                            cudaErrorTensorMemoryLeak,
                                            cudaErrorAssert,
                                            cudaErrorDeviceUninitialized,
                                            cudaErrorContained,
                                            cudaErrorCudartUnloading};
  for (const cudaError_t sticky : kSticky) {
    if (native == sticky) {
      return true;
    }
  }
  return false;
}

kvspan_result_t report_no_device(cudaError_t native,
                                 kvspan_error_t* error,
                                 const char* where) noexcept {
  const bool absent = native == cudaErrorInsufficientDriver || native == cudaErrorStubLibrary;
  sdk::fail(error,
            KVSPAN_E_NO_DEVICE,
            where,
            "no device: %s (%s): %s",
            absent ? "this machine has no NVIDIA driver that is new enough"
                   : "the NVIDIA driver offers no device",
            cudaGetErrorName(native),
            absent ? "install a driver for CUDA 13, or use another backend"
                   : "check the card, or use another backend");
  if (error != nullptr) {
    error->native_code = static_cast<int32_t>(native);
  }
  return KVSPAN_E_NO_DEVICE;
}

kvspan_result_t report_native(cudaError_t native,
                              const char* what,
                              kvspan_error_t* error,
                              const char* where) noexcept {
  const bool lost = is_sticky(native);
  const kvspan_result_t code = lost ? KVSPAN_E_DEVICE_LOST : KVSPAN_E_INTERNAL;
  sdk::fail(error,
            code,
            where,
            "%s failed: %s (%s)%s",
            what,
            cudaGetErrorString(native),
            cudaGetErrorName(native),
            lost ? ": this process cannot use the device again" : "");
  if (error != nullptr) {
    error->native_code = static_cast<int32_t>(native);
    error->flags = lost ? KVSPAN_ERROR_STICKY | KVSPAN_ERROR_RESTART_PROCESS : 0;
  }
  return code;
}

}  // namespace kvspan::cuda
