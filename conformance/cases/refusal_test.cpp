// SPDX-License-Identifier: Apache-2.0
// Wrong calls of every table but attention: NULL arguments, structs of another size, indices, types
// and ranges that are not there. Each is refused with a code, with or without a place for the
// detail, and changes nothing. Attention's: refusal_attention_test.cpp; copies': copy_test.cpp.
#include "worker/case.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

class RefusalTest : public PluginTest {
 protected:
  using Call = std::function<kvspan_result_t(kvspan_error_t*)>;

  /// The call is refused with `code`, silently and with detail.
  static void expect_refused(const char* what, kvspan_result_t code, const Call& call) {
    SCOPED_TRACE(what);
    EXPECT_EQ(call(nullptr), code);
    kvspan_error_t error = fresh_error();
    EXPECT_EQ(call(&error), code);
    EXPECT_EQ(error.code, code);
    EXPECT_NE(error.where[0], '\0') << "the slot has a name";
    EXPECT_NE(error.message[0], '\0') << "and the refusal a sentence";
  }

  static void expect_null_refused(const char* what, const Call& call) {
    expect_refused(what, KVSPAN_E_INVALID_ARG, call);
  }
};

KVSPAN_CASE(RefusalTest, NullArgumentsOfDeviceSlots, "KV-STRUCT-3") {
  const kvspan_device_table_t& device = *rig().tables().device;
  void* self = rig().plugin_self();
  kvspan_device_t* opened = nullptr;
  kvspan_prepare_t request = {};
  request.struct_size = sizeof request;
  kvspan_prepared_t prepared = {};
  prepared.struct_size = sizeof prepared;
  uint64_t bytes = 0;
  expect_null_refused("count", [&](auto* e) { return device.count(self, nullptr, e); });
  expect_null_refused("describe", [&](auto* e) { return device.describe(self, 0, nullptr, e); });
  expect_null_refused("open", [&](auto* e) { return device.open(self, 0, nullptr, e); });
  expect_null_refused("close", [&](auto* e) { return device.close(nullptr, e); });
  expect_null_refused("free",
                      [&](auto* e) { return device.free_bytes(rig().device(), nullptr, e); });
  expect_null_refused("free device",
                      [&](auto* e) { return device.free_bytes(nullptr, &bytes, e); });
  expect_null_refused(
      "prepare", [&](auto* e) { return device.prepare(rig().device(), nullptr, &prepared, e); });
  expect_null_refused(
      "prepare out", [&](auto* e) { return device.prepare(rig().device(), &request, nullptr, e); });
  kvspan_device_info_t info = {};
  info.struct_size = sizeof info;
  expect_refused("describe 99", KVSPAN_E_INVALID_ARG, [&](auto* e) {
    return device.describe(self, 99, &info, e);
  });
  expect_refused(
      "open 99", KVSPAN_E_INVALID_ARG, [&](auto* e) { return device.open(self, 99, &opened, e); });
}

KVSPAN_CASE(RefusalTest, NullArgumentsOfMemoryQueueAndFenceSlots, "KV-STRUCT-3") {
  const kvspan_memory_table_t& memory = *rig().tables().memory;
  const kvspan_queue_table_t& queue = *rig().tables().queue;
  const kvspan_fence_table_t& fence = *rig().tables().fence;
  kvspan_memory_t* made = nullptr;
  void* address = nullptr;
  Buffer* buffer = rig().allocate(KVSPAN_MEMORY_HOST, 64);
  kvspan_queue_options_t options = {sizeof options, KVSPAN_ROLE_COMPUTE, 0, 0};
  kvspan_queue_t* made_queue = nullptr;
  kvspan_fence_t* made_fence = nullptr;
  uint64_t value = 0;
  kvspan_device_t* device = rig().device();
  expect_null_refused("alloc device",
                      [&](auto* e) { return memory.alloc(nullptr, 0, 8, &made, e); });
  expect_null_refused("alloc out", [&](auto* e) { return memory.alloc(device, 0, 8, nullptr, e); });
  expect_null_refused("map", [&](auto* e) { return memory.map(nullptr, &address, e); });
  expect_null_refused("map out", [&](auto* e) { return memory.map(buffer->memory, nullptr, e); });
  expect_null_refused("release", [&](auto* e) { return memory.release(nullptr, e); });
  expect_null_refused("queue",
                      [&](auto* e) { return queue.create(device, nullptr, &made_queue, e); });
  expect_null_refused("queue out",
                      [&](auto* e) { return queue.create(device, &options, nullptr, e); });
  expect_null_refused("queue end", [&](auto* e) { return queue.destroy(nullptr, e); });
  expect_null_refused("fence", [&](auto* e) { return fence.create(nullptr, 0, &made_fence, e); });
  expect_null_refused("fence out", [&](auto* e) { return fence.create(device, 0, nullptr, e); });
  expect_null_refused("query", [&](auto* e) { return fence.query(nullptr, &value, e); });
  expect_null_refused("query out", [&](auto* e) { return fence.query(rig().fence(), nullptr, e); });
  expect_null_refused("signal", [&](auto* e) { return fence.signal(nullptr, 1, e); });
  expect_null_refused("fail", [&](auto* e) { return fence.fail(nullptr, KVSPAN_E_FAILED, e); });
  expect_null_refused("fence end", [&](auto* e) { return fence.destroy(nullptr, e); });
  expect_null_refused("wait points", [&](auto* e) {
    return fence.wait(device, nullptr, 1, KVSPAN_WAIT_ALL, 0, e);
  });
  options.role = KVSPAN_ROLE_COUNT;
  expect_refused("role", KVSPAN_E_INVALID_ARG, [&](auto* e) {
    return queue.create(device, &options, &made_queue, e);
  });
  options.role = KVSPAN_ROLE_UPLOAD;
  options.depth = rig().info().depth_max + 1;
  expect_refused("depth", KVSPAN_E_INVALID_ARG, [&](auto* e) {
    return queue.create(device, &options, &made_queue, e);
  });
}

