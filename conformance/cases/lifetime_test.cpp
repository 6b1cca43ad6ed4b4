// SPDX-License-Identifier: Apache-2.0
// Objects end in any order, and a device with any of them left is busy and works on; facts about a
// device stay the same; what is free can be had. BUSY of pending work: fence_test.cpp.
#include "worker/case.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <unistd.h>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

class LifetimeTest : public PluginTest {};

/// All 120 orders of a queue, two fences and two memories whose work has settled.
KVSPAN_CASE(LifetimeTest,
            SettledObjectsEndInAnyOrder,
            "KV-DEVICE-6 KV-STRUCT-4 KV-QUEUE-2 KV-MEMORY-5 KV-FENCE-9",
            cost_ms(200)) {
  const Tables& t = rig().tables();
  kvspan_device_t* device = nullptr;
  ASSERT_EQ(t.device->open(rig().plugin_self(), settings().device, &device, nullptr), KVSPAN_OK);
  int order[5] = {0, 1, 2, 3, 4};
  do {
    SCOPED_TRACE(testing::Message()
                 << "order " << order[0] << order[1] << order[2] << order[3] << order[4]);
    kvspan_queue_t* queue = nullptr;
    kvspan_fence_t* fences[2] = {};
    kvspan_memory_t* memories[2] = {};
    const kvspan_queue_options_t options = {sizeof options, KVSPAN_ROLE_UPLOAD, 0, 0};
    ASSERT_EQ(t.queue->create(device, &options, &queue, nullptr), KVSPAN_OK);
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(t.fence->create(device, 0, &fences[i], nullptr), KVSPAN_OK);
      ASSERT_EQ(t.memory->alloc(device, KVSPAN_MEMORY_HOST, 4096, &memories[i], nullptr),
                KVSPAN_OK);
    }
    const std::set<void*> handles = {queue, fences[0], fences[1], memories[0], memories[1]};
    ASSERT_EQ(handles.size(), 5u) << "two living objects have one handle";
    ASSERT_EQ(handles.count(nullptr), 0u);
    const kvspan_segment_t segment = {memories[0], memories[1], 0, 0, 4096, 1, 0, 0};
    Submit submit;
    submit.signal({fences[0], 1}).signal({fences[1], 1});
    ASSERT_EQ(rig().calls().copy(queue, &segment, 1, submit.raw(), nullptr), KVSPAN_OK);
    const kvspan_point_t both[] = {{fences[0], 1}, {fences[1], 1}};
    ASSERT_EQ(t.fence->wait(device, both, 2, KVSPAN_WAIT_ALL, UINT64_MAX, nullptr), KVSPAN_OK);
    for (uint64_t left = 5; left != 0; --left) {
      kvspan_error_t error = fresh_error();
      ASSERT_EQ(t.device->close(device, &error), KVSPAN_E_BUSY);
      ASSERT_EQ(error.provided, left) << "objects still alive";
      const int which = order[5 - left];
      const kvspan_result_t result = which == 0 ? t.queue->destroy(queue, &error)
                                     : which <= 2
                                         ? t.fence->destroy(fences[which - 1], &error)
                                         : rig().calls().release(memories[which - 3], &error);
      ASSERT_EQ(result, KVSPAN_OK) << "object " << which << ": " << told(result, error);
    }
  } while (std::next_permutation(std::begin(order), std::end(order)));
  EXPECT_EQ(t.device->close(device, nullptr), KVSPAN_OK);
}

/// 'S' while a thread of this process sleeps, 'R' while it runs.
char state_of(int thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= line.size() ? '?' : line[name_end + 2];
}

KVSPAN_CASE(LifetimeTest, AFenceThatAThreadWaitsForIsBusy, "KV-FENCE-9") {
  constexpr uint64_t kMinute_ns = 60'000'000'000;
  const kvspan_fence_table_t& fences = *rig().tables().fence;
  kvspan_fence_t* fence = rig().fence();
  std::atomic<int> thread = 0;
  kvspan_result_t waited = KVSPAN_E_INTERNAL;
  std::thread waiter([&] {
    const kvspan_point_t point = {fence, 1};
    thread = static_cast<int>(::gettid());
    waited = fences.wait(rig().device(), &point, 1, KVSPAN_WAIT_ALL, kMinute_ns, nullptr);
  });
  while (thread == 0) {
    std::this_thread::yield();
  }
  // From here on the waiter does nothing but wait: asleep, it is inside the slot.
  const auto begin = std::chrono::steady_clock::now();
  while (state_of(thread) != 'S' &&
         std::chrono::steady_clock::now() - begin < std::chrono::seconds(2)) {
    std::this_thread::yield();
  }
  const bool asleep = state_of(thread) == 'S';
  if (asleep) {
    EXPECT_EQ(fences.destroy(fence, nullptr), KVSPAN_E_BUSY);
  }
  EXPECT_EQ(fences.signal(fence, 1, nullptr), KVSPAN_OK) << "it lives";
  waiter.join();
  EXPECT_EQ(waited, KVSPAN_OK);
  rig().destroy(fence);
  if (!asleep) {
    inconclusive("a waiting thread does not sleep here, so it cannot be seen inside the slot");
  }
}

