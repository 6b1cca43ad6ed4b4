// SPDX-License-Identifier: Apache-2.0
// Opening and closing a device: on the card's primary context, or on one that an engine owns.
// Read first: device.hpp.
#include "kvspan/sdk/error.hpp"

#include "attention/kernel.hpp"
#include "codec.hpp"
#include "copy.hpp"
#include "device.hpp"
#include "thread.hpp"

namespace kvspan::cuda {

namespace {

// Takes the context, the card's own one where the engine gave none.
kvspan_result_t take_context(Device& device,
                             CUcontext engines,
                             kvspan_error_t* error,
                             const char* where) {
  if (engines != nullptr) {
    CUdevice ordinal = -1;
    const Current current(device.driver, engines);
    if (!current.is_made() || device.driver.context_device(&ordinal) != CUDA_SUCCESS ||
        ordinal != device.ordinal) {
      return sdk::fail_argument(
          error, {3}, where, "this is no context of that device: pass the engine's own CUcontext");
    }
    device.context = engines;
    device.borrowed = true;
    return KVSPAN_OK;
  }
  const CUresult made = device.driver.primary_retain(&device.context, device.ordinal);
  if (made == CUDA_SUCCESS) {
    return KVSPAN_OK;
  }
  device.context = nullptr;
  if (made != CUDA_ERROR_OUT_OF_MEMORY) {
    return report_no_device(static_cast<cudaError_t>(made), error, where);
  }
  return sdk::fail_amount(error,
                          KVSPAN_E_DEVICE_MEMORY,
                          where,
                          {KVSPAN_RESOURCE_DEVICE_MEMORY, kContextBytes, KVSPAN_UNKNOWN_AMOUNT},
                          "the card has no room for a context: free some of its memory");
}

// What kernels are chosen by.
cudaError_t read_card(int index, Card& card) {
  int major = 0;
  int minor = 0;
  int multiprocessors = 0;
  int shared = 0;
  cudaError_t bad = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  bad = bad != cudaSuccess
            ? bad
            : cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
  bad = bad != cudaSuccess
            ? bad
            : cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, index);
  bad = bad != cudaSuccess
            ? bad
            : cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  if (bad == cudaSuccess) {
    card = {static_cast<uint32_t>(10 * major + minor),
            static_cast<uint32_t>(multiprocessors),
            static_cast<uint32_t>(shared)};
  }
  return bad;
}

// Takes a context and looks whether the kernels of this build run there.
kvspan_result_t start(Device& device,
                      const Opened& opened,
                      kvspan_error_t* error,
                      const char* where) {
  const auto index = static_cast<int>(opened.index);
  if (!device.driver.find()) {
    cudaGetLastError();
    return report_no_device(cudaErrorInsufficientDriver, error, where);
  }
  const CUresult found = device.driver.device_get(&device.ordinal, index);
  if (found != CUDA_SUCCESS) {  // CUDA's two interfaces number these errors alike
    return report_no_device(static_cast<cudaError_t>(found), error, where);
  }
  if (const kvspan_result_t bad = take_context(device, opened.context, error, where)) {
    return bad;
  }
  const Current current(device.driver, device.context);
  cudaError_t native = read_card(index, device.card);
  native = native != cudaSuccess ? native : prepare_kernels(device.card);
  native = native != cudaSuccess ? native : load_fold_kernels();
  native = native != cudaSuccess ? native : load_run_fold_kernel();
  native = native != cudaSuccess ? native : load_store_kernels();
  native = native != cudaSuccess ? native : load_codec_kernels();
  native = native != cudaSuccess ? native : load_copy_kernels();
  if (native == cudaErrorNoKernelImageForDevice || native == cudaErrorInvalidDeviceFunction) {
    return report_no_device(native, error, where);
  }
  native = native != cudaSuccess ? native : device.pool.open(index);
  native = native != cudaSuccess ? native : device.pinned.open(index);
  return native == cudaSuccess ? kvspan_result_t{KVSPAN_OK}
                               : report_native(native, "loading the kernels", error, where);
}

void stop(Device& device) {
  if (device.context == nullptr) {
    return;
  }
  {
    const Current current(device.driver, device.context);
    device.pool.close();
    device.pinned.close();
  }
  if (!device.borrowed) {
    device.driver.primary_release(device.ordinal);
  }
}

}  // namespace

kvspan_result_t open_device(Plugin& plugin,
                            const Opened& opened,
                            kvspan_device_t** out_device,
                            kvspan_error_t* error,
                            const char* where) {
  const SignalsBlocked blocked;  // the driver starts threads
  Device* const device = plugin.host.make<Device>(plugin);
  if (device == nullptr) {
    return report_no_host_memory(sizeof(Device), error, where);
  }
  if (const kvspan_result_t bad = start(*device, opened, error, where)) {
    stop(*device);
    plugin.host.unmake(device);
    return bad;
  }
  plugin.devices_open.fetch_add(1);
  *out_device = handle_of(device);
  return KVSPAN_OK;
}

void close_device(Device& device) {
  Plugin& plugin = device.plugin;
  stop(device);
  plugin.host.unmake(&device);
  plugin.devices_open.fetch_sub(1);
}

}  // namespace kvspan::cuda
