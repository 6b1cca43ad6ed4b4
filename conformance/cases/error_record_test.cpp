// SPDX-License-Identifier: Apache-2.0
// The error record and the out parameters of every slot: without a record a call says the same,
// after OK a record holds what it held, after a failure every field is written and every out
// parameter is not. Attention's slots too, where there are any.
#include "worker/case.hpp"
#include "worker/library.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

constexpr uint8_t kPoison = 0xA5;

/// Bytes that a caller finds as he left them, unless somebody wrote.
template <class T>
class Poisoned {
 public:
  Poisoned() { std::memset(&value_, kPoison, sizeof value_); }

  T* get() { return &value_; }

  bool untouched() const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value_);
    return std::all_of(bytes, bytes + sizeof value_, [](uint8_t b) { return b == kPoison; });
  }

 private:
  T value_;
};

kvspan_error_t poisoned_error() {
  kvspan_error_t error;
  std::memset(&error, kPoison, sizeof error);
  error.struct_size = sizeof error;
  return error;
}

/// Whether `text` ends within `capacity` bytes, is not empty and is UTF-8.
::testing::AssertionResult is_sentence(const char* what, const char* text, std::size_t capacity) {
  const std::size_t length = ::strnlen(text, capacity);
  if (length == capacity || length == 0) {
    return ::testing::AssertionFailure() << what << " has no NUL, or no text";
  }
  if (!is_utf8({text, length})) {
    return ::testing::AssertionFailure() << what << " is not UTF-8";
  }
  return ::testing::AssertionSuccess();
}

void expect_full(const kvspan_error_t& error, kvspan_result_t result) {
  constexpr uint64_t kPoison64 = 0xA5A5A5A5A5A5A5A5ull;
  constexpr uint32_t kPoison32 = 0xA5A5A5A5u;
  EXPECT_EQ(error.code, result);
  EXPECT_EQ(error.struct_size, sizeof error);
  EXPECT_LE(error.resource, KVSPAN_RESOURCE_PREPARED);
  EXPECT_EQ(error.flags & ~31u, 0u) << "unknown flags, or not written";
  EXPECT_NE(error.required, kPoison64) << "not written";
  EXPECT_NE(error.provided, kPoison64) << "not written";
  EXPECT_NE(error.missing, kPoison64) << "not written";
  EXPECT_NE(error.submit_id, kPoison64) << "not written";
  EXPECT_LE(error.argument, 8u) << "no slot has so many";
  EXPECT_NE(error.field_offset, kPoison32) << "not written";
  EXPECT_EQ(error.reasons & ~0x3FFFu, 0u) << "unknown reasons, or not written";
  EXPECT_NE(static_cast<uint32_t>(error.native_code), kPoison32) << "not written";
  EXPECT_TRUE(is_sentence("where", error.where, sizeof error.where));
  EXPECT_TRUE(is_sentence("message", error.message, sizeof error.message));
}

class ErrorRecord : public PluginTest {
 protected:
  using Call = std::function<kvspan_result_t(kvspan_error_t*)>;

  /// Fails alike with and without a record; the record is full, `out` as it was.
  template <class Out>
  void expect_failure(const char* slot, Out& out, const Call& call) {
    SCOPED_TRACE(slot);
    const kvspan_result_t silent = call(nullptr);
    EXPECT_LT(silent, 0) << "the call that should fail did not";
    kvspan_error_t error = poisoned_error();
    const kvspan_result_t result = call(&error);
    EXPECT_EQ(result, silent) << "another result with a record than without";
    expect_full(error, result);
    EXPECT_TRUE(out.untouched()) << "KV-STRUCT-4: an out parameter was written";
  }

  void expect_failure(const char* slot, const Call& call) {
    Poisoned<uint64_t> none;
    expect_failure(slot, none, call);
  }

  /// Works twice; the record is as it was.
  void expect_silence(const char* slot, const Call& call) {
    SCOPED_TRACE(slot);
    EXPECT_EQ(call(nullptr), KVSPAN_OK);
    kvspan_error_t error = poisoned_error();
    const kvspan_error_t before = error;
    EXPECT_EQ(call(&error), KVSPAN_OK);
    EXPECT_EQ(std::memcmp(&error, &before, sizeof error), 0) << "the record was written on OK";
  }

  kvspan_queue_t* queue() { return rig().lane(KVSPAN_ROLE_COMPUTE).queue; }
};