KVSPAN_CASE(RefusalTest, NullArgumentsOfCopyAndCodecSlots, "KV-STRUCT-3") {
  const Calls& calls = rig().calls();
  kvspan_queue_t* queue = rig().lane(KVSPAN_ROLE_COMPUTE).queue;
  Submit submit;
  const kvspan_submit_t* raw = submit.raw();
  const kvspan_segment_t segment = {};
  const kvspan_range_t range = {};
  const kvspan_codec_item_t item = {};
  kvspan_measurement_t measured = {};
  kvspan_copy_limits_t limits = {};
  limits.struct_size = sizeof limits;
  kvspan_codec_caps_t caps = {};
  caps.struct_size = sizeof caps;
  uint32_t count = 0;
  const kvspan_copy_table_t& copy = *rig().tables().copy;
  const kvspan_codec_table_t& codec = *rig().tables().codec;
  expect_null_refused("copy queue",
                      [&](auto* e) { return calls.copy(nullptr, &segment, 0, raw, e); });
  expect_null_refused("copy list", [&](auto* e) { return calls.copy(queue, nullptr, 1, raw, e); });
  expect_null_refused("copy submit",
                      [&](auto* e) { return calls.copy(queue, &segment, 0, nullptr, e); });
  expect_null_refused("fill queue",
                      [&](auto* e) { return calls.fill(nullptr, &range, 0, 1, raw, e); });
  expect_null_refused("fill range",
                      [&](auto* e) { return calls.fill(queue, nullptr, 0, 1, raw, e); });
  expect_null_refused("fill submit",
                      [&](auto* e) { return calls.fill(queue, &range, 0, 1, nullptr, e); });
  expect_null_refused("limits", [&](auto* e) { return copy.limits(rig().device(), nullptr, e); });
  expect_null_refused("limits of", [&](auto* e) { return copy.limits(nullptr, &limits, e); });
  expect_null_refused("feedback",
                      [&](auto* e) { return copy.feedback(queue, nullptr, 1, &count, e); });
  expect_null_refused("feedback n",
                      [&](auto* e) { return copy.feedback(queue, &measured, 1, nullptr, e); });
  for (const bool decode : {false, true}) {
    SCOPED_TRACE(decode ? "decode" : "encode");
    const auto call = [&](kvspan_queue_t* q, const auto* i, uint32_t n, const auto* s, auto* e) {
      return decode ? calls.decode(q, i, n, s, e) : calls.encode(q, i, n, s, e);
    };
    expect_null_refused("queue", [&](auto* e) { return call(nullptr, &item, 0, raw, e); });
    expect_null_refused("items", [&](auto* e) {
      return call(queue, static_cast<const kvspan_codec_item_t*>(nullptr), 1, raw, e);
    });
    expect_null_refused("submit", [&](auto* e) {
      return call(queue, &item, 0, static_cast<const kvspan_submit_t*>(nullptr), e);
    });
  }
  expect_null_refused("query",
                      [&](auto* e) { return codec.query(rig().device(), 0, 1, 64, nullptr, e); });
  expect_null_refused("query of",
                      [&](auto* e) { return codec.query(nullptr, 0, 1, 64, &caps, e); });
}

