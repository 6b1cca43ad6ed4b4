// SPDX-License-Identifier: Apache-2.0
// Opening, options, prepare, planted losses and counters of the stub.
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::stub_test {
namespace {

constexpr kvspan_range_t kNothing = {nullptr, 0, 0};

kvspan_device_info_t describe(const sdk::Plugin& plugin) {
  kvspan_device_info_t info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(plugin.device()->describe(plugin.self(), 0, &info, nullptr), KVSPAN_OK);
  return info;
}

TEST(Device, RolesAreOneQueueUnlessShuffled) {
  const Rig one({});
  const Rig shuffled(Options{{"queues", "shuffled"}});
  const kvspan_device_info_t info = describe(one.plugin());
  EXPECT_EQ(info.lanes[0], info.lanes[1]);
  EXPECT_EQ(info.lanes[0], info.lanes[2]);
  const kvspan_device_info_t other = describe(shuffled.plugin());
  EXPECT_NE(other.lanes[0], other.lanes[1]);
  EXPECT_NE(other.lanes[1], other.lanes[2]);
  EXPECT_EQ(std::memcmp(info.id, other.id, sizeof info.id), 0);
  EXPECT_NE(info.flags & KVSPAN_DEVICE_FAIL_STOPS, 0u);
  EXPECT_EQ(info.flags & (KVSPAN_DEVICE_MAP_LOCAL | KVSPAN_DEVICE_UNIFIED_MEMORY), 0u);
}

TEST(Device, NoDeviceAtAllIsLegal) {
  sdk::Plugin plugin;
  kvspan_error_t error = blank();
  ASSERT_EQ(load({{"zero_devices", "yes"}}, plugin, error), KVSPAN_OK) << error.message;
  std::uint32_t count = 9;
  EXPECT_EQ(plugin.device()->count(plugin.self(), &count, &error), KVSPAN_OK);
  EXPECT_EQ(count, 0u);
  kvspan_device_t* device = nullptr;
  EXPECT_EQ(plugin.device()->open(plugin.self(), 0, &device, &error), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(device, nullptr);
}

TEST(Device, OptionsThatMakeNoSenseAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"granule", "6"},
      {"granule", "128"},
      {"seed", "x"},
      {"seed", "-1"},
      {"queues", "two"},
      {"splits", "0"},
      {"fail_stops", "maybe"},
      {"zero_devices", "1"},
      {"delay_max_ticks", "18446744073709551615"},
      {"device_bytes", "1 GiB"},
      {"deadlock_ms", std::string(200, '0')},
  };
  for (const auto& [key, value] : wrong) {
    SCOPED_TRACE(key + "=" + value);
    sdk::Plugin plugin;
    kvspan_error_t error = blank();
    Options options;
    options[key] = value;
    EXPECT_EQ(load(options, plugin, error), KVSPAN_E_INVALID_ARG);
    EXPECT_NE(std::strstr(error.message, key.c_str()), nullptr) << error.message;
    EXPECT_FALSE(plugin);
  }
}

TEST(Device, CloseCountsWhatIsAlive) {
  sdk::Plugin plugin;
  kvspan_error_t error = blank();
  ASSERT_EQ(load({}, plugin, error), KVSPAN_OK);
  sdk::Device device;
  ASSERT_EQ(sdk::Device::open(plugin, 0, device, &error), KVSPAN_OK);
  sdk::Memory memory;
  sdk::Fence fence;
  ASSERT_EQ(sdk::Memory::alloc(plugin, device.get(), KVSPAN_MEMORY_HOST, 1, memory, &error),
            KVSPAN_OK);
  ASSERT_EQ(sdk::Fence::create(plugin, device.get(), 0, fence, &error), KVSPAN_OK);
  EXPECT_EQ(device.reset(&error), KVSPAN_E_BUSY);
  EXPECT_EQ(error.provided, 2u);
  EXPECT_EQ(plugin.close(&error), KVSPAN_E_BUSY);
  EXPECT_EQ(error.provided, 1u);
  EXPECT_EQ(memory.reset(), KVSPAN_OK);
  EXPECT_EQ(fence.reset(), KVSPAN_OK);
  EXPECT_EQ(device.reset(), KVSPAN_OK);
  EXPECT_EQ(plugin.close(), KVSPAN_OK);
}

TEST(Device, PrepareHoldsTheHostToItsLimitsExactly) {
  Rig rig({});
  const sdk::Memory memory = rig.memory(KVSPAN_MEMORY_HOST, 64);
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_UPLOAD);
  const sdk::Fence fence = rig.fence();
  std::vector<kvspan_segment_t> segments;
  for (std::uint64_t i = 0; i < 4; ++i) {
    segments.push_back(segment(memory, i, memory, 32 + i, 1));
  }
  ASSERT_EQ(rig.copy(queue, segments, {{}, {{fence.get(), 1}}}), KVSPAN_OK) << "not yet prepared";
  kvspan_prepare_t request{};
  request.struct_size = sizeof request;
  request.depth = 2;
  request.segments_max = 3;
  kvspan_prepared_t prepared{};
  prepared.struct_size = sizeof prepared;
  const kvspan_device_table_t& table = *rig.plugin().device();
  EXPECT_EQ(table.prepare(rig.device(), &request, &prepared, &rig.error), KVSPAN_E_BUSY);
  EXPECT_EQ(rig.error.provided, 1u);
  ASSERT_EQ(rig.wait({{fence.get(), 1}}), KVSPAN_OK);
  ASSERT_EQ(table.prepare(rig.device(), &request, &prepared, &rig.error), KVSPAN_OK);
  EXPECT_EQ(prepared.device_bytes, 0u);

  EXPECT_EQ(rig.copy(queue, segments, {{}, {{fence.get(), 2}}}), KVSPAN_E_HOST_MEMORY);
  EXPECT_EQ(rig.error.resource, KVSPAN_RESOURCE_PREPARED);
  EXPECT_EQ(rig.error.required, 4u);
  EXPECT_EQ(rig.error.missing, 1u);
  segments.pop_back();
  EXPECT_EQ(rig.copy(queue, segments, {{}, {{fence.get(), 2}}}), KVSPAN_OK);
  EXPECT_EQ(rig.fill(queue, kNothing, 0, {{}, {{fence.get(), 3}}}), KVSPAN_OK);
  EXPECT_EQ(rig.fill(queue, kNothing, 0, {{}, {{fence.get(), 4}}}), KVSPAN_E_QUEUE_FULL);
  EXPECT_EQ(rig.error.required, 3u);
  ASSERT_EQ(rig.wait({{fence.get(), 3}}), KVSPAN_OK);

  request.segments_max = 4;
  ASSERT_EQ(table.prepare(rig.device(), &request, &prepared, &rig.error), KVSPAN_OK);
  segments.push_back(segment(memory, 3, memory, 35, 1));
  EXPECT_EQ(rig.copy(queue, segments, {{}, {{fence.get(), 4}}}), KVSPAN_OK);
  EXPECT_EQ(rig.wait({{fence.get(), 4}}), KVSPAN_OK);
}

