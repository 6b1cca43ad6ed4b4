// SPDX-License-Identifier: Apache-2.0
// Read first: registry.hpp.
#include "registry.hpp"

namespace kvspan::cuda {

namespace {

// Where the device sees the bytes, if it sees all of them as one run.
cudaError_t address_on_device(uint8_t* address, uint64_t bytes, uint8_t*& on_device) noexcept {
  void* first = nullptr;
  void* last = nullptr;
  cudaError_t bad = cudaHostGetDevicePointer(&first, address, 0);
  if (bad == cudaSuccess) {
    bad = cudaHostGetDevicePointer(&last, address + bytes - 1, 0);
  }
  if (bad != cudaSuccess) {
    cudaGetLastError();
    return bad;
  }
  if (static_cast<uint8_t*>(last) - static_cast<uint8_t*>(first) !=
      static_cast<std::ptrdiff_t>(bytes - 1)) {
    return cudaErrorHostMemoryAlreadyRegistered;
  }
  on_device = static_cast<uint8_t*>(first);
  return cudaSuccess;
}

}  // namespace

Registry::Range** Registry::find(const uint8_t* address, uint64_t bytes) noexcept {
  Range** link = &ranges_;
  while (*link != nullptr && ((*link)->address != address || (*link)->bytes != bytes)) {
    link = &(*link)->next;
  }
  return link;
}

cudaError_t Registry::lock(uint8_t* address, uint64_t bytes, uint8_t*& on_device) noexcept {
  const std::lock_guard guard(mutex_);
  if (Range* const known = *find(address, bytes)) {
    const cudaError_t bad = address_on_device(address, bytes, on_device);
    known->uses += bad == cudaSuccess ? 1 : 0;
    return bad;
  }
  void* const block = host_.alloc(sizeof(Range), alignof(Range));
  if (block == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  cudaError_t bad =
      cudaHostRegister(address, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  const bool ours = bad == cudaSuccess;
  if (!ours) {
    cudaGetLastError();
  }
  if (ours || bad == cudaErrorHostMemoryAlreadyRegistered) {
    const cudaError_t unseen = address_on_device(address, bytes, on_device);
    if (unseen != cudaSuccess && ours) {
      cudaHostUnregister(address);
    }
    bad = unseen == cudaSuccess || ours ? unseen : bad;
  }
  if (bad != cudaSuccess) {
    host_.free(block, sizeof(Range), alignof(Range));
    return bad;
  }
  ranges_ = new (block) Range{address, bytes, 1, ours, ranges_};
  return cudaSuccess;
}

void Registry::unlock(uint8_t* address, uint64_t bytes) noexcept {
  const std::lock_guard guard(mutex_);
  Range** const link = find(address, bytes);
  Range* const range = *link;
  if (range == nullptr || --range->uses != 0) {
    return;
  }
  if (range->ours) {
    cudaHostUnregister(address);
    cudaGetLastError();
  }
  *link = range->next;
  host_.unmake(range);
}

}  // namespace kvspan::cuda
