// SPDX-License-Identifier: Apache-2.0
// Read first: registry.hpp.
#include "registry.hpp"

namespace kvspan::cuda {

namespace {

// Where the device sees the bytes, if it sees all of them as one run.
cudaError_t address_on_device(uint8_t* address, const uint8_t* end, uint8_t*& on_device) noexcept {
  void* first = nullptr;
  void* last = nullptr;
  const std::ptrdiff_t span = end - address - 1;
  cudaError_t bad = cudaHostGetDevicePointer(&first, address, 0);
  if (bad == cudaSuccess) {
    bad = cudaHostGetDevicePointer(&last, address + span, 0);
  }
  if (bad != cudaSuccess) {
    cudaGetLastError();
    return bad;
  }
  if (static_cast<uint8_t*>(last) - static_cast<uint8_t*>(first) != span) {
    return cudaErrorHostMemoryAlreadyRegistered;
  }
  on_device = static_cast<uint8_t*>(first);
  return cudaSuccess;
}

}  // namespace

// The lock that holds byte `at`, or nullptr.
Registry::Lock* Registry::find(const uint8_t* at) const noexcept {
  Lock* lock = locks_;
  while (lock != nullptr && (at < lock->address || at >= lock->end)) {
    lock = lock->next;
  }
  return lock;
}

// Where the pages from `at` on, which no lock holds, end: at the next lock or at `end`.
uint8_t* Registry::gap_end(const uint8_t* at, uint8_t* end) const noexcept {
  for (const Lock* lock = locks_; lock != nullptr; lock = lock->next) {
    if (lock->address > at && lock->address < end) {
      end = lock->address;
    }
  }
  return end;
}

// Whether live imports name all of these pages. A lock may hold others too, which were let go of:
// their owner may have mapped something else there since.
bool Registry::is_imported(const uint8_t* address, const uint8_t* end) const noexcept {
  const uint8_t* at = address;
  while (at < end) {
    const Import* import = imports_;
    while (import != nullptr && (at < import->address || at >= import->end)) {
      import = import->next;
    }
    if (import == nullptr) {
      return false;
    }
    at = import->end;
  }
  return true;
}

cudaError_t Registry::add_lock(uint8_t* address, uint8_t* end) noexcept {
  void* const block = host_.alloc(sizeof(Lock), alignof(Lock));
  if (block == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  const auto bytes = static_cast<std::size_t>(end - address);
  cudaError_t bad =
      cudaHostRegister(address, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  const bool ours = bad == cudaSuccess;
  uint8_t* unused = nullptr;
  if (bad == cudaErrorHostMemoryAlreadyRegistered) {
    cudaGetLastError();
    bad = address_on_device(address, end, unused) == cudaSuccess ? cudaSuccess : bad;
  }
  if (bad != cudaSuccess) {
    cudaGetLastError();
    host_.free(block, sizeof(Lock), alignof(Lock));
    return bad;
  }
  locks_ = new (block) Lock{address, end, 0, ours, locks_};
  return cudaSuccess;
}

// Locks those of the pages that no lock holds.
cudaError_t Registry::cover(uint8_t* address, uint8_t* end) noexcept {
  for (uint8_t* at = address; at < end;) {
    const Lock* const lock = find(at);
    uint8_t* const part_end = lock == nullptr   ? gap_end(at, end)
                              : lock->end < end ? lock->end
                                                : end;
    if (lock != nullptr && !is_imported(at, part_end)) {
      return cudaErrorHostMemoryAlreadyRegistered;
    }
    if (lock == nullptr) {
      if (const cudaError_t bad = add_lock(at, part_end)) {
        return bad;
      }
    }
    at = part_end;
  }
  return cudaSuccess;
}

// Ends all locks that help no import.
void Registry::sweep() noexcept {
  for (Lock** link = &locks_; *link != nullptr;) {
    Lock* const lock = *link;
    if (lock->uses != 0) {
      link = &lock->next;
      continue;
    }
    if (lock->ours) {
      cudaHostUnregister(lock->address);
      cudaGetLastError();
    }
    *link = lock->next;
    host_.unmake(lock);
  }
}

cudaError_t Registry::lock(uint8_t* address, uint64_t bytes, LockedPages& locked) noexcept {
  const std::lock_guard guard(mutex_);
  uint8_t* const end = address + bytes;
  void* const block = host_.alloc(sizeof(Import), alignof(Import));
  if (block == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  cudaError_t bad = cover(address, end);
  bad = bad == cudaSuccess ? address_on_device(address, end, locked.on_device) : bad;
  if (bad != cudaSuccess) {
    sweep();
    host_.free(block, sizeof(Import), alignof(Import));
    return bad;
  }
  imports_ = new (block) Import{address, end, imports_};
  uint64_t pieces = 0;
  for (Lock* lock = locks_; lock != nullptr; lock = lock->next) {
    const bool helps = lock->address < end && lock->end > address;
    lock->uses += helps ? 1 : 0;
    pieces += helps ? 1 : 0;
  }
  locked.pieced = pieces > 1;
  return cudaSuccess;
}

void Registry::unlock(uint8_t* address, uint64_t bytes) noexcept {
  const std::lock_guard guard(mutex_);
  uint8_t* const end = address + bytes;
  Import** link = &imports_;
  while (*link != nullptr && ((*link)->address != address || (*link)->end != end)) {
    link = &(*link)->next;
  }
  Import* const import = *link;
  if (import == nullptr) {
    return;
  }
  *link = import->next;
  host_.unmake(import);
  for (Lock* lock = locks_; lock != nullptr; lock = lock->next) {
    lock->uses -= lock->address < end && lock->end > address ? 1 : 0;
  }
  sweep();
}

}  // namespace kvspan::cuda