KVSPAN_CASE(RefusalTest, PointsOfASubmit, "KV-STRUCT-3") {
  const Calls& calls = rig().calls();
  kvspan_queue_t* queue = rig().lane(KVSPAN_ROLE_COMPUTE).queue;
  const auto copy_with = [&](auto change) {
    return [&calls, queue, change](kvspan_error_t* e) {
      kvspan_submit_t submit = {};
      submit.struct_size = sizeof submit;
      change(submit);
      return calls.copy(queue, nullptr, 0, &submit, e);
    };
  };
  const kvspan_point_t none = {nullptr, 1};
  expect_null_refused("waits", copy_with([](auto& s) { s.wait_count = 1; }));
  expect_null_refused("signals", copy_with([](auto& s) { s.signal_count = 1; }));
  expect_null_refused("wait fence", copy_with([&](auto& s) { s.wait_count = 1, s.waits = &none; }));
  expect_null_refused("signal fence",
                      copy_with([&](auto& s) { s.signal_count = 1, s.signals = &none; }));
  expect_null_refused("flags", copy_with([](auto& s) { s.flags = 0x80u; }));
  Buffer* word = rig().allocate(KVSPAN_MEMORY_HOST, 4096);
  expect_null_refused("cancel word outside", copy_with([&](auto& s) {
                        s.cancel_memory = word->memory, s.cancel_offset = word->bytes();
                      }));
  expect_null_refused("cancel word odd", copy_with([&](auto& s) {
                        s.cancel_memory = word->memory, s.cancel_offset = 2;
                      }));
}

/// While the major is 0 a struct that the plugin reads has one size.
KVSPAN_CASE(RefusalTest, StructsOfAnotherSize, "KV-STRUCT-1") {
  const Tables& tables = rig().tables();
  kvspan_device_t* device = rig().device();
  const auto expect_size = [](const char* what, uint32_t right, auto call) {
    for (const uint32_t size : {0u, 4u, right - 1, right + 8, UINT32_MAX}) {
      SCOPED_TRACE(testing::Message() << "size " << size << " for " << right);
      expect_refused(
          what, KVSPAN_E_BAD_STRUCT_SIZE, [&](kvspan_error_t* e) { return call(size, e); });
    }
  };
  expect_size("queue options", sizeof(kvspan_queue_options_t), [&](uint32_t size, auto* e) {
    kvspan_queue_options_t options = {size, KVSPAN_ROLE_COMPUTE, 0, 0};
    kvspan_queue_t* made = nullptr;
    return tables.queue->create(device, &options, &made, e);
  });
  expect_size("submit", sizeof(kvspan_submit_t), [&](uint32_t size, auto* e) {
    kvspan_submit_t submit = {};
    submit.struct_size = size;
    return rig().calls().copy(rig().lane(0).queue, nullptr, 0, &submit, e);
  });
  expect_size("prepare", sizeof(kvspan_prepare_t), [&](uint32_t size, auto* e) {
    kvspan_prepare_t request = {};
    request.struct_size = size;
    kvspan_prepared_t prepared = {};
    prepared.struct_size = sizeof prepared;
    return tables.device->prepare(device, &request, &prepared, e);
  });
}

