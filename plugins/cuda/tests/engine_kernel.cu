// SPDX-License-Identifier: Apache-2.0
// Read first: engine_kernel.hpp.
#include "engine_kernel.hpp"

namespace kvspan::cuda {
namespace {

constexpr uint32_t kThreads = 128;

__global__ void produce_kernel(float* rows, uint32_t count, uint32_t round) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < count) {
    rows[i] = row_value(round, i);
  }
}

__global__ void consume_kernel(const float* from, float* to, uint32_t count) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < count) {
    to[i] = from[i];
  }
}

__device__ uint64_t now_ns() {
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void gate_kernel(const volatile uint32_t* flag, uint64_t limit_ns) {
  const uint64_t begin = now_ns();
  while (*flag == 0 && now_ns() - begin < limit_ns) {
    __nanosleep(1000);
  }
}

uint32_t blocks_of(uint32_t count) {
  return (count + kThreads - 1) / kThreads;
}

}  // namespace

cudaError_t launch_produce(cudaStream_t stream, float* rows, uint32_t count, uint32_t round) {
  produce_kernel<<<blocks_of(count), kThreads, 0, stream>>>(rows, count, round);
  return cudaGetLastError();
}

cudaError_t launch_consume(cudaStream_t stream, const float* from, float* to, uint32_t count) {
  consume_kernel<<<blocks_of(count), kThreads, 0, stream>>>(from, to, count);
  return cudaGetLastError();
}

cudaError_t launch_gate(cudaStream_t stream, const uint32_t* flag, uint64_t limit_ns) {
  gate_kernel<<<1, 1, 0, stream>>>(flag, limit_ns);
  return cudaGetLastError();
}

}  // namespace kvspan::cuda
