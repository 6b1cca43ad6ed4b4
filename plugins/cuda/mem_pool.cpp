// SPDX-License-Identifier: Apache-2.0
// Read first: mem_pool.hpp.
#include "mem_pool.hpp"

#include <cuda.h>

namespace kvspan::cuda {

// A pool whose memory card `index` reaches.
cudaError_t MemPool::make(int index) noexcept {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type =
      place_ == Place::device ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost;
  props.location.id = place_ == Place::device ? index : 0;
  cudaError_t bad = cudaMemPoolCreate(&pool_, &props);
  if (bad == cudaSuccess && place_ == Place::host) {
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = index;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    bad = cudaMemPoolSetAccess(pool_, &access, 1);
  }
  return bad;
}

cudaError_t MemPool::open(int index) noexcept {
  int has_pools = 0;
  if (cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, index) != cudaSuccess ||
      has_pools == 0) {
    cudaGetLastError();
    return cudaSuccess;
  }
  if (const cudaError_t bad = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)) {
    return bad;
  }
  const cudaError_t bad = make(index);
  if (bad == cudaSuccess || place_ == Place::device) {
    return bad;
  }
  cudaGetLastError();  // an older driver has none for the host
  close();
  return cudaSuccess;
}

void MemPool::close() noexcept {
  if (pool_ != nullptr) {
    cudaMemPoolDestroy(pool_);
  }
  if (stream_ != nullptr) {
    cudaStreamDestroy(stream_);
  }
  pool_ = nullptr;
  stream_ = nullptr;
}

cudaError_t MemPool::take_plain(uint64_t bytes, void*& made) const noexcept {
  return place_ == Place::device
             ? cudaMalloc(&made, bytes)
             : cudaHostAlloc(&made, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
}

cudaError_t MemPool::take(uint64_t bytes, uint8_t*& taken) noexcept {
  void* made = nullptr;
  cudaError_t bad = pool_ == nullptr ? take_plain(bytes, made)
                                     : cudaMallocFromPoolAsync(&made, bytes, pool_, stream_);
  if (bad != cudaSuccess) {
    return bad;
  }
  bad = pool_ == nullptr ? cudaSuccess : cudaStreamSynchronize(stream_);  // no stream waits then
  if (bad != cudaSuccess) {
    cudaFreeAsync(made, stream_);
    return bad;
  }
  taken = static_cast<uint8_t*>(made);
  return cudaSuccess;
}

void MemPool::give_back(uint8_t* taken) noexcept {
  if (pool_ == nullptr) {
    place_ == Place::device ? cudaFree(taken) : cudaFreeHost(taken);
    return;
  }
  cudaFreeAsync(taken, stream_);
  cudaStreamSynchronize(stream_);
  cudaMemPoolTrimTo(pool_, 0);  // an engine's own allocator may want it
}

uint64_t MemPool::read(cudaMemPoolAttr attribute) const noexcept {
  cuuint64_t value = 0;
  if (pool_ == nullptr || cudaMemPoolGetAttribute(pool_, attribute, &value) != cudaSuccess) {
    return 0;
  }
  return value;
}

uint64_t MemPool::held_bytes() const noexcept {
  return read(cudaMemPoolAttrReservedMemCurrent);
}

uint64_t MemPool::held_bytes_max() const noexcept {
  return read(cudaMemPoolAttrReservedMemHigh);
}

}  // namespace kvspan::cuda
