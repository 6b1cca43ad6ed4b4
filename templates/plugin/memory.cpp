// SPDX-License-Identifier: Apache-2.0
// The memory table. DEVICE memory is host memory with a budget, and cannot be mapped, so that no
// host gets away with touching it. Replace: alloc by your allocator, HOST memory by page-locked
// memory. To offer import, give device info an import_alignment and register the caller's pages.
#include "memory.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"

#include <memory>
#include <new>

namespace mine {
namespace {

namespace sdk = kvspan::sdk;

constexpr std::align_val_t kAlignment{kMemoryAlignment};

kvspan_result_t check_alloc(uint32_t kind,
                            uint64_t bytes,
                            kvspan_error_t* error,
                            const char* where) {
  if (kind != KVSPAN_MEMORY_DEVICE && kind != KVSPAN_MEMORY_HOST) {
    return sdk::fail_argument(error, {2}, where, "kind %u: use DEVICE or HOST", kind);
  }
  if (bytes > kAllocationBytesMax) {
    return sdk::fail_argument(error,
                              {3},
                              where,
                              "%llu bytes in one allocation, %llu allowed: use several",
                              number(bytes),
                              number(kAllocationBytesMax));
  }
  return KVSPAN_OK;
}

// The budget of the made-up device. The device's mutex is held.
kvspan_result_t check_room(const Device& device,
                           uint64_t bytes,
                           kvspan_error_t* error,
                           const char* where) {
  const uint64_t room = kDeviceBytes - device.device_bytes;
  if (bytes <= room) {
    return KVSPAN_OK;
  }
  return sdk::fail_amount(
      error,
      KVSPAN_E_DEVICE_MEMORY,
      where,
      {KVSPAN_RESOURCE_DEVICE_MEMORY, bytes, room, KVSPAN_ERROR_RETRY_AFTER_FREE},
      "%llu bytes of device memory, %llu are free: free some or ask for less",
      number(bytes),
      number(room));
}

kvspan_result_t KVSPAN_CALL memory_alloc(kvspan_device_t* handle,
                                         uint32_t kind,
                                         uint64_t bytes,
                                         kvspan_memory_t** out_memory,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "memory.alloc";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_memory == nullptr) {
      const sdk::Place place{handle == nullptr ? 1u : 4u};
      return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
    }
    if (const kvspan_result_t bad = check_alloc(kind, bytes, error, kWhere)) {
      return bad;
    }
    Device& device = *device_of(handle);
    const std::lock_guard lock(device.mutex);
    if (kind == KVSPAN_MEMORY_DEVICE) {
      if (const kvspan_result_t bad = check_room(device, bytes, error, kWhere)) {
        return bad;
      }
    }
    void* const address = ::operator new(bytes, kAlignment, std::nothrow);
    Memory* const memory = address == nullptr
                               ? nullptr
                               : new (std::nothrow)
                                     Memory{device, kind, bytes, static_cast<std::byte*>(address)};
    if (memory == nullptr) {
      ::operator delete(address, kAlignment);
      return sdk::fail_amount(error,
                              KVSPAN_E_HOST_MEMORY,
                              kWhere,
                              {KVSPAN_RESOURCE_HOST_MEMORY, bytes, KVSPAN_UNKNOWN_AMOUNT},
                              "the machine has no %llu bytes: free some or ask for less",
                              number(bytes));
    }
    ++device.memory_count;
    device.device_bytes += kind == KVSPAN_MEMORY_DEVICE ? bytes : 0;
    *out_memory = reinterpret_cast<kvspan_memory_t*>(memory);
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL memory_import_host(kvspan_device_t* handle,
                                               void*,
                                               uint64_t,
                                               kvspan_memory_t** out_memory,
                                               kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "memory.import_host";
  if (handle == nullptr || out_memory == nullptr) {
    const sdk::Place place{handle == nullptr ? 1u : 4u};
    return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
  }
  return sdk::fail_reasons(
      error, kWhere, KVSPAN_WHY_MEMORY_KIND, "pages cannot be imported here: use HOST memory");
}

kvspan_result_t KVSPAN_CALL memory_map(kvspan_memory_t* handle,
                                       void** out_address,
                                       kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "memory.map";
  if (handle == nullptr || out_address == nullptr) {
    const sdk::Place place{handle == nullptr ? 1u : 2u};
    return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
  }
  if (memory_of(handle)->kind == KVSPAN_MEMORY_DEVICE) {
    return sdk::fail_reasons(error,
                             kWhere,
                             KVSPAN_WHY_MEMORY_KIND,
                             "device memory cannot be mapped: copy through HOST memory");
  }
  *out_address = memory_of(handle)->address;
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
  const std::lock_guard lock(device.mutex);
  if (memory->uses != 0) {
    return sdk::fail_amount(error,
                            KVSPAN_E_BUSY,
                            kWhere,
                            {KVSPAN_RESOURCE_NONE, 0, memory->uses},
                            "pending work names this memory %llu times: wait for its points",
                            number(memory->uses));
  }
  --device.memory_count;
  device.device_bytes -= memory->kind == KVSPAN_MEMORY_DEVICE ? memory->bytes : 0;
  ::operator delete(memory->address, kAlignment);
  delete memory;
  return KVSPAN_OK;
}

}  // namespace

const kvspan_memory_table_t kMemoryTable = {
    sizeof(kvspan_memory_table_t), 0, memory_alloc, memory_import_host, memory_map, memory_release};

}  // namespace mine
