// SPDX-License-Identifier: Apache-2.0
// Read first: device_pool.hpp.
#include "device_pool.hpp"

#include <cuda.h>

namespace kvspan::cuda {

cudaError_t DevicePool::open(int index) noexcept {
  int has_pools = 0;
  if (cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, index) != cudaSuccess ||
      has_pools == 0) {
    cudaGetLastError();
    return cudaSuccess;
  }
  if (const cudaError_t bad = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)) {
    return bad;
  }
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = index;
  return cudaMemPoolCreate(&pool_, &props);
}

void DevicePool::close() noexcept {
  if (pool_ != nullptr) {
    cudaMemPoolDestroy(pool_);
  }
  if (stream_ != nullptr) {
    cudaStreamDestroy(stream_);
  }
  pool_ = nullptr;
  stream_ = nullptr;
}

cudaError_t DevicePool::take(uint64_t bytes, uint8_t*& taken) noexcept {
  void* made = nullptr;
  if (pool_ == nullptr) {
    const cudaError_t bad = cudaMalloc(&made, bytes);
    taken = static_cast<uint8_t*>(made);
    return bad;
  }
  cudaError_t bad = cudaMallocFromPoolAsync(&made, bytes, pool_, stream_);
  if (bad != cudaSuccess) {
    return bad;
  }
  bad = cudaStreamSynchronize(stream_);  // other streams need no event then
  if (bad != cudaSuccess) {
    cudaFreeAsync(made, stream_);
    return bad;
  }
  taken = static_cast<uint8_t*>(made);
  return cudaSuccess;
}

void DevicePool::give_back(uint8_t* taken) noexcept {
  if (pool_ == nullptr) {
    cudaFree(taken);
    return;
  }
  cudaFreeAsync(taken, stream_);
  cudaStreamSynchronize(stream_);
  cudaMemPoolTrimTo(pool_, 0);  // an engine's own allocator may want it
}

uint64_t DevicePool::held_bytes_max() const noexcept {
  cuuint64_t held = 0;
  if (pool_ == nullptr ||
      cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemHigh, &held) != cudaSuccess) {
    return 0;
  }
  return held;
}

}  // namespace kvspan::cuda
