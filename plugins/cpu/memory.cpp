// SPDX-License-Identifier: Apache-2.0
// The memory table: anonymous mappings for DEVICE and HOST, the caller's own pages for imports.
// DEVICE memory has a budget when the operator set "device_bytes". HOST memory is locked where the
// machine allows it; where it does not, everything works all the same and one log line says so.
#include "memory.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"

#include <cerrno>
#include <sys/mman.h>

namespace kvspan::cpu {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

struct Wanted {
  uint32_t kind;
  uint64_t bytes;
};

kvspan_result_t report_exhausted(Wanted wanted,
                                 sdk::Amount amount,
                                 kvspan_error_t* error,
                                 const char* where) {
  const bool device = wanted.kind == KVSPAN_MEMORY_DEVICE;
  amount.resource = device ? KVSPAN_RESOURCE_DEVICE_MEMORY : KVSPAN_RESOURCE_HOST_MEMORY;
  amount.flags = KVSPAN_ERROR_RETRY_AFTER_FREE;
  return sdk::fail_amount(error,
                          device ? KVSPAN_E_DEVICE_MEMORY : KVSPAN_E_HOST_MEMORY,
                          where,
                          amount,
                          "%llu bytes of %s memory are not to be had: free some or ask for less",
                          sdk::number(wanted.bytes),
                          device ? "device" : "host");
}

// Takes `bytes` from the device's budget. The device's mutex is held.
kvspan_result_t take_budget(Device& device,
                            Wanted wanted,
                            kvspan_error_t* error,
                            const char* where) {
  if (fires(device.faults.allocation_in)) {
    return report_exhausted(wanted, {0, wanted.bytes, KVSPAN_UNKNOWN_AMOUNT}, error, where);
  }
  const uint64_t budget = device.plugin.options.device_bytes;
  if (wanted.kind != KVSPAN_MEMORY_DEVICE) {
    return KVSPAN_OK;
  }
  if (budget != KVSPAN_UNKNOWN_AMOUNT && wanted.bytes > budget - device.device_bytes) {
    const uint64_t left = budget - device.device_bytes;
    return report_exhausted(wanted, {0, wanted.bytes, left}, error, where);
  }
  device.device_bytes += wanted.bytes;
  if (device.device_bytes > device.device_bytes_max) {
    device.device_bytes_max = device.device_bytes;
  }
  return KVSPAN_OK;
}

void return_budget(Device& device, Wanted wanted) {
  if (wanted.kind == KVSPAN_MEMORY_DEVICE) {
    device.device_bytes -= wanted.bytes;
  }
}

// Page-locks HOST memory. A refusal is logged once a device and is no failure.
void lock_pages(Device& device, void* address, uint64_t bytes) {
  if (mlock(address, bytes) == 0) {
    return;
  }
  const std::lock_guard lock(device.mutex);
  if (device.locked_bytes_refused == 0) {
    device.host.log(KVSPAN_LOG_INFO,
                    "cpu: %llu bytes of host memory stay unlocked (limit on locked memory): "
                    "everything works, pages may be swapped",
                    sdk::number(bytes));
  }
  device.locked_bytes_refused += bytes;
}

// nullptr when the system has none.
uint8_t* map_pages(Device& device, uint32_t kind, uint64_t bytes) {
  void* const address =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return nullptr;
  }
  if (bytes >= kHugePageBytes) {
    madvise(address, bytes, MADV_HUGEPAGE);  // advice: fewer TLB misses where the system follows it
  }
  if (kind == KVSPAN_MEMORY_HOST) {
    lock_pages(device, address, bytes);
  }
  return static_cast<uint8_t*>(address);
}

// The object for mapped or imported bytes. nullptr: no host memory for it.
// NOLINTNEXTLINE(readability-non-const-parameter): the object keeps it to write through
Memory* make_memory(Device& device, Wanted wanted, uint8_t* address, uint64_t mapped_bytes) {
  void* const block = device.host.alloc(sizeof(Memory), alignof(Memory));
  if (block == nullptr) {
    return nullptr;
  }
  const std::lock_guard lock(device.mutex);
  ++device.object_count;
  return new (block) Memory{device, wanted.kind, address, wanted.bytes, mapped_bytes};
}

kvspan_result_t alloc_checked(Device& device,
                              Wanted wanted,
                              kvspan_memory_t** out_memory,
                              kvspan_error_t* error,
                              const char* where) {
  {
    const std::lock_guard lock(device.mutex);
    if (const kvspan_result_t bad = take_budget(device, wanted, error, where)) {
      return bad;
    }
  }
  const uint64_t mapped = (wanted.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uint64_t mapped_bytes = mapped == 0 ? kPageBytes : mapped;
  uint8_t* const address = map_pages(device, wanted.kind, mapped_bytes);
  Memory* const memory =
      address == nullptr ? nullptr : make_memory(device, wanted, address, mapped_bytes);
  if (memory == nullptr) {
    if (address != nullptr) {
      munmap(address, mapped_bytes);
    }
    {
      const std::lock_guard lock(device.mutex);
      return_budget(device, wanted);
    }
    return address == nullptr
               ? report_exhausted(wanted, {0, wanted.bytes, KVSPAN_UNKNOWN_AMOUNT}, error, where)
               : report_no_host_memory(sizeof(Memory), error, where);
  }
  if (wanted.kind == KVSPAN_MEMORY_DEVICE) {
    device.counters.device_allocations.fetch_add(1, std::memory_order_relaxed);
  }
  *out_memory = handle_of(memory);
  return KVSPAN_OK;
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
                                sdk::number(bytes),
                                sdk::number(kAllocationBytesMax));
    }
    Device& device = *device_of(handle);
    if (device.lost) {
      return report_lost(error, kWhere);
    }
    return alloc_checked(device, {kind, bytes}, out_memory, error, kWhere);
  });
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
    if (reinterpret_cast<uintptr_t>(address) % kMemoryAlignment != 0 ||
        bytes % kMemoryAlignment != 0 || bytes > kAllocationBytesMax) {
      return sdk::fail_argument(error,
                                {bytes % kMemoryAlignment != 0 ? 3u : 2u},
                                kWhere,
                                "address and bytes must be multiples of %llu",
                                sdk::number(kMemoryAlignment));
    }
    Device& device = *device_of(handle);
    if (device.lost) {
      return report_lost(error, kWhere);
    }
    Memory* const memory =
        make_memory(device, {KVSPAN_MEMORY_IMPORTED, bytes}, static_cast<uint8_t*>(address), 0);
    if (memory == nullptr) {
      return report_no_host_memory(sizeof(Memory), error, kWhere);
    }
    *out_memory = handle_of(memory);
    return KVSPAN_OK;
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
  *out_address = memory.address;
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
    return_budget(device, {memory->kind, memory->bytes});
    --device.object_count;
  }
  if (memory->mapped_bytes != 0) {
    munmap(memory->address, memory->mapped_bytes);
  }
  device.host.unmake(memory);
  return KVSPAN_OK;
}

}  // namespace

const kvspan_memory_table_t kMemoryTable = {
    sizeof(kvspan_memory_table_t), 0, memory_alloc, memory_import, memory_map, memory_release};

}  // namespace kvspan::cpu
