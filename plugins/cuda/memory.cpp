// SPDX-License-Identifier: Apache-2.0
// The memory table. DEVICE comes from the device's pool, or is an engine's. HOST is an anonymous
// mapping, on huge pages where it is large enough, page-locked in place: that sets up several times
// faster than the driver's own host allocation and copies as fast. IMPORTED are the caller's pages,
// page-locked.
#include "memory.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"

#include <sys/mman.h>

namespace kvspan::cuda {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
constexpr uint64_t kDeviceBytesMin = 256;  // what a memory of no bytes takes

unsigned long long number(uint64_t value) {
  return value;
}

uint64_t rounded(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

struct Wanted {
  uint32_t kind;
  uint64_t bytes;
};

// The bytes of one memory, before it has an object. Undone by free_bytes_of().
struct Bytes {
  uint8_t* address = nullptr;
  uint8_t* host_address = nullptr;
  uint64_t held = 0;
  bool pieced = false;
};

kvspan_result_t report_exhausted(Wanted wanted,
                                 uint64_t provided,
                                 cudaError_t native,
                                 kvspan_error_t* error,
                                 const char* where) {
  const bool device = wanted.kind == KVSPAN_MEMORY_DEVICE;
  const bool imported = wanted.kind == KVSPAN_MEMORY_IMPORTED;
  const uint32_t resource = device     ? KVSPAN_RESOURCE_DEVICE_MEMORY
                            : imported ? KVSPAN_RESOURCE_LOCKED_MEMORY
                                       : KVSPAN_RESOURCE_HOST_MEMORY;
  const kvspan_result_t code = device ? KVSPAN_E_DEVICE_MEMORY : KVSPAN_E_HOST_MEMORY;
  sdk::fail_amount(error,
                   code,
                   where,
                   {resource, wanted.bytes, provided, KVSPAN_ERROR_RETRY_AFTER_FREE},
                   "%llu bytes of %s memory are not to be had: free some or ask for less%s",
                   number(wanted.bytes),
                   device ? "device" : "page-locked host",
                   device ? "" : ", or raise the limit on locked memory");
  if (error != nullptr) {
    error->native_code = static_cast<int32_t>(native);
  }
  return code;
}

bool is_exhausted(cudaError_t native) {
  return native == cudaErrorMemoryAllocation;
}

// Maps and locks host memory; nothing is left of a failure.
cudaError_t take_host(Device& device, uint64_t bytes, Bytes& taken) {
  const bool huge = bytes >= kHugePageBytes;
  const uint64_t held = rounded(bytes == 0 ? 1 : bytes, huge ? kHugePageBytes : kPageBytes);
  // Room to begin on a huge page: the mapping itself may begin anywhere.
  const uint64_t mapped = huge ? held + kHugePageBytes : held;
  void* const found =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) {
    return cudaErrorMemoryAllocation;
  }
  auto* start = static_cast<uint8_t*>(found);
  if (huge) {
    const uint64_t before =
        (kHugePageBytes - reinterpret_cast<uintptr_t>(start) % kHugePageBytes) % kHugePageBytes;
    const uint64_t behind = kHugePageBytes - before;
    if (before != 0) {
      munmap(start, before);
    }
    start += before;
    if (behind != 0) {
      munmap(start + held, behind);
    }
    madvise(start, held, MADV_HUGEPAGE);  // advice: locking and copying then touch fewer pages
  }
  LockedPages locked;
  const cudaError_t bad = device.plugin.registry.lock(start, held, locked);
  if (bad != cudaSuccess) {
    munmap(start, held);
    return bad;
  }
  taken.address = locked.on_device;
  taken.host_address = start;
  taken.held = held;
  return cudaSuccess;
}

cudaError_t take_device(Device& device, uint64_t bytes, Bytes& taken) {
  taken.held = bytes < kDeviceBytesMin ? kDeviceBytesMin : bytes;
  return device.pool.take(taken.held, taken.address);
}

// On a lost device CUDA refuses; the bytes then go with the context.
void free_bytes_of(Device& device, uint32_t kind, const Bytes& bytes) {
  const Current current(device.driver, device.context);
  if (kind == KVSPAN_MEMORY_DEVICE) {
    if (bytes.held != 0) {
      device.pool.give_back(bytes.address);
    }
    return;
  }
  if (bytes.held != 0) {
    device.plugin.registry.unlock(bytes.host_address, bytes.held);
  }
  if (kind == KVSPAN_MEMORY_HOST) {
    munmap(bytes.host_address, bytes.held);
  }
}

void count_bytes(Device& device, Wanted wanted, const Bytes& bytes) {
  if (wanted.kind != KVSPAN_MEMORY_DEVICE || bytes.held == 0) {
    return;
  }
  device.counters.device_allocations.fetch_add(1, std::memory_order_relaxed);
  device.device_bytes += bytes.held;
  if (device.device_bytes > device.device_bytes_max) {
    device.device_bytes_max = device.device_bytes;
  }
}

// The object for taken bytes, which it owns then; on failure they are freed.
kvspan_result_t make_memory(Device& device,
                            Wanted wanted,
                            const Bytes& bytes,
                            kvspan_memory_t** out_memory,
                            kvspan_error_t* error,
                            const char* where) {
  void* const block = device.host.alloc(sizeof(Memory), alignof(Memory));
  if (block == nullptr) {
    free_bytes_of(device, wanted.kind, bytes);
    return report_no_host_memory(sizeof(Memory), error, where);
  }
  const std::lock_guard lock(device.mutex);
  ++device.object_count;
  count_bytes(device, wanted, bytes);
  *out_memory = handle_of(new (block) Memory{device,
                                             wanted.kind,
                                             bytes.address,
                                             bytes.host_address,
                                             wanted.bytes,
                                             bytes.held,
                                             bytes.pieced});
  return KVSPAN_OK;
}

bool fault_fires(Device& device) {
  const std::lock_guard lock(device.mutex);
  return fires(device.faults.allocation_in);
}

kvspan_result_t alloc_checked(Device& device,
                              Wanted wanted,
                              kvspan_memory_t** out_memory,
                              kvspan_error_t* error,
                              const char* where) {
  Bytes bytes;
  cudaError_t bad = cudaSuccess;
  std::size_t free_now = 0;
  std::size_t total = 0;
  if (fault_fires(device)) {
    bad = cudaErrorMemoryAllocation;
  } else {
    const Current current(device.driver, device.context);
    bad = wanted.kind == KVSPAN_MEMORY_DEVICE ? take_device(device, wanted.bytes, bytes)
                                              : take_host(device, wanted.bytes, bytes);
    if (is_exhausted(bad) && wanted.kind == KVSPAN_MEMORY_DEVICE) {
      cudaMemGetInfo(&free_now, &total);
    }
  }
  if (is_exhausted(bad)) {
    // What is free may be enough in sum and yet not in one piece: then nothing exact is known.
    const bool known = free_now != 0 && free_now < wanted.bytes;
    return report_exhausted(wanted, known ? free_now : KVSPAN_UNKNOWN_AMOUNT, bad, error, where);
  }
  if (bad != cudaSuccess) {
    return report_call(device, bad, "allocating memory", error, where);
  }
  return make_memory(device, wanted, bytes, out_memory, error, where);
}

kvspan_result_t KVSPAN_CALL memory_alloc(kvspan_device_t* handle,
                                         uint32_t kind,
                                         uint64_t bytes,
                                         kvspan_memory_t** out_memory,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "memory.alloc";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_memory == nullptr) {
      return sdk::fail_argument(
          error, {handle == nullptr ? 1u : 4u}, kWhere, "an argument is NULL: pass one");
    }
    if (kind != KVSPAN_MEMORY_DEVICE && kind != KVSPAN_MEMORY_HOST) {
      return sdk::fail_argument(error,
                                {2},
                                kWhere,
                                "memory kind %u cannot be allocated: use DEVICE or HOST, or import",
                                kind);
    }
    if (bytes > kAllocationBytesMax) {
      return sdk::fail_argument(error,
                                {3},
                                kWhere,
                                "%llu bytes, %llu at most: split the allocation",
                                number(bytes),
                                number(kAllocationBytesMax));
    }
    Device& device = *device_of(handle);
    if (device.lost) {
      return report_lost(device, error, kWhere);
    }
    return alloc_checked(device, {kind, bytes}, out_memory, error, kWhere);
  });
}

