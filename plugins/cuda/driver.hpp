// SPDX-License-Identifier: Apache-2.0
// CUDA as the plugin uses it: the few driver functions that the runtime lacks, the context of a
// call, and CUDA's errors as values. The runtime is linked statically and opens the driver itself,
// so that the plugin loads on a machine without one. Not here: what is done with any of it.
#pragma once

#include "kvspan/error.h"

#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace kvspan::cuda {

// Looked up at run time: the plugin never names the driver's library.
struct Driver {
  CUresult (*device_get)(CUdevice* device, int ordinal) = nullptr;
  CUresult (*primary_retain)(CUcontext* context, CUdevice device) = nullptr;
  CUresult (*primary_release)(CUdevice device) = nullptr;
  CUresult (*push)(CUcontext context) = nullptr;
  CUresult (*pop)(CUcontext* context) = nullptr;
  CUresult (*context_device)(CUdevice* device) = nullptr;  // of the current context
  CUresult (*stream_context)(CUstream stream, CUcontext* context) = nullptr;
  CUresult (*pointer_attributes)(unsigned int count,
                                 CUpointer_attribute* attributes,
                                 void** data,
                                 CUdeviceptr pointer) = nullptr;

  // False: this driver lacks one of them.
  [[nodiscard]] bool find() noexcept;
};

// Makes a context current for a scope. What the thread had current comes back behind it, whatever
// happened between. Errors of the runtime that nobody read are forgotten at both ends, so that one
// call never reports another's. Nothing inside spoils a graph that an engine is recording
// meanwhile.
class Current {
 public:
  Current(const Driver& driver, CUcontext context) noexcept : driver_(driver) {
    pushed_ = driver_.push(context) == CUDA_SUCCESS;
    cudaThreadExchangeStreamCaptureMode(&mode_);
    cudaGetLastError();
  }

  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  Current(Current&&) = delete;
  Current& operator=(Current&&) = delete;

  // False: that is no context, and nothing here may be trusted.
  [[nodiscard]] bool is_made() const noexcept { return pushed_; }

  ~Current() {
    cudaThreadExchangeStreamCaptureMode(&mode_);
    cudaGetLastError();
    CUcontext unused = nullptr;
    if (pushed_) {
      driver_.pop(&unused);
    }
  }

 private:
  const Driver& driver_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // inside the scope; the thread's own
  bool pushed_ = false;
};

// Whether the context is unusable after this error: the device is lost for this process.
bool is_sticky(cudaError_t native) noexcept;

// NO_DEVICE with CUDA's own code, in words.
kvspan_result_t report_no_device(cudaError_t native,
                                 kvspan_error_t* error,
                                 const char* where) noexcept;

// Any other failure of a CUDA call: DEVICE_LOST where it is sticky, else INTERNAL, with CUDA's code
// and name. `what` is the call in words ("making a stream").
kvspan_result_t report_native(cudaError_t native,
                              const char* what,
                              kvspan_error_t* error,
                              const char* where) noexcept;

}  // namespace kvspan::cuda