KVSPAN_CASE(ErrorRecord, FailuresOfDeviceMemoryAndQueueSlots, "KV-ERROR-1 KV-ERROR-2 KV-STRUCT-4") {
  const Tables& t = rig().tables();
  void* self = rig().plugin_self();
  kvspan_device_t* device = rig().device();
  Poisoned<void*> out;
  Poisoned<uint64_t> number;
  auto** new_device = reinterpret_cast<kvspan_device_t**>(out.get());
  auto** new_memory = reinterpret_cast<kvspan_memory_t**>(out.get());
  auto** new_queue = reinterpret_cast<kvspan_queue_t**>(out.get());
  kvspan_device_info_t info = {};
  info.struct_size = sizeof info;
  expect_failure("device.count", [&](auto* e) { return t.device->count(self, nullptr, e); });
  expect_failure("device.describe",
                 [&](auto* e) { return t.device->describe(self, 12345, &info, e); });
  expect_failure(
      "device.open", out, [&](auto* e) { return t.device->open(self, 12345, new_device, e); });
  expect_failure("device.close", [&](auto* e) { return t.device->close(nullptr, e); });
  expect_failure("device.close, busy", [&](auto* e) { return t.device->close(device, e); });
  expect_failure("device.free_bytes", number, [&](auto* e) {
    return t.device->free_bytes(nullptr, number.get(), e);
  });
  kvspan_prepared_t prepared = {};
  prepared.struct_size = sizeof prepared;
  const kvspan_prepared_t before = prepared;
  expect_failure("device.prepare",
                 [&](auto* e) { return t.device->prepare(device, nullptr, &prepared, e); });
  EXPECT_EQ(std::memcmp(&prepared, &before, sizeof before), 0) << "KV-STRUCT-4";
  expect_failure(
      "memory.alloc", out, [&](auto* e) { return t.memory->alloc(device, 99, 64, new_memory, e); });
  expect_failure("memory.import_host", out, [&](auto* e) {
    return t.memory->import_host(device, nullptr, 4096, new_memory, e);
  });
  expect_failure("memory.map", out, [&](auto* e) { return t.memory->map(nullptr, out.get(), e); });
  expect_failure("memory.release", [&](auto* e) { return t.memory->release(nullptr, e); });
  const kvspan_queue_options_t options = {sizeof options, 99, 0, 0};
  expect_failure("queue.create", out, [&](auto* e) {
    return t.queue->create(device, &options, new_queue, e);
  });
  expect_failure("queue.destroy", [&](auto* e) { return t.queue->destroy(nullptr, e); });
}

KVSPAN_CASE(ErrorRecord, FailuresOfFenceCopyAndCodecSlots, "KV-ERROR-1 KV-ERROR-2 KV-STRUCT-4") {
  const Tables& t = rig().tables();
  kvspan_device_t* device = rig().device();
  Poisoned<void*> out;
  Poisoned<uint64_t> number;
  Poisoned<uint32_t> count;
  auto** new_fence = reinterpret_cast<kvspan_fence_t**>(out.get());
  kvspan_fence_t* fence = rig().fence(7);
  const kvspan_point_t none = {nullptr, 1};
  expect_failure(
      "fence.create", out, [&](auto* e) { return t.fence->create(nullptr, 0, new_fence, e); });
  expect_failure(
      "fence.query", number, [&](auto* e) { return t.fence->query(nullptr, number.get(), e); });
  expect_failure("fence.wait",
                 [&](auto* e) { return t.fence->wait(device, &none, 1, KVSPAN_WAIT_ALL, 0, e); });
  expect_failure("fence.signal", [&](auto* e) { return t.fence->signal(fence, 7, e); });
  expect_failure("fence.fail", [&](auto* e) { return t.fence->fail(fence, KVSPAN_OK, e); });
  expect_failure("fence.destroy", [&](auto* e) { return t.fence->destroy(nullptr, e); });
  Submit submit;
  const kvspan_submit_t* raw = submit.raw();
  kvspan_measurement_t measured = {};
  kvspan_copy_limits_t limits = {};
  limits.struct_size = sizeof limits;
  const kvspan_range_t range = {nullptr, 0, 64};
  const kvspan_codec_item_t item = {};
  kvspan_codec_caps_t caps = {};
  caps.struct_size = sizeof caps;
  expect_failure("copy.copy", [&](auto* e) { return t.copy->copy(queue(), nullptr, 1, raw, e); });
  expect_failure("copy.fill", [&](auto* e) { return t.copy->fill(queue(), &range, 0, 1, raw, e); });
  expect_failure("copy.limits", [&](auto* e) { return t.copy->limits(nullptr, &limits, e); });
  expect_failure("copy.feedback", count, [&](auto* e) {
    return t.copy->feedback(nullptr, &measured, 1, count.get(), e);
  });
  expect_failure("codec.query",
                 [&](auto* e) { return t.codec->query(nullptr, 0, 1, 64, &caps, e); });
  expect_failure("codec.encode",
                 [&](auto* e) { return t.codec->encode(queue(), &item, 1, raw, e); });
  expect_failure("codec.decode",
                 [&](auto* e) { return t.codec->decode(queue(), &item, 1, raw, e); });
}