kvspan_result_t check_import(const void* address, uint64_t bytes, kvspan_error_t* error) {
  constexpr const char* kWhere = "memory.import_host";
  if (reinterpret_cast<uintptr_t>(address) % kImportAlignment != 0 ||
      bytes % kImportAlignment != 0) {
    return sdk::fail_argument(error,
                              {bytes % kImportAlignment != 0 ? 3u : 2u},
                              kWhere,
                              "address and bytes must be multiples of %llu",
                              number(kImportAlignment));
  }
  if (bytes > kAllocationBytesMax) {
    return sdk::fail_argument(error,
                              {3},
                              kWhere,
                              "%llu bytes, %llu at most: import in chunks",
                              number(bytes),
                              number(kAllocationBytesMax));
  }
  return KVSPAN_OK;
}

kvspan_result_t lock_import(
    Device& device, Wanted wanted, Bytes& bytes, kvspan_error_t* error, const char* where) {
  if (wanted.bytes == 0) {
    return KVSPAN_OK;
  }
  cudaError_t bad = cudaSuccess;
  LockedPages locked;
  {
    const Current current(device.driver, device.context);
    bad = device.plugin.registry.lock(bytes.host_address, wanted.bytes, locked);
  }
  bytes.address = locked.on_device;
  bytes.pieced = locked.pieced;
  bytes.held = wanted.bytes;
  if (bad == cudaSuccess) {
    return KVSPAN_OK;
  }
  if (is_exhausted(bad)) {
    return report_exhausted(wanted, KVSPAN_UNKNOWN_AMOUNT, bad, error, where);
  }
  if (is_sticky(bad)) {
    return report_call(device, bad, "locking pages", error, where);
  }
  sdk::fail_argument(error,
                     {2},
                     where,
                     "these pages cannot be locked (%s): import mapped, writable pages, none "
                     "locked by others or released while an import beside them lives",
                     cudaGetErrorName(bad));
  if (error != nullptr) {
    error->native_code = static_cast<int32_t>(bad);
  }
  return KVSPAN_E_INVALID_ARG;
}

