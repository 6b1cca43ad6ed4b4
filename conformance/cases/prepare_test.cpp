// SPDX-License-Identifier: Apache-2.0
// What prepare promises: afterwards submits within the limits allocate nothing, and larger ones are
// refused with the exact amount, which then works once it is prepared.
#include "worker/case.hpp"

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

class PrepareTest : public PluginTest {
 protected:
  void SetUp() override {
    PluginTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) {
      return;
    }
    host_ = rig().allocate(KVSPAN_MEMORY_HOST, 65536);
    device_ = rig().allocate(KVSPAN_MEMORY_DEVICE, 65536);
    ASSERT_NE(host_, nullptr);
    ASSERT_NE(device_, nullptr);
    rig().upload(*host_);
    rig().upload(*device_);
  }

  void prepare(uint32_t segments, uint32_t items) {
    kvspan_prepare_t request = {};
    request.struct_size = sizeof request;
    request.depth = 4;
    request.segments_max = segments;
    request.codec_items_max = items;
    request.spans_max = 1;
    request.attention_items_max = 1;
    request.page_list_max = 16;
    kvspan_prepared_t prepared = {};
    prepared.struct_size = sizeof prepared;
    kvspan_error_t error = fresh_error();
    const kvspan_result_t result =
        rig().tables().device->prepare(rig().device(), &request, &prepared, &error);
    ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
  }

  kvspan_result_t copies(uint32_t count, kvspan_error_t* error) {
    std::vector<kvspan_segment_t> segments;
    for (uint64_t i = 0; i < count; ++i) {
      segments.push_back({host_->memory, device_->memory, i * 512, i * 512, 256, 1, 0, 0});
    }
    return rig().settle(
        KVSPAN_ROLE_UPLOAD,
        [&](auto* queue, const auto* submit, auto* out) {
          return rig().calls().copy(queue, segments.data(), count, submit, out);
        },
        error);
  }

  kvspan_result_t encodes(uint32_t count, kvspan_error_t* error) {
    std::vector<kvspan_codec_item_t> items(count);
    for (uint64_t i = 0; i < count; ++i) {
      items[i].rows = {host_->memory, i * 1024, 256, 256, KVSPAN_TYPE_F32, 0};
      items[i].plane.memory = device_->memory;
      items[i].plane.offset = i * 1024;
      items[i].plane.row_stride = 128;
      items[i].plane.head_stride = 128;
      items[i].type = KVSPAN_TYPE_F16;
      items[i].row_count = 4;
      items[i].head_count = 1;
      items[i].head_size = 64;
    }
    return rig().settle(
        KVSPAN_ROLE_COMPUTE,
        [&](auto* queue, const auto* submit, auto* out) {
          return rig().calls().encode(queue, items.data(), count, submit, out);
        },
        error);
  }

  static void expect_exact(kvspan_result_t result, const kvspan_error_t& error, uint64_t limit) {
    EXPECT_TRUE(result <= -3000 && result > -4000) << told(result, error);
    EXPECT_EQ(error.resource, KVSPAN_RESOURCE_PREPARED);
    EXPECT_EQ(error.required, limit + 1);
    EXPECT_EQ(error.provided, limit);
    EXPECT_EQ(error.missing, 1u);
  }

  uint64_t device_allocations() {
    kvspan_debug_counters_t counters = {};
    counters.struct_size = sizeof counters;
    const kvspan_debug_table_t* debug = rig().tables().debug;
    return debug != nullptr && debug->counters(rig().device(), &counters, nullptr) == KVSPAN_OK
               ? counters.device_allocations
               : 0;
  }

  Buffer* host_ = nullptr;
  Buffer* device_ = nullptr;
};

KVSPAN_CASE(PrepareTest, SubmitsWithinTheLimitsAllocateNothing, "KV-PREPARE-1") {
  prepare(8, 3);
  if (HasFatalFailure()) {
    return;
  }
  const uint64_t blocks = rig().host_allocations();
  const uint64_t allocations = device_allocations();
  for (uint32_t round = 0; round < 20; ++round) {
    ASSERT_EQ(copies(1 + round % 8, nullptr), KVSPAN_OK);
    ASSERT_EQ(encodes(1 + round % 3, nullptr), KVSPAN_OK);
  }
  EXPECT_EQ(rig().host_allocations(), blocks) << "blocks of host memory";
  EXPECT_EQ(device_allocations(), allocations) << "allocations of the device";
}

KVSPAN_CASE(PrepareTest, LargerSubmitsAreRefusedWithTheExactAmount, "KV-PREPARE-2 KV-ERROR-3") {
  for (const uint32_t limit : {1u, 5u, 8u}) {
    SCOPED_TRACE(testing::Message() << "prepared for " << limit);
    prepare(limit, limit);
    if (HasFatalFailure()) {
      return;
    }
    EXPECT_EQ(copies(limit, nullptr), KVSPAN_OK);
    EXPECT_EQ(encodes(limit, nullptr), KVSPAN_OK);
    kvspan_error_t error = fresh_error();
    const kvspan_result_t copied = copies(limit + 1, &error);
    expect_exact(copied, error, limit);
    error = fresh_error();
    const kvspan_result_t encoded = encodes(limit + 1, &error);
    expect_exact(encoded, error, limit);
    prepare(limit + 1, limit + 1);
    EXPECT_EQ(copies(limit + 1, nullptr), KVSPAN_OK) << "exactly what was required works";
    EXPECT_EQ(encodes(limit + 1, nullptr), KVSPAN_OK) << "exactly what was required works";
  }
}

}  // namespace
}  // namespace kvspan::conformance
