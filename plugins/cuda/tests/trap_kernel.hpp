// SPDX-License-Identifier: Apache-2.0
// A kernel that spoils the context it runs in.
#pragma once

#include <cuda_runtime_api.h>

namespace kvspan::cuda {

// Launches it on the device's default stream and waits: the error that it caused.
cudaError_t run_trap();

}  // namespace kvspan::cuda