kvspan_result_t KVSPAN_CALL memory_import(kvspan_device_t* handle,
                                          void* address,
                                          uint64_t bytes,
                                          kvspan_memory_t** out_memory,
                                          kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "memory.import_host";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_memory == nullptr || (address == nullptr && bytes != 0)) {
      const uint32_t argument = handle == nullptr ? 1u : out_memory == nullptr ? 4u : 2u;
      return sdk::fail_argument(error, {argument}, kWhere, "an argument is NULL: pass one");
    }
    if (const kvspan_result_t bad = check_import(address, bytes, error)) {
      return bad;
    }
    Device& device = *device_of(handle);
    if (device.lost) {
      return report_lost(device, error, kWhere);
    }
    const Wanted wanted{KVSPAN_MEMORY_IMPORTED, bytes};
    Bytes taken;
    taken.host_address = static_cast<uint8_t*>(address);
    if (const kvspan_result_t bad = lock_import(device, wanted, taken, error, kWhere)) {
      return bad;
    }
    return make_memory(device, wanted, taken, out_memory, error, kWhere);
  });
}

kvspan_result_t KVSPAN_CALL memory_map(kvspan_memory_t* handle,
                                       void** out_address,
                                       kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "memory.map";
  if (handle == nullptr || out_address == nullptr) {
    return sdk::fail_argument(
        error, {handle == nullptr ? 1u : 2u}, kWhere, "an argument is NULL: pass one");
  }
  const Memory& memory = *memory_of(handle);
  if (memory.kind == KVSPAN_MEMORY_DEVICE) {
    return sdk::fail_reasons(error,
                             kWhere,
                             KVSPAN_WHY_MEMORY_KIND,
                             "DEVICE memory cannot be mapped: copy through HOST memory");
  }
  *out_address = memory.host_address;
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL memory_release(kvspan_memory_t* handle,
                                           kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "memory.release";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the memory is NULL: pass one");
  }
  Memory* const memory = memory_of(handle);
  Device& device = memory->device;
  {
    std::unique_lock lock(device.mutex);
    if (device.lost) {  // what is pending settles by itself and soon
      device.settled.wait(lock, [&] { return memory->uses == 0; });
    }
    if (memory->uses != 0) {
      return sdk::fail(error,
                       KVSPAN_E_BUSY,
                       kWhere,
                       "pending work names this memory: wait for that work, then release");
    }
    if (memory->pins != 0 && !device.lost) {
      return sdk::fail(error,
                       KVSPAN_E_BUSY,
                       kWhere,
                       "a graph names this memory: destroy the graph, then release");
    }
    device.device_bytes -= memory->kind == KVSPAN_MEMORY_DEVICE ? memory->held_bytes : 0;
    --device.object_count;
  }
  const Host& host = device.host;
  free_bytes_of(device, memory->kind, {memory->address, memory->host_address, memory->held_bytes});
  host.unmake(memory);
  return KVSPAN_OK;
}

}  // namespace

kvspan_result_t borrow_memory(Device& device,
                              uint8_t* address,
                              uint64_t bytes,
                              kvspan_memory_t** out_memory,
                              kvspan_error_t* error,
                              const char* where) {
  Bytes borrowed;
  borrowed.address = address;
  return make_memory(device, {KVSPAN_MEMORY_DEVICE, bytes}, borrowed, out_memory, error, where);
}

const kvspan_memory_table_t kMemoryTable = {
    sizeof(kvspan_memory_table_t), 0, memory_alloc, memory_import, memory_map, memory_release};

}  // namespace kvspan::cuda
