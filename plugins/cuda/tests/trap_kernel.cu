// SPDX-License-Identifier: Apache-2.0
// Read first: trap_kernel.hpp.
#include "trap_kernel.hpp"

namespace kvspan::cuda {
namespace {

__global__ void trap_kernel() {
  __trap();
}

}  // namespace

cudaError_t run_trap() {
  trap_kernel<<<1, 1>>>();
  return cudaDeviceSynchronize();
}

}  // namespace kvspan::cuda
