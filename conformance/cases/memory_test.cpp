// SPDX-License-Identifier: Apache-2.0
// Memory: kinds, sizes, mappings, imports; what fails fails whole and the next smaller request
// works, for the first to the twentieth allocation; and everything is given back (rig_open.cpp
// checks that after each test of every area). BUSY of pending work: fence_test.cpp.
#include "worker/case.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

class MemoryTest : public PluginTest {
 protected:
  const kvspan_memory_table_t& memory() { return *rig().tables().memory; }
};

KVSPAN_CASE(MemoryTest, HostMemoryMapsAlignedAndInPlace, "KV-MEMORY-2 KV-MEMORY-4") {
  for (const uint64_t bytes : {1u, 4095u, 4096u, 1u << 20}) {
    kvspan_memory_t* made = nullptr;
    ASSERT_EQ(memory().alloc(rig().device(), KVSPAN_MEMORY_HOST, bytes, &made, nullptr), KVSPAN_OK);
    void* first = nullptr;
    void* second = nullptr;
    EXPECT_EQ(memory().map(made, &first, nullptr), KVSPAN_OK);
    std::memset(first, 0x5A, bytes);
    EXPECT_EQ(memory().map(made, &second, nullptr), KVSPAN_OK);
    EXPECT_EQ(first, second);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % rig().info().memory_alignment, 0u);
    EXPECT_EQ(rig().calls().release(made, nullptr), KVSPAN_OK);
  }
}

KVSPAN_CASE(MemoryTest, DeviceMemoryMapsWhereTheDeviceSaysSo, "KV-MEMORY-6") {
  Buffer* buffer = rig().allocate(KVSPAN_MEMORY_DEVICE, 4096);
  void* address = nullptr;
  const kvspan_result_t result = memory().map(buffer->memory, &address, nullptr);
  EXPECT_EQ(result, rig().has(KVSPAN_DEVICE_MAP_LOCAL) ? KVSPAN_OK : KVSPAN_E_UNSUPPORTED);
}

KVSPAN_CASE(MemoryTest, ZeroBytesAreAMemory, "KV-MEMORY-7") {
  for (const uint32_t kind : {KVSPAN_MEMORY_DEVICE, KVSPAN_MEMORY_HOST}) {
    kvspan_memory_t* made = nullptr;
    ASSERT_EQ(memory().alloc(rig().device(), kind, 0, &made, nullptr), KVSPAN_OK);
    ASSERT_NE(made, nullptr);
    const kvspan_segment_t segment = {made, made, 0, 0, 1, 1, 0, 0};
    EXPECT_NE(rig().settle(KVSPAN_ROLE_UPLOAD,
                           [&](auto* queue, const auto* submit, auto* error) {
                             return rig().calls().copy(queue, &segment, 1, submit, error);
                           }),
              KVSPAN_OK)
        << "it has no byte to copy";
    EXPECT_EQ(rig().calls().release(made, nullptr), KVSPAN_OK);
  }
}

KVSPAN_CASE(MemoryTest, OtherKindsAndTooMuchAreRefused, "KV-MEMORY-7 KV-MANNERS-2") {
  kvspan_memory_t* made = nullptr;
  for (const uint32_t kind : {KVSPAN_MEMORY_IMPORTED, 3u, 99u}) {
    EXPECT_EQ(memory().alloc(rig().device(), kind, 64, &made, nullptr), KVSPAN_E_INVALID_ARG);
  }
  for (const uint32_t kind : {KVSPAN_MEMORY_DEVICE, KVSPAN_MEMORY_HOST}) {
    for (const uint64_t bytes : {rig().info().allocation_bytes_max + 1, UINT64_MAX}) {
      if (bytes > rig().info().allocation_bytes_max) {
        EXPECT_EQ(memory().alloc(rig().device(), kind, bytes, &made, nullptr),
                  KVSPAN_E_INVALID_ARG);
      }
    }
  }
  EXPECT_EQ(made, nullptr);
}

KVSPAN_CASE(MemoryTest, ImportsAreRefusedWhereThereAreNone, "KV-MEMORY-8", needs::no_import) {
  void* pages = std::aligned_alloc(4096, 4096);
  kvspan_memory_t* made = nullptr;
  EXPECT_EQ(memory().import_host(rig().device(), pages, 4096, &made, nullptr),
            KVSPAN_E_UNSUPPORTED);
  EXPECT_EQ(made, nullptr);
  std::free(pages);
}

