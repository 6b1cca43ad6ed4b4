// SPDX-License-Identifier: Apache-2.0
// Stores descriptors in a queue's room: they come as the arguments of a kernel, which the card
// fetches in one go and not behind the pages that are on the link. Read first: HeldCall in kernel.hpp.
#include "attention/kernel.hpp"

#include <cstring>

namespace kvspan::cuda {
namespace {

constexpr uint32_t kStoreThreads = 256;

template <uint32_t kBytes>
struct Stored {
  alignas(16) uint8_t bytes[kBytes];
};

template <uint32_t kBytes>
__global__ void __launch_bounds__(kStoreThreads)
    store_kernel(const __grid_constant__ Stored<kBytes> stored, uint4* room, uint32_t units) {
  const auto* const from = reinterpret_cast<const uint4*>(stored.bytes);
  for (uint32_t i = threadIdx.x; i < units; i += kStoreThreads) {
    room[i] = from[i];
  }
}

template <uint32_t kBytes>
cudaError_t store(cudaStream_t stream, uint8_t* room, const uint8_t* from, uint32_t bytes) {
  Stored<kBytes> stored;
  std::memcpy(stored.bytes, from, bytes);
  const uint32_t units = (bytes + 15) / 16;
  store_kernel<kBytes><<<1, kStoreThreads, 0, stream>>>(stored, reinterpret_cast<uint4*>(room), units);
  return cudaGetLastError();
}

// A launch with more than 4 KiB of arguments takes longer; 32,764 bytes are the most.
constexpr uint32_t kSmall = 8192;
constexpr uint32_t kLarge = 32640;

}  // namespace

cudaError_t launch_store(cudaStream_t stream, uint8_t* room, const uint8_t* from, uint32_t bytes) {
  cudaError_t bad = cudaSuccess;
  for (uint32_t at = 0; at < bytes && bad == cudaSuccess; at += kLarge) {
    const uint32_t left = bytes - at;
    bad = left <= kSmall ? store<kSmall>(stream, room + at, from + at, left)
                         : store<kLarge>(stream, room + at, from + at, left < kLarge ? left : kLarge);
  }
  return bad;
}

cudaError_t load_store_kernels() {
  cudaFuncAttributes unused{};
  const cudaError_t bad = cudaFuncGetAttributes(&unused, store_kernel<kSmall>);
  return bad != cudaSuccess ? bad : cudaFuncGetAttributes(&unused, store_kernel<kLarge>);
}

}  // namespace kvspan::cuda