KVSPAN_CASE(LifetimeTest, ADeviceIsDescribedTheSameEachTime, "KV-DEVICE-2") {
  const kvspan_device_table_t& table = *rig().tables().device;
  uint32_t count = 0;
  ASSERT_EQ(table.count(rig().plugin_self(), &count, nullptr), KVSPAN_OK);
  std::set<std::string> ids;
  for (uint32_t index = 0; index < count; ++index) {
    kvspan_device_info_t first = {};
    first.struct_size = sizeof first;
    ASSERT_EQ(table.describe(rig().plugin_self(), index, &first, nullptr), KVSPAN_OK);
    EXPECT_TRUE(ids.insert(std::string(reinterpret_cast<const char*>(first.id), 16)).second)
        << "two devices with one id";
    EXPECT_LT(::strnlen(first.name, sizeof first.name), sizeof first.name);
    EXPECT_LE(first.memory_alignment, 256u);
    EXPECT_EQ(first.memory_alignment & (first.memory_alignment - 1), 0u);
    EXPECT_GE(first.fence_delta_max, (uint64_t{1} << 31) - 1);
    EXPECT_GE(first.queues_max, 1u);
    EXPECT_GE(first.depth_max, 1u);
    for (int again = 0; again < 3; ++again) {
      kvspan_device_info_t other = {};
      other.struct_size = sizeof other;
      ASSERT_EQ(table.describe(rig().plugin_self(), index, &other, nullptr), KVSPAN_OK);
      EXPECT_EQ(std::memcmp(&first, &other, sizeof first), 0) << "device " << index;
    }
  }
}

KVSPAN_CASE(LifetimeTest, WhatIsFreeCanBeHad, "KV-DEVICE-5", needs::bounded_memory, runs_alone) {
  reopen("device_bytes", "4194304");
  uint64_t free_bytes = KVSPAN_UNKNOWN_AMOUNT;
  const kvspan_device_table_t& table = *rig().tables().device;
  for (int again = 0; again < 10; ++again) {  // the last answer counts: none may be a mere guess
    ASSERT_EQ(table.free_bytes(rig().device(), &free_bytes, nullptr), KVSPAN_OK);
  }
  if (free_bytes == KVSPAN_UNKNOWN_AMOUNT || free_bytes > rig().info().allocation_bytes_max) {
    return inconclusive("what is free is not known, or more than one allocation may have");
  }
  // Others may use the device too: an answer counts that was still the same behind the refusal.
  kvspan_memory_t* made = nullptr;
  kvspan_result_t result = KVSPAN_E_DEVICE_MEMORY;
  for (int again = 0; again < 50 && result != KVSPAN_OK; ++again) {
    kvspan_error_t error = fresh_error();
    result = rig().tables().memory->alloc(
        rig().device(), KVSPAN_MEMORY_DEVICE, free_bytes, &made, &error);
    const uint64_t before = free_bytes;
    ASSERT_EQ(table.free_bytes(rig().device(), &free_bytes, nullptr), KVSPAN_OK);
    ASSERT_TRUE(result == KVSPAN_OK || free_bytes < before)
        << "of " << before << " free bytes: " << told(result, error);
    free_bytes = result == KVSPAN_OK ? before : free_bytes;
  }
  if (result != KVSPAN_OK) {
    return inconclusive("others take the device's memory faster than this case can ask for it");
  }
  uint64_t after = 0;
  EXPECT_EQ(table.free_bytes(rig().device(), &after, nullptr), KVSPAN_OK);
  EXPECT_LT(after, free_bytes);
  EXPECT_EQ(rig().calls().release(made, nullptr), KVSPAN_OK);
}

}  // namespace
}  // namespace kvspan::conformance
