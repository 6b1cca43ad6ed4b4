// SPDX-License-Identifier: Apache-2.0
// An engine as tests play it: kernels that make rows and read outputs, and one that keeps a stream
// busy until the host says so.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace kvspan::cuda {

// Element `index` of the rows of `round`, in (-1, 1): the same on host and card.
#if defined(__CUDACC__)
__host__ __device__
#endif
    constexpr float
    row_value(uint32_t round, uint32_t index) {
  uint32_t bits = round * 0x9e3779b9u + index * 0x85ebca6bu + 1;
  bits ^= bits >> 16;
  bits *= 0x7feb352du;
  bits ^= bits >> 15;
  bits *= 0x846ca68bu;
  bits ^= bits >> 16;
  return static_cast<float>(static_cast<int32_t>(bits >> 8) - (1 << 23)) / 8388608.0f;
}

// rows[i] = row_value(round, i).
cudaError_t launch_produce(cudaStream_t stream, float* rows, uint32_t count, uint32_t round);
// to[i] = from[i].
cudaError_t launch_consume(cudaStream_t stream, const float* from, float* to, uint32_t count);
// Runs until *flag, which the card sees, is not 0, or for `limit_ns`.
cudaError_t launch_gate(cudaStream_t stream, const uint32_t* flag, uint64_t limit_ns);

}  // namespace kvspan::cuda
