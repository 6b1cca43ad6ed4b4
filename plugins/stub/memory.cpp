// SPDX-License-Identifier: Apache-2.0
// The memory table. Every memory is an anonymous mapping that costs nothing until it is touched.
// Fresh memory holds 0xFF bytes (NaN in every float type) at both ends, since contents are
// undefined and zeros would be too kind. Read next: memory.hpp, kvspan/memory.h.
#include "memory.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <sys/mman.h>

namespace kvspan::stub {
namespace {

/// How much of each end of a fresh memory is filled: enough to catch, cheap for 100 GiB.
constexpr std::uint64_t kPoisonBytes = 1ull << 20;

constexpr sdk::Place kDevicePlace{1};

struct Unmapper {
  std::uint64_t bytes;

  void operator()(std::byte* address) const {
    if (address != nullptr) {
      munmap(address, bytes);
    }
  }
};

using Mapping = std::unique_ptr<std::byte, Unmapper>;

Mapping map_fresh(std::uint64_t bytes) {
  // A memory of zero bytes has an address too.
  const std::uint64_t mapped = std::max<std::uint64_t>(bytes, 1);
  void* const address = mmap(
      nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return {address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address), Unmapper{mapped}};
}

void poison(std::byte* address, std::uint64_t bytes) {
  const std::uint64_t end = std::min(bytes, kPoisonBytes);
  std::memset(address, 0xFF, end);
  if (bytes > end) {
    std::memset(address + (bytes - end), 0xFF, end);
  }
}

/// Refuses an allocation as a real shortage would be: half of it was there.
kvspan_result_t fail_planted(std::uint32_t kind,
                             std::uint64_t bytes,
                             kvspan_error_t* error,
                             const char* where) {
  const bool device = kind == KVSPAN_MEMORY_DEVICE;
  const sdk::Amount amount{device ? KVSPAN_RESOURCE_DEVICE_MEMORY : KVSPAN_RESOURCE_HOST_MEMORY,
                           bytes,
                           bytes / 2,
                           KVSPAN_ERROR_RETRY_AFTER_FREE};
  return sdk::fail_amount(error,
                          device ? KVSPAN_E_DEVICE_MEMORY : KVSPAN_E_HOST_MEMORY,
                          where,
                          amount,
                          "%llu bytes of %s memory are not free: free some or ask for less",
                          static_cast<unsigned long long>(bytes),
                          device ? "device" : "host");
}

/// What alloc and import_host refuse before they look at anything else.
kvspan_result_t check_room(Device& device,
                           std::uint32_t kind,
                           std::uint64_t bytes,
                           kvspan_error_t* error,
                           const char* where) {
  if (device.scheduler.lost().has_value()) {
    return report(*device.scheduler.lost(), error, where);
  }
  if (device.fail_allocation_in != 0 && --device.fail_allocation_in == 0) {
    return fail_planted(kind, bytes, error, where);
  }
  const std::uint64_t budget = device.plugin.options.device_bytes;
  const std::uint64_t room = budget - device.device_bytes;
  if (kind == KVSPAN_MEMORY_DEVICE && bytes > room) {
    const sdk::Amount amount{
        KVSPAN_RESOURCE_DEVICE_MEMORY, bytes, room, KVSPAN_ERROR_RETRY_AFTER_FREE};
    return sdk::fail_amount(error,
                            KVSPAN_E_DEVICE_MEMORY,
                            where,
                            amount,
                            "%llu bytes of device memory, %llu are free: free some, ask for less, "
                            "or raise the option device_bytes",
                            static_cast<unsigned long long>(bytes),
                            static_cast<unsigned long long>(room));
  }
  return KVSPAN_OK;
}

void count_allocation(Device& device, std::uint32_t kind, std::uint64_t bytes) {
  ++device.memory_count;
  ++device.allocations;
  if (kind == KVSPAN_MEMORY_DEVICE) {
    device.device_bytes += bytes;
    device.device_bytes_max = std::max(device.device_bytes_max, device.device_bytes);
  }
}

kvspan_result_t KVSPAN_CALL memory_alloc(kvspan_device_t* handle,
                                         std::uint32_t kind,
                                         std::uint64_t bytes,
                                         kvspan_memory_t** out_memory,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "memory.alloc";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_memory == nullptr) {
      const sdk::Place place = handle == nullptr ? kDevicePlace : sdk::Place{4};
      return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
    }
    if (kind != KVSPAN_MEMORY_DEVICE && kind != KVSPAN_MEMORY_HOST) {
      return sdk::fail_argument(
          error, sdk::Place{2}, kWhere, "kind %u: allocate DEVICE or HOST memory", kind);
    }
    if (bytes > kAllocationBytesMax) {
      return sdk::fail_argument(error,
                                sdk::Place{3},
                                kWhere,
                                "%llu bytes in one allocation, %llu allowed: use several",
                                static_cast<unsigned long long>(bytes),
                                static_cast<unsigned long long>(kAllocationBytesMax));
    }
    Device& device = *device_of(handle);
    const std::lock_guard lock(device.plugin.mutex);
    if (const kvspan_result_t bad = check_room(device, kind, bytes, error, kWhere)) {
      return bad;
    }
    Mapping mapping = map_fresh(bytes);
    if (mapping == nullptr) {
      const kvspan_result_t result = fail_planted(kind, bytes, error, kWhere);
      if (error != nullptr) {
        error->native_code = errno;
        error->missing = error->provided = KVSPAN_UNKNOWN_AMOUNT;
      }
      return result;
    }
    poison(mapping.get(), bytes);
    auto memory = std::make_unique<Memory>(
        Memory{device, kind, mapping.get(), bytes, mapping.get_deleter().bytes});
    static_cast<void>(mapping.release());
    count_allocation(device, kind, bytes);
    *out_memory = handle_of(memory.release());
    return KVSPAN_OK;
  });
}