KVSPAN_CASE(MemoryTest, ImportedPagesAreTheCallersOwn, "KV-MEMORY-4 KV-MEMORY-8", needs::import) {
  const uint64_t unit = rig().info().import_alignment;
  void* pages =
      std::aligned_alloc(std::max<uint64_t>(unit, 4096), 4 * std::max<uint64_t>(unit, 4096));
  auto* bytes = static_cast<uint8_t*>(pages);
  const uint64_t size = 4 * std::max<uint64_t>(unit, 4096);
  std::memset(pages, 0x33, size);
  kvspan_memory_t* made = nullptr;
  EXPECT_EQ(memory().import_host(rig().device(), nullptr, size, &made, nullptr),
            KVSPAN_E_INVALID_ARG);
  if (unit > 1) {
    EXPECT_EQ(memory().import_host(rig().device(), bytes + 1, unit, &made, nullptr),
              KVSPAN_E_INVALID_ARG);
    EXPECT_EQ(memory().import_host(rig().device(), bytes, unit + 1, &made, nullptr),
              KVSPAN_E_INVALID_ARG);
  }
  ASSERT_EQ(memory().import_host(rig().device(), pages, size, &made, nullptr), KVSPAN_OK);
  void* address = nullptr;
  EXPECT_EQ(memory().map(made, &address, nullptr), KVSPAN_OK);
  EXPECT_EQ(address, pages);
  Buffer* target = rig().allocate(KVSPAN_MEMORY_HOST, size);
  const kvspan_segment_t segment = {made, target->memory, 0, 0, size, 1, 0, 0};
  EXPECT_EQ(rig().settle(KVSPAN_ROLE_UPLOAD,
                         [&](auto* queue, const auto* submit, auto* error) {
                           return rig().calls().copy(queue, &segment, 1, submit, error);
                         }),
            KVSPAN_OK);
  EXPECT_EQ(std::memcmp(target->mapped, pages, size), 0);
  EXPECT_EQ(rig().calls().release(made, nullptr), KVSPAN_OK);
  EXPECT_EQ(bytes[size - 1], 0x33) << "the pages outlive the import";
  std::free(pages);
}

KVSPAN_CASE(MemoryTest,
            MoreThanThereIsFailsAndLessWorksAfterwards,
            "KV-MEMORY-1 KV-ERROR-3",
            needs::bounded_memory) {
  reopen("device_bytes",
         "4194304");  // backends without a card of their own can be given a small one
  if (!rig().has(KVSPAN_DEVICE_FREE_KNOWN)) {
    return inconclusive("with device_bytes set, the device still does not know how much is free");
  }
  uint64_t free_bytes = 0;
  ASSERT_EQ(rig().tables().device->free_bytes(rig().device(), &free_bytes, nullptr), KVSPAN_OK);
  const uint64_t most = rig().info().allocation_bytes_max;
  if (free_bytes >= most || free_bytes > UINT64_MAX / 2) {
    return inconclusive("one allocation cannot ask for more than is free");
  }
  kvspan_memory_t* made = nullptr;
  kvspan_error_t error = fresh_error();
  const uint64_t wanted = std::min(most, free_bytes + (uint64_t{1} << 40));
  const kvspan_result_t result =
      memory().alloc(rig().device(), KVSPAN_MEMORY_DEVICE, wanted, &made, &error);
  ASSERT_EQ(result, KVSPAN_E_DEVICE_MEMORY) << told(result, error);
  EXPECT_EQ(error.resource, KVSPAN_RESOURCE_DEVICE_MEMORY);
  EXPECT_EQ(error.required, wanted);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(memory().alloc(rig().device(), KVSPAN_MEMORY_DEVICE, 4096, &made, nullptr), KVSPAN_OK);
  EXPECT_EQ(rig().calls().release(made, nullptr), KVSPAN_OK);
}

