// SPDX-License-Identifier: Apache-2.0
// Memory of the stub: virtual offsets beyond 2^31 and 2^32, the budget, planted shortages, poison.
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace kvspan::stub_test {
namespace {

TEST(Memory, OffsetsBeyondTwoGigabytesAndFourAreRealPlaces) {
  Rig rig({});
  constexpr std::uint64_t kBytes = (1ull << 33) + 4096;
  const sdk::Memory device = rig.memory(KVSPAN_MEMORY_DEVICE, kBytes);
  const sdk::Memory host = rig.memory(KVSPAN_MEMORY_HOST, 4096);
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_UPLOAD);
  const sdk::Fence fence = rig.fence();
  const std::array<std::uint64_t, 6> places = {
      0, (1ull << 31) - 8, 1ull << 31, (1ull << 32) - 8, 1ull << 32, 1ull << 33};
  std::uint64_t value = 0;
  std::vector<kvspan_segment_t> up;
  std::vector<kvspan_segment_t> down;
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::memset(rig.bytes(host) + 16 * i, static_cast<int>(i + 1), 16);
    up.push_back(segment(host, 16 * i, device, places[i], 16));
    down.push_back(segment(device, places[i], host, 1024 + 16 * i, 16));
  }
  // Neighbours that overlap would show: -8 and +0 share 8 bytes, so write in two submits.
  const std::vector<kvspan_segment_t> first = {up[0], up[1], up[3], up[5]};
  const std::vector<kvspan_segment_t> second = {up[2], up[4]};
  ASSERT_EQ(rig.copy(queue, first, {{}, {{fence.get(), ++value}}}), KVSPAN_OK);
  ASSERT_EQ(rig.copy(queue, second, {{}, {{fence.get(), ++value}}}), KVSPAN_OK);
  ASSERT_EQ(rig.copy(queue, down, {{}, {{fence.get(), ++value}}}), KVSPAN_OK);
  ASSERT_EQ(rig.wait({{fence.get(), value}}), KVSPAN_OK) << rig.error.message;
  const std::uint8_t* const got = rig.bytes(host) + 1024;
  for (const std::size_t whole : {0u, 2u, 4u, 5u}) {
    for (std::size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(got[16 * whole + i], whole + 1) << "place " << places[whole];
    }
  }
  for (const std::size_t cut : {1u, 3u}) {
    EXPECT_EQ(got[16 * cut + 7], cut + 1);
    EXPECT_EQ(got[16 * cut + 8], cut + 2);
  }
}

TEST(Memory, AnEightGigabytePitchReachesItsRow) {
  Rig rig({});
  constexpr std::uint64_t kPitch = 1ull << 33;
  const sdk::Memory device = rig.memory(KVSPAN_MEMORY_DEVICE, 2 * kPitch + 64);
  const sdk::Memory host = rig.memory(KVSPAN_MEMORY_HOST, 128);
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_UPLOAD);
  const sdk::Fence fence = rig.fence();
  std::memcpy(rig.bytes(host), "abc", 3);
  kvspan_segment_t up = segment(host, 0, device, 0, 1);
  up.rows = 3;
  up.source_pitch = 1;
  up.target_pitch = kPitch;
  kvspan_segment_t down = segment(device, 0, host, 64, 1);
  down.rows = 3;
  down.source_pitch = kPitch;
  down.target_pitch = 1;
  ASSERT_EQ(rig.copy(queue, {up}, {{}, {{fence.get(), 1}}}), KVSPAN_OK) << rig.error.message;
  ASSERT_EQ(rig.copy(queue, {down}, {{}, {{fence.get(), 2}}}), KVSPAN_OK) << rig.error.message;
  ASSERT_EQ(rig.wait({{fence.get(), 2}}), KVSPAN_OK);
  EXPECT_EQ(std::memcmp(rig.bytes(host) + 64, "abc", 3), 0);
}

TEST(Memory, TheBudgetIsExactAndItsShortfallToo) {
  Rig rig(Options{{"device_bytes", "1000"}});
  const sdk::Memory first = rig.memory(KVSPAN_MEMORY_DEVICE, 600);
  sdk::Memory second;
  EXPECT_EQ(rig.try_memory(KVSPAN_MEMORY_DEVICE, 401, second), KVSPAN_E_DEVICE_MEMORY);
  EXPECT_EQ(rig.error.required, 401u);
  EXPECT_EQ(rig.error.provided, 400u);
  EXPECT_EQ(rig.error.missing, 1u);
  EXPECT_EQ(rig.error.resource, KVSPAN_RESOURCE_DEVICE_MEMORY);
  EXPECT_EQ(rig.try_memory(KVSPAN_MEMORY_DEVICE, 400, second), KVSPAN_OK) << rig.error.message;
  const sdk::Memory host = rig.memory(KVSPAN_MEMORY_HOST, 5000);
  std::uint64_t free_bytes = 7;
  ASSERT_EQ(rig.plugin().device()->free_bytes(rig.device(), &free_bytes, nullptr), KVSPAN_OK);
  EXPECT_EQ(free_bytes, 0u);
  EXPECT_EQ(rig.counters().device_bytes, 1000u);
  EXPECT_EQ(second.reset(), KVSPAN_OK);
  EXPECT_EQ(rig.counters().device_bytes, 600u);
  EXPECT_EQ(rig.counters().device_bytes_max, 1000u);
  EXPECT_EQ(rig.counters().device_allocations, 3u);
}