kvspan_result_t check_import(void* address,
                             std::uint64_t bytes,
                             kvspan_error_t* error,
                             const char* where) {
  if (address == nullptr && bytes != 0) {
    return sdk::fail_argument(error, sdk::Place{2}, where, "the address is NULL: pass one");
  }
  if (reinterpret_cast<std::uintptr_t>(address) % kImportAlignment != 0) {
    return sdk::fail_argument(error,
                              sdk::Place{2},
                              where,
                              "the address is not a multiple of %llu: align it",
                              static_cast<unsigned long long>(kImportAlignment));
  }
  if (bytes % kImportAlignment != 0 || bytes > kImportBytesMax) {
    return sdk::fail_argument(error,
                              sdk::Place{3},
                              where,
                              "%llu bytes: import multiples of %llu, at most %llu at once",
                              static_cast<unsigned long long>(bytes),
                              static_cast<unsigned long long>(kImportAlignment),
                              static_cast<unsigned long long>(kImportBytesMax));
  }
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL memory_import_host(kvspan_device_t* handle,
                                               void* address,
                                               std::uint64_t bytes,
                                               kvspan_memory_t** out_memory,
                                               kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "memory.import_host";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_memory == nullptr) {
      const sdk::Place place = handle == nullptr ? kDevicePlace : sdk::Place{4};
      return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
    }
    if (const kvspan_result_t bad = check_import(address, bytes, error, kWhere)) {
      return bad;
    }
    Device& device = *device_of(handle);
    const std::lock_guard lock(device.plugin.mutex);
    if (const kvspan_result_t bad =
            check_room(device, KVSPAN_MEMORY_IMPORTED, bytes, error, kWhere)) {
      return bad;
    }
    auto memory = std::make_unique<Memory>(
        Memory{device, KVSPAN_MEMORY_IMPORTED, static_cast<std::byte*>(address), bytes, 0});
    count_allocation(device, KVSPAN_MEMORY_IMPORTED, bytes);
    *out_memory = handle_of(memory.release());
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL memory_map(kvspan_memory_t* handle,
                                       void** out_address,
                                       kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "memory.map";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_address == nullptr) {
      const sdk::Place place{handle == nullptr ? 1u : 2u};
      return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
    }
    const Memory& memory = *memory_of(handle);
    if (memory.kind == KVSPAN_MEMORY_DEVICE) {
      return sdk::fail_reasons(error,
                               kWhere,
                               KVSPAN_WHY_MEMORY_KIND,
                               "device memory cannot be mapped: copy through HOST memory");
    }
    *out_address = memory.address;
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL memory_release(kvspan_memory_t* handle,
                                           kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "memory.release";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the memory is NULL: pass one");
    }
    Memory* const memory = memory_of(handle);
    Device& device = memory->device;
    const std::lock_guard lock(device.plugin.mutex);
    if (memory->uses != 0) {
      return sdk::fail_amount(error,
                              KVSPAN_E_BUSY,
                              kWhere,
                              sdk::Amount{KVSPAN_RESOURCE_NONE, 0, memory->uses},
                              "pending work names this memory %llu times: wait for its points",
                              static_cast<unsigned long long>(memory->uses));
    }
    if (memory->kind == KVSPAN_MEMORY_DEVICE) {
      device.device_bytes -= memory->bytes;
    }
    --device.memory_count;
    const Mapping mapping(memory->mapped_bytes != 0 ? memory->address : nullptr,
                          Unmapper{memory->mapped_bytes});
    delete memory;
    return KVSPAN_OK;
  });
}

}  // namespace

const kvspan_memory_table_t kMemoryTable = {
    sizeof(kvspan_memory_table_t), 0, memory_alloc, memory_import_host, memory_map, memory_release};

}  // namespace kvspan::stub