KVSPAN_CASE(MemoryTest,
            TheNthAllocationFailsAloneAndLessWorksNext,
            "KV-MEMORY-1 KV-DEBUG-1 KV-ERROR-3 KV-MANNERS-2",
            needs::fault_allocation) {
  const kvspan_debug_table_t* debug = rig().tables().debug;
  for (uint64_t n = 1; n <= 20; ++n) {
    SCOPED_TRACE(testing::Message() << "allocation " << n);
    const kvspan_result_t planted =
        debug->fault(rig().device(), KVSPAN_FAULT_ALLOCATION, n, KVSPAN_E_DEVICE_MEMORY, nullptr);
    ASSERT_EQ(planted, KVSPAN_OK);
    std::vector<kvspan_memory_t*> held;
    for (uint64_t i = 1; i <= n; ++i) {
      kvspan_memory_t* made = nullptr;
      kvspan_error_t error = fresh_error();
      const uint32_t kind = i % 2 == 0 ? KVSPAN_MEMORY_HOST : KVSPAN_MEMORY_DEVICE;
      const kvspan_result_t result = memory().alloc(rig().device(), kind, 8192, &made, &error);
      if (i == n) {
        EXPECT_TRUE(result == KVSPAN_E_DEVICE_MEMORY || result == KVSPAN_E_HOST_MEMORY) << result;
        EXPECT_EQ(error.required, 8192u);
        EXPECT_EQ(made, nullptr);
      } else {
        ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
        held.push_back(made);
      }
    }
    kvspan_memory_t* smaller = nullptr;
    ASSERT_EQ(memory().alloc(rig().device(), KVSPAN_MEMORY_DEVICE, 4096, &smaller, nullptr),
              KVSPAN_OK);
    held.push_back(smaller);
    for (kvspan_memory_t* one : held) {
      EXPECT_EQ(rig().calls().release(one, nullptr), KVSPAN_OK);
    }
  }
}

KVSPAN_CASE(MemoryTest, CountersNeverSayLessThanWasHeld, "KV-DEBUG-2", needs::debug) {
  const kvspan_debug_table_t* debug = rig().tables().debug;
  kvspan_debug_counters_t before = {};
  before.struct_size = sizeof before;
  ASSERT_EQ(debug->counters(rig().device(), &before, nullptr), KVSPAN_OK);
  Buffer* buffer = rig().allocate(KVSPAN_MEMORY_DEVICE, uint64_t{1} << 20);
  kvspan_debug_counters_t during = before;
  ASSERT_EQ(debug->counters(rig().device(), &during, nullptr), KVSPAN_OK);
  EXPECT_GE(during.device_bytes, before.device_bytes + buffer->bytes());
  EXPECT_EQ(during.device_allocations, before.device_allocations + 1);
  rig().release(buffer);
  kvspan_debug_counters_t after = before;
  ASSERT_EQ(debug->counters(rig().device(), &after, nullptr), KVSPAN_OK);
  EXPECT_EQ(after.device_bytes, before.device_bytes);
  EXPECT_GE(after.device_bytes_max, during.device_bytes);
}

KVSPAN_CASE(MemoryTest, ADeviceWithMemoryLeftIsBusyAndStaysOpen, "KV-DEVICE-6") {
  kvspan_device_t* other = nullptr;
  const kvspan_device_table_t& device = *rig().tables().device;
  ASSERT_EQ(device.open(rig().plugin_self(), 0, &other, nullptr), KVSPAN_OK);
  kvspan_memory_t* made = nullptr;
  ASSERT_EQ(memory().alloc(other, KVSPAN_MEMORY_HOST, 4096, &made, nullptr), KVSPAN_OK);
  kvspan_error_t error = fresh_error();
  EXPECT_EQ(device.close(other, &error), KVSPAN_E_BUSY);
  EXPECT_EQ(error.provided, 1u) << "objects still alive";
  EXPECT_EQ(memory().release(made, nullptr), KVSPAN_OK);
  EXPECT_EQ(device.close(other, nullptr), KVSPAN_OK);
}

KVSPAN_CASE(MemoryTest, PluginsOpenAgainAsOnTheFirstDay, "KV-CLOSE-2 KV-HOST-2") {
  for (int round = 0; round < 3; ++round) {
    const std::unique_ptr<Rig> second = Rig::open(settings());
    ASSERT_NE(second, nullptr);
    Buffer* buffer = second->allocate(KVSPAN_MEMORY_DEVICE, 4096);
    ASSERT_NE(buffer, nullptr);
    second->upload(*buffer);
    EXPECT_TRUE(second->unchanged(*buffer));
  }
}

}  // namespace
}  // namespace kvspan::conformance