TEST(Memory, TheNthAllocationFailsAndTheNextSmallerOneWorks) {
  for (const std::uint32_t kind : {KVSPAN_MEMORY_DEVICE, KVSPAN_MEMORY_HOST}) {
    for (std::uint64_t nth = 1; nth <= 20; ++nth) {
      SCOPED_TRACE("kind " + std::to_string(kind) + " nth " + std::to_string(nth));
      Rig rig({});
      ASSERT_EQ(rig.fault(KVSPAN_FAULT_ALLOCATION, nth), KVSPAN_OK);
      std::vector<sdk::Memory> kept(24);
      const kvspan_result_t shortage =
          kind == KVSPAN_MEMORY_DEVICE ? KVSPAN_E_DEVICE_MEMORY : KVSPAN_E_HOST_MEMORY;
      for (std::uint64_t i = 1; i < nth; ++i) {
        ASSERT_EQ(rig.try_memory(kind, 100, kept[i]), KVSPAN_OK);
      }
      const std::uint64_t held = rig.counters().device_bytes;
      ASSERT_EQ(rig.try_memory(kind, 100, kept[nth]), shortage);
      EXPECT_EQ(kept[nth].get(), nullptr);
      EXPECT_EQ(rig.error.required, 100u);
      EXPECT_EQ(rig.error.missing, rig.error.required - rig.error.provided);
      EXPECT_EQ(rig.counters().device_bytes, held);
      ASSERT_EQ(rig.try_memory(kind, 99, kept[nth]), KVSPAN_OK) << rig.error.message;
    }
  }
}

TEST(Memory, FreshMemoryHoldsPoisonAtBothEnds) {
  Rig rig({});
  constexpr std::uint64_t kBytes = 32ull << 20;
  const sdk::Memory host = rig.memory(KVSPAN_MEMORY_HOST, kBytes);
  const sdk::Memory device = rig.memory(KVSPAN_MEMORY_DEVICE, kBytes);
  EXPECT_EQ(rig.bytes(host)[0], 0xFF);
  EXPECT_EQ(rig.bytes(host)[kBytes - 1], 0xFF);
  rig.bytes(host)[0] = 1;
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_DOWNLOAD);
  const sdk::Fence fence = rig.fence();
  ASSERT_EQ(rig.copy(queue, {segment(device, kBytes - 1, host, 0, 1)}, {{}, {{fence.get(), 1}}}),
            KVSPAN_OK);
  ASSERT_EQ(rig.wait({{fence.get(), 1}}), KVSPAN_OK);
  EXPECT_EQ(rig.bytes(host)[0], 0xFF);
}

TEST(Memory, DeviceMemoryIsNotForTheHost) {
  Rig rig({});
  const sdk::Memory device = rig.memory(KVSPAN_MEMORY_DEVICE, 64);
  int here = 0;
  void* address = &here;
  EXPECT_EQ(rig.plugin().memory()->map(device.get(), &address, &rig.error), KVSPAN_E_UNSUPPORTED);
  EXPECT_EQ(address, &here) << "untouched on failure";
  EXPECT_EQ(rig.error.reasons, KVSPAN_WHY_MEMORY_KIND);
}

TEST(Memory, ImportedPagesAreUsedInPlace) {
  Rig rig({});
  alignas(64) std::array<std::uint8_t, 128> pages{};
  const kvspan_memory_table_t& table = *rig.plugin().memory();
  kvspan_memory_t* none = nullptr;
  EXPECT_EQ(table.import_host(rig.device(), pages.data() + 1, 64, &none, &rig.error),
            KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(table.import_host(rig.device(), pages.data(), 65, &none, &rig.error),
            KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(table.import_host(rig.device(), nullptr, 64, &none, &rig.error), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(none, nullptr);
  sdk::Memory imported;
  ASSERT_EQ(sdk::Memory::import_host(
                rig.plugin(), rig.device(), pages.data(), pages.size(), imported, &rig.error),
            KVSPAN_OK)
      << rig.error.message;
  EXPECT_EQ(rig.bytes(imported), pages.data());
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_COMPUTE);
  const sdk::Fence fence = rig.fence();
  ASSERT_EQ(rig.fill(queue, {imported.get(), 127, 1}, 3, {{}, {{fence.get(), 1}}}), KVSPAN_OK);
  ASSERT_EQ(rig.wait({{fence.get(), 1}}), KVSPAN_OK);
  EXPECT_EQ(pages[127], 3);
  EXPECT_EQ(pages[126], 0);
}

TEST(Memory, NoBytesAreAMemoryToo) {
  Rig rig({});
  const sdk::Memory empty = rig.memory(KVSPAN_MEMORY_HOST, 0);
  EXPECT_NE(rig.bytes(empty), nullptr);
}

}  // namespace
}  // namespace kvspan::stub_test