KVSPAN_CASE(ErrorRecord,
            FailuresOfAttentionAndDebugSlots,
            "KV-ERROR-1 KV-ERROR-2 KV-STRUCT-4",
            needs::attention) {
  const Tables& t = rig().tables();
  Submit submit;
  const kvspan_submit_t* raw = submit.raw();
  kvspan_attention_shape_t shape = {};
  kvspan_attention_caps_t caps = {};
  caps.struct_size = sizeof caps;
  Poisoned<uint32_t> count;
  expect_failure("attention.query",
                 [&](auto* e) { return t.attention->query(rig().device(), &shape, &caps, e); });
  expect_failure("attention.rules", count, [&](auto* e) {
    return t.attention->rules(nullptr, nullptr, 0, count.get(), e);
  });
  kvspan_attention_args_t args = {};
  args.struct_size = sizeof args;
  const kvspan_state_t state = {};
  expect_failure("attention.run",
                 [&](auto* e) { return t.attention->run(queue(), &args, raw, e); });
  expect_failure("attention.advance",
                 [&](auto* e) { return t.attention->advance(queue(), &args, nullptr, 1, raw, e); });
  expect_failure("attention.fold",
                 [&](auto* e) { return t.attention->fold(queue(), &args, nullptr, 1, raw, e); });
  expect_failure("attention.finish",
                 [&](auto* e) { return t.attention->finish(queue(), &args, &state, raw, e); });
  if (t.debug != nullptr) {
    expect_failure("debug.fault", [&](auto* e) {
      return t.debug->fault(nullptr, KVSPAN_FAULT_SUBMIT, 1, KVSPAN_E_INTERNAL, e);
    });
    expect_failure("debug.counters",
                   [&](auto* e) { return t.debug->counters(rig().device(), nullptr, e); });
  }
}

KVSPAN_CASE(ErrorRecord, SuccessOfEverySlotLeavesTheRecordAlone, "KV-ERROR-1 KV-ERROR-2") {
  const Tables& t = rig().tables();
  void* self = rig().plugin_self();
  kvspan_device_t* device = rig().device();
  uint32_t count = 0;
  uint64_t number = 0;
  kvspan_device_info_t info = {};
  info.struct_size = sizeof info;
  kvspan_copy_limits_t limits = {};
  limits.struct_size = sizeof limits;
  kvspan_codec_caps_t caps = {};
  caps.struct_size = sizeof caps;
  Buffer* buffer = rig().allocate(KVSPAN_MEMORY_HOST, 4096);
  void* address = nullptr;
  expect_silence("device.count", [&](auto* e) { return t.device->count(self, &count, e); });
  expect_silence("device.describe",
                 [&](auto* e) { return t.device->describe(self, settings().device, &info, e); });
  expect_silence("device.open, close", [&](auto* e) {
    kvspan_device_t* other = nullptr;
    const kvspan_result_t result = t.device->open(self, settings().device, &other, e);
    return result != KVSPAN_OK ? result : t.device->close(other, e);
  });
  expect_silence("device.free_bytes",
                 [&](auto* e) { return t.device->free_bytes(device, &number, e); });
  expect_silence("memory.alloc, release", [&](auto* e) {
    kvspan_memory_t* made = nullptr;
    const kvspan_result_t result = t.memory->alloc(device, KVSPAN_MEMORY_HOST, 64, &made, e);
    return result != KVSPAN_OK ? result : t.memory->release(made, e);
  });
  expect_silence("memory.map", [&](auto* e) { return t.memory->map(buffer->memory, &address, e); });
  expect_silence("fence.create, signal, query, wait, fail, destroy", [&](auto* e) {
    kvspan_fence_t* made = nullptr;
    kvspan_result_t result = t.fence->create(device, 0, &made, e);
    const kvspan_point_t point = {made, 2};
    result = result != KVSPAN_OK ? result : t.fence->signal(made, 2, e);
    result = result != KVSPAN_OK ? result : t.fence->query(made, &number, e);
    result = result != KVSPAN_OK ? result
                                 : t.fence->wait(device, &point, 1, KVSPAN_WAIT_ALL, UINT64_MAX, e);
    result = result != KVSPAN_OK ? result : t.fence->fail(made, KVSPAN_E_FAILED, e);
    return result != KVSPAN_OK ? result : t.fence->destroy(made, e);
  });
  Lane& lane = rig().lane(KVSPAN_ROLE_COMPUTE);
  const kvspan_range_t range = {buffer->memory, 0, 4096};
  const auto settled = [&](const char* slot, auto work) {
    expect_silence(slot, [&](auto* e) {
      Submit submit;
      submit.signal(lane.next());
      const kvspan_result_t result = work(submit.raw(), e);
      return result != KVSPAN_OK ? result : rig().wait(lane.last(), e);
    });
  };
  settled("copy.copy",
          [&](const auto* s, auto* e) { return t.copy->copy(lane.queue, nullptr, 0, s, e); });
  settled("copy.fill",
          [&](const auto* s, auto* e) { return t.copy->fill(lane.queue, &range, 1, 1, s, e); });
  settled("codec.encode",
          [&](const auto* s, auto* e) { return t.codec->encode(lane.queue, nullptr, 0, s, e); });
  settled("codec.decode",
          [&](const auto* s, auto* e) { return t.codec->decode(lane.queue, nullptr, 0, s, e); });
  expect_silence("copy.limits", [&](auto* e) { return t.copy->limits(device, &limits, e); });
  expect_silence("copy.feedback",
                 [&](auto* e) { return t.copy->feedback(lane.queue, nullptr, 0, &count, e); });
  expect_silence("codec.query",
                 [&](auto* e) { return t.codec->query(device, 0, 1, 64, &caps, e); });
}

