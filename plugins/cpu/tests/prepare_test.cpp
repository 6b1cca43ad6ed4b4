// SPDX-License-Identifier: Apache-2.0
// After prepare() nothing is allocated, larger submits are refused with the exact amount, and every
// allocation that the host refuses becomes a clean failure.
#include "counted_new.hpp"
#include "scene.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace kvspan::cpu {
namespace {

kvspan_prepare_t limits_of(const kvspan_attention_shape_t& shape) {
  kvspan_prepare_t request{};
  request.struct_size = sizeof request;
  request.shape_count = 1;
  request.shapes = &shape;
  request.depth = 4;
  request.segments_max = 8;
  request.codec_items_max = 2;
  request.attention_items_max = 4;
  request.spans_max = 1;
  request.page_list_max = 200;
  return request;
}

TEST(Prepare, LeavesNothingToAllocate) {
  Rig rig(3);
  Line& line = rig.line(KVSPAN_ROLE_COMPUTE, 8);
  Scene scene(rig, {5, 3, 700, KVSPAN_ROWS_DECODE});
  const kvspan_prepare_t request = limits_of(scene.shape());
  kvspan_prepared_t prepared{};
  prepared.struct_size = sizeof prepared;
  rig.expect_ok(kDeviceTable.prepare(rig.device, &request, &prepared, &rig.error), "prepare");
  EXPECT_GT(prepared.host_bytes, 0u);
  EXPECT_EQ(prepared.device_bytes, 0u);

  const uint64_t asked = rig.host.asked();
  kvspan_segment_t segments[8] = {};
  for (kvspan_segment_t& segment : segments) {
    segment = {scene.entry.q.memory, scene.entry.out.memory, 0, 0, 4, 1, 0, 0};
  }
  const kvspan_point_t signals[4] = {
      {line.fence, 1}, {line.fence, 2}, {line.fence, 3}, {line.fence, 4}};
  kvspan_submit_t submit{};
  submit.struct_size = sizeof submit;
  submit.signal_count = 1;
  const uint64_t before = news_so_far();
  for (uint32_t i = 0; i < 4; ++i) {
    submit.signals = &signals[i];
    const kvspan_result_t result =
        i % 2 == 0 ? kAttentionTable.run(line.queue, &scene.args, &submit, &rig.error)
                   : kCopyTable.copy(line.queue, segments, 8, &submit, &rig.error);
    ASSERT_EQ(result, KVSPAN_OK) << rig.error.message;
  }
  line.value = 4;
  ASSERT_EQ(rig.wait(line), KVSPAN_OK);
  EXPECT_EQ(news_so_far(), before);
  EXPECT_EQ(rig.host.asked(), asked);
}

TEST(Prepare, RefusesLargerSubmitsWithTheExactAmount) {
  Rig rig(1);
  Line& line = rig.line(KVSPAN_ROLE_UPLOAD, 8);
  Scene scene(rig, {5, 3, 700, KVSPAN_ROWS_DECODE});
  kvspan_prepare_t request = limits_of(scene.shape());
  kvspan_prepared_t prepared{};
  prepared.struct_size = sizeof prepared;
  rig.expect_ok(kDeviceTable.prepare(rig.device, &request, &prepared, &rig.error), "prepare");
  kvspan_segment_t segments[9] = {};
  const auto copy =
      [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
        return kCopyTable.copy(queue, segments, 9, submit, error);
      };
  EXPECT_EQ(rig.submit(line, copy), KVSPAN_E_HOST_MEMORY);
  EXPECT_EQ(rig.error.resource, KVSPAN_RESOURCE_PREPARED);
  EXPECT_EQ(rig.error.required, 9u);
  EXPECT_EQ(rig.error.provided, 8u);
  EXPECT_EQ(rig.error.missing, 1u);
  request.segments_max = static_cast<uint32_t>(rig.error.required);
  rig.expect_ok(kDeviceTable.prepare(rig.device, &request, &prepared, &rig.error), "prepare");
  rig.settle(line, copy);
}

TEST(Prepare, TurnsEveryRefusedAllocationIntoAFailureThatChangesNothing) {
  for (uint64_t nth = 1; nth <= 20; ++nth) {
    SCOPED_TRACE("allocation " + std::to_string(nth));
    FakeHost host;
    auto plugin =
        std::make_unique<Plugin>(Host(host.services()), Options{2, KVSPAN_UNKNOWN_AMOUNT, {}});
    kvspan_error_t error = no_error();
    host.fail_in(nth);
    const auto insist = [&](const auto& make) {  // at most one of all calls fails
      const int64_t blocks = host.blocks();
      const kvspan_result_t result = make();
      if (result != KVSPAN_OK) {
        EXPECT_EQ(result, KVSPAN_E_HOST_MEMORY) << error.message;
        EXPECT_GT(error.required, 0u);
        EXPECT_EQ(host.blocks(), blocks) << "a failed call kept memory";
        EXPECT_EQ(make(), KVSPAN_OK) << error.message;
      }
    };
    kvspan_device_t* device = nullptr;
    kvspan_memory_t* memory = nullptr;
    kvspan_queue_t* queue = nullptr;
    kvspan_fence_t* fence = nullptr;
    const kvspan_queue_options_t options{sizeof options, KVSPAN_ROLE_UPLOAD, 4, 0};
    insist([&] { return kDeviceTable.open(plugin.get(), 0, &device, &error); });
    insist([&] { return kMemoryTable.alloc(device, KVSPAN_MEMORY_DEVICE, 4096, &memory, &error); });
    insist([&] { return kQueueTable.create(device, &options, &queue, &error); });
    insist([&] { return kFenceTable.create(device, 0, &fence, &error); });
    const kvspan_segment_t segment{memory, memory, 0, 2048, 2048, 1, 0, 0};
    const kvspan_point_t point{fence, 1};
    kvspan_submit_t submit{};
    submit.struct_size = sizeof submit;
    submit.signals = &point;
    submit.signal_count = 1;
    insist([&] { return kCopyTable.copy(queue, &segment, 1, &submit, &error); });
    EXPECT_EQ(kFenceTable.wait(device, &point, 1, KVSPAN_WAIT_ALL, UINT64_MAX, &error), KVSPAN_OK);
    EXPECT_EQ(kQueueTable.destroy(queue, &error), KVSPAN_OK);
    EXPECT_EQ(kFenceTable.destroy(fence, &error), KVSPAN_OK);
    EXPECT_EQ(kMemoryTable.release(memory, &error), KVSPAN_OK);
    EXPECT_EQ(kDeviceTable.close(device, &error), KVSPAN_OK);
    EXPECT_EQ(host.blocks(), 0);
    EXPECT_EQ(host.bytes(), 0u);
  }
}

TEST(Memory, KeepsToItsBudgetToTheByte) {
  Rig rig(1, 1000);
  kvspan_memory_t* first = nullptr;
  kvspan_memory_t* second = nullptr;
  rig.expect_ok(kMemoryTable.alloc(rig.device, KVSPAN_MEMORY_DEVICE, 600, &first, &rig.error),
                "600");
  uint64_t left = 0;
  rig.expect_ok(kDeviceTable.free_bytes(rig.device, &left, &rig.error), "free_bytes");
  EXPECT_EQ(left, 400u);
  EXPECT_EQ(kMemoryTable.alloc(rig.device, KVSPAN_MEMORY_DEVICE, 401, &second, &rig.error),
            KVSPAN_E_DEVICE_MEMORY);
  EXPECT_EQ(rig.error.resource, KVSPAN_RESOURCE_DEVICE_MEMORY);
  EXPECT_EQ(rig.error.required, 401u);
  EXPECT_EQ(rig.error.provided, 400u);
  EXPECT_EQ(rig.error.missing, 1u);
  rig.expect_ok(kMemoryTable.alloc(rig.device, KVSPAN_MEMORY_DEVICE, 400, &second, &rig.error),
                "400");
  rig.expect_ok(kMemoryTable.release(first, &rig.error), "release");
  rig.expect_ok(kMemoryTable.release(second, &rig.error), "release");
}

}  // namespace
}  // namespace kvspan::cpu
