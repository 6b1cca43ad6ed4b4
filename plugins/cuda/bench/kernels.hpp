// SPDX-License-Identifier: Apache-2.0
// The benchmark's own kernels: what the card can do without kvspan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

namespace kvspan::cuda_bench {

// Reads `bytes` (a multiple of 16) once and writes a word that depends on all of them.
cudaError_t launch_read(
    cudaStream_t stream, const void* data, std::size_t bytes, std::uint32_t* out, int blocks);

cudaError_t launch_empty(cudaStream_t stream);

// Keeps one block busy for this long.
cudaError_t launch_spin(cudaStream_t stream, std::uint64_t nanoseconds);

// Fills with pseudo-random words.
cudaError_t launch_noise(cudaStream_t stream, void* data, std::size_t bytes, std::uint32_t seed);

}  // namespace kvspan::cuda_bench