/// A failure that is noticed by a wait, a query and a signal names its submit in each.
KVSPAN_CASE(ErrorRecord,
            LateFailuresNameTheirSubmit,
            "KV-ERROR-4 KV-SUBMIT-2",
            needs::fault_submit) {
  const Tables& t = rig().tables();
  Lane& lane = rig().lane(KVSPAN_ROLE_COMPUTE);
  Buffer* buffer = rig().allocate(KVSPAN_MEMORY_HOST, 4096);
  const kvspan_range_t range = {buffer->memory, 0, 4096};
  for (const uint64_t bad : {1u, 3u, 5u}) {
    SCOPED_TRACE(testing::Message() << "submit " << bad << " of 5 fails");
    ASSERT_EQ(t.debug->fault(rig().device(), KVSPAN_FAULT_SUBMIT, bad, KVSPAN_E_INTERNAL, nullptr),
              KVSPAN_OK);
    std::vector<kvspan_point_t> points;
    for (uint64_t i = 1; i <= 5; ++i) {
      points.push_back({rig().fence(), 1});
      Submit submit;
      submit.signal(points.back());
      submit.fields.submit_id = 1000 + i;
      ASSERT_EQ(t.copy->fill(lane.queue, &range, i, 1, submit.raw(), nullptr), KVSPAN_OK)
          << "a planted failure is accepted first";
    }
    for (uint64_t i = 1; i <= 5; ++i) {
      kvspan_error_t error = fresh_error();
      const kvspan_result_t result = rig().wait(points[i - 1], &error);
      ASSERT_EQ(result, i == bad ? KVSPAN_E_INTERNAL : KVSPAN_OK) << "submit " << i;
    }
    const auto names_it = [&](const char* slot, const Call& call) {
      kvspan_error_t error = fresh_error();
      EXPECT_EQ(call(&error), KVSPAN_E_INTERNAL) << slot;
      EXPECT_EQ(error.submit_id, 1000 + bad) << slot;
      EXPECT_NE(error.flags & KVSPAN_ERROR_ASYNC, 0u) << slot;
    };
    const kvspan_point_t failed = points[bad - 1];
    uint64_t value = 0;
    names_it("fence.wait", [&](auto* e) { return rig().wait(failed, e); });
    names_it("fence.query", [&](auto* e) { return t.fence->query(failed.fence, &value, e); });
    names_it("fence.signal", [&](auto* e) { return t.fence->signal(failed.fence, 9, e); });
  }
}

}  // namespace
}  // namespace kvspan::conformance