KVSPAN_CASE(RefusalTest, ReservedFieldsAreZero, "KV-STRUCT-3") {
  kvspan_queue_options_t options = {sizeof options, KVSPAN_ROLE_COMPUTE, 0, 1};
  kvspan_queue_t* made = nullptr;
  EXPECT_EQ(rig().tables().queue->create(rig().device(), &options, &made, nullptr),
            KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(made, nullptr);
}

/// A struct that the plugin fills is never written behind the size that the caller gave.
KVSPAN_CASE(RefusalTest, FilledStructsAreWrittenWithinTheirSize, "KV-STRUCT-2") {
  const Tables& tables = rig().tables();
  kvspan_device_t* device = rig().device();
  const auto expect_within = [](const char* what, uint32_t right, auto call) {
    for (const uint32_t size : {0u, 4u, 16u, right - 8, right, right + 32}) {
      SCOPED_TRACE(testing::Message() << what << " of " << size << " bytes for " << right);
      alignas(16) uint8_t room[1024];
      std::fill(std::begin(room), std::end(room), uint8_t{0xC7});
      std::memcpy(room, &size, sizeof size);
      const kvspan_result_t result = call(room);
      if (size == 0) {
        EXPECT_EQ(result, KVSPAN_E_BAD_STRUCT_SIZE);
      } else if (size == right) {
        EXPECT_EQ(result, KVSPAN_OK);
      } else {
        EXPECT_TRUE(result == KVSPAN_OK || result == KVSPAN_E_BAD_STRUCT_SIZE) << result;
      }
      if (result == KVSPAN_OK) {
        uint32_t stored = 0;
        std::memcpy(&stored, room, sizeof stored);
        EXPECT_EQ(stored, std::min(size, right))
            << "struct_size is not the number of bytes written";
      }
      const uint32_t used = std::max(4u, std::min(size, right));
      EXPECT_TRUE(std::all_of(room + used, std::end(room), [](uint8_t b) { return b == 0xC7; }));
    }
  };
  expect_within("info", sizeof(kvspan_device_info_t), [&](void* out) {
    auto* info = static_cast<kvspan_device_info_t*>(out);
    return tables.device->describe(rig().plugin_self(), 0, info, nullptr);
  });
  expect_within("limits", sizeof(kvspan_copy_limits_t), [&](void* out) {
    return tables.copy->limits(device, static_cast<kvspan_copy_limits_t*>(out), nullptr);
  });
  expect_within("codec caps", sizeof(kvspan_codec_caps_t), [&](void* out) {
    return tables.codec->query(device, 0, 1, 64, static_cast<kvspan_codec_caps_t*>(out), nullptr);
  });
  expect_within("prepared", sizeof(kvspan_prepared_t), [&](void* out) {
    kvspan_prepare_t request = {};
    request.struct_size = sizeof request;
    auto* prepared = static_cast<kvspan_prepared_t*>(out);
    return tables.device->prepare(device, &request, prepared, nullptr);
  });
}

KVSPAN_CASE(RefusalTest, CodecItemsThatCannotBe, "KV-CODEC-6") {
  Buffer* rows = rig().allocate(KVSPAN_MEMORY_HOST, 65536);
  Buffer* plane = rig().allocate(KVSPAN_MEMORY_DEVICE, 65536);
  rig().upload(*plane);
  rig().upload(*rows);
  kvspan_codec_item_t good = {};
  good.rows = {rows->memory, 0, 512, 256, KVSPAN_TYPE_F32, 0};
  good.plane.memory = plane->memory;
  good.plane.row_stride = 256;
  good.plane.head_stride = 128;
  good.type = KVSPAN_TYPE_F16;
  good.row_count = 4;
  good.head_count = 2;
  good.head_size = 64;
  const auto refused = [&](const char* what, auto change) {
    SCOPED_TRACE(what);
    kvspan_codec_item_t item = good;
    change(item);
    for (const bool decode : {false, true}) {
      Lane& lane = rig().lane(KVSPAN_ROLE_COMPUTE);
      Submit submit;
      submit.signal({lane.fence, lane.value + 1});
      const kvspan_result_t result =
          decode ? rig().calls().decode(lane.queue, &item, 1, submit.raw(), nullptr)
                 : rig().calls().encode(lane.queue, &item, 1, submit.raw(), nullptr);
      EXPECT_TRUE(result == KVSPAN_E_INVALID_ARG || result == KVSPAN_E_UNSUPPORTED) << result;
    }
  };
  const uint64_t end = plane->bytes();
  refused("an unknown type", [](auto& i) { i.type = 99; });
  refused("an unknown row type", [](auto& i) { i.rows.type = KVSPAN_TYPE_Q8_0; });
  refused("a block that does not divide the head", [](auto& i) {
    i.type = KVSPAN_TYPE_Q8_0;
    i.head_size = 80;
  });
  refused("no heads", [](auto& i) { i.head_count = 0; });
  refused("no elements", [](auto& i) { i.head_size = 0; });
  refused("rows past their memory", [&](auto& i) { i.rows.offset = end - 256; });
  refused("a plane past its memory", [&](auto& i) { i.plane.offset = end - 256; });
  refused("a row stride that overflows", [](auto& i) { i.rows.row_stride = uint64_t{1} << 63; });
  refused("a plane stride that overflows", [](auto& i) { i.plane.row_stride = uint64_t{1} << 63; });
  refused("a token that overflows", [](auto& i) { i.first_token = UINT64_MAX - 1; });
  refused("no memory of rows", [](auto& i) { i.rows.memory = nullptr; });
  refused("no memory of the plane", [](auto& i) { i.plane.memory = nullptr; });
  const uint32_t list[] = {0};
  refused("a page list that is too short", [&](auto& i) {
    i.plane.page_tokens = 2;
    i.plane.page_stride = 512;
    i.plane.page_list = list;
    i.plane.page_count = 1;
  });
  EXPECT_TRUE(rig().unchanged(*plane));
  EXPECT_TRUE(rig().unchanged(*rows));
}

}  // namespace
}  // namespace kvspan::conformance