TEST(Device, ALostDeviceFailsEverythingAndLetsGoOfEverything) {
  for (const char* const queues : {"one", "shuffled"}) {
    SCOPED_TRACE(queues);
    Rig rig(Options{{"queues", queues}});
    sdk::Memory memory = rig.memory(KVSPAN_MEMORY_DEVICE, 8);
    sdk::Queue first = rig.queue(KVSPAN_ROLE_UPLOAD);
    sdk::Queue second = rig.queue(KVSPAN_ROLE_COMPUTE);
    sdk::Fence fence = rig.fence();
    sdk::Fence other = rig.fence();
    sdk::Fence idle = rig.fence(5);
    const kvspan_range_t range{memory.get(), 0, 8};
    ASSERT_EQ(rig.fill(first, range, 1, {{}, {{fence.get(), 1}}, 10}), KVSPAN_OK);
    ASSERT_EQ(rig.wait({{fence.get(), 1}}), KVSPAN_OK);
    ASSERT_EQ(rig.fault(KVSPAN_FAULT_DEVICE, 1), KVSPAN_OK);
    const kvspan_point_t lost{fence.get(), 2};
    ASSERT_EQ(rig.fill(first, range, 2, {{}, {lost}, 11}), KVSPAN_OK);
    const kvspan_result_t late = rig.fill(second, range, 3, {{lost}, {{other.get(), 1}}, 12});
    EXPECT_TRUE(late == KVSPAN_OK || late == KVSPAN_E_DEVICE_LOST);
    EXPECT_EQ(rig.wait({lost}), KVSPAN_E_DEVICE_LOST);
    EXPECT_EQ(rig.error.submit_id, 11u);
    EXPECT_NE(rig.error.flags & KVSPAN_ERROR_STICKY, 0u);
    EXPECT_NE(rig.error.flags & KVSPAN_ERROR_REOPEN_DEVICE, 0u);
    EXPECT_EQ(rig.wait({{other.get(), 1}}), KVSPAN_E_DEVICE_LOST);
    EXPECT_EQ(rig.wait({{idle.get(), 6}}), KVSPAN_E_DEVICE_LOST);
    EXPECT_EQ(rig.wait({{idle.get(), 5}, {fence.get(), 1}}), KVSPAN_OK) << "reached before";
    sdk::Memory none;
    EXPECT_EQ(rig.try_memory(KVSPAN_MEMORY_HOST, 1, none), KVSPAN_E_DEVICE_LOST);
    EXPECT_EQ(rig.fill(first, kNothing, 0, {}), KVSPAN_E_DEVICE_LOST);
    EXPECT_EQ(memory.reset(), KVSPAN_OK);
    EXPECT_EQ(first.reset(), KVSPAN_OK);
    EXPECT_EQ(second.reset(), KVSPAN_OK);
    EXPECT_EQ(fence.reset(), KVSPAN_OK);
    EXPECT_EQ(other.reset(), KVSPAN_OK);
    EXPECT_EQ(idle.reset(), KVSPAN_OK);

    sdk::Device again;
    EXPECT_EQ(sdk::Device::open(rig.plugin(), 0, again, &rig.error), KVSPAN_OK) << "reopened";
  }
}

TEST(Device, CountersMeanTheirNames) {
  Rig rig({});
  const sdk::Memory memory = rig.memory(KVSPAN_MEMORY_DEVICE, 100);
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_COMPUTE);
  const sdk::Fence fence = rig.fence();
  ASSERT_EQ(rig.fill(queue, {memory.get(), 0, 1}, 1, {{}, {{fence.get(), 1}}}), KVSPAN_OK);
  EXPECT_EQ(rig.counters().submits, 1u);
  EXPECT_EQ(rig.counters().launches, 0u) << "nothing runs before somebody looks";
  ASSERT_EQ(rig.wait({{fence.get(), 1}}), KVSPAN_OK);
  EXPECT_EQ(rig.counters().launches, 1u);
  EXPECT_EQ(rig.counters().device_allocations, 1u);
  EXPECT_EQ(rig.counters().device_bytes, 100u);
  EXPECT_EQ(rig.counters().conversions, 0u);
}

TEST(Device, AFaultTakenBackDoesNotFire) {
  Rig rig({});
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_COMPUTE);
  const sdk::Fence fence = rig.fence();
  ASSERT_EQ(rig.fault(KVSPAN_FAULT_ALLOCATION, 1), KVSPAN_OK);
  ASSERT_EQ(rig.fault(KVSPAN_FAULT_SUBMIT, 1, KVSPAN_E_INTERNAL), KVSPAN_OK);
  ASSERT_EQ(rig.fault(0, 0), KVSPAN_OK);
  const sdk::Memory memory = rig.memory(KVSPAN_MEMORY_DEVICE, 1);
  EXPECT_EQ(rig.fill(queue, kNothing, 0, {{}, {{fence.get(), 1}}}), KVSPAN_OK);
  EXPECT_EQ(rig.wait({{fence.get(), 1}}), KVSPAN_OK);
  EXPECT_EQ(rig.fault(77, 1), KVSPAN_E_UNSUPPORTED);
  EXPECT_EQ(rig.fault(KVSPAN_FAULT_SUBMIT, 1, KVSPAN_OK), KVSPAN_E_INVALID_ARG);
}

TEST(Device, OpeningAgainBehavesAsTheFirstTime) {
  for (int round = 0; round < 3; ++round) {
    Rig rig({});
    EXPECT_EQ(rig.counters().device_allocations, 0u);
    EXPECT_EQ(rig.counters().submits, 0u);
  }
}

}  // namespace
}  // namespace kvspan::stub_test
