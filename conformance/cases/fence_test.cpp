// SPDX-License-Identifier: Apache-2.0
// Fences and submits, rule by rule: values grow, failures stay, waits end when they should and
// never early, full queues and busy objects say so. What a reached point lets one read:
// fence_memory_test.cpp. Random orders: fence_random_test.cpp. Attention's wait points:
// refusal_attention_test.cpp.
#include "worker/case.hpp"

#include <algorithm>
#include <chrono>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

class FenceTest : public PluginTest {
 protected:
  const kvspan_fence_table_t& fences() { return *rig().tables().fence; }

  kvspan_result_t wait(const std::vector<kvspan_point_t>& points,
                       uint32_t mode,
                       uint64_t timeout_ns,
                       kvspan_error_t* error = nullptr) {
    return fences().wait(rig().device(),
                         points.data(),
                         static_cast<uint32_t>(points.size()),
                         mode,
                         timeout_ns,
                         error);
  }

  uint64_t value_of(kvspan_fence_t* fence) {
    uint64_t value = 0;
    EXPECT_EQ(fences().query(fence, &value, nullptr), KVSPAN_OK);
    return value;
  }

  /// Submits work that stays pending: behind a host signal where the device waits for those, which
  /// open_gate() gives, else a large copy.
  void send_slow(Lane& lane, const Buffer& source, const Buffer& target) {
    Submit submit;
    if (rig().has(KVSPAN_DEVICE_WAIT_HOST)) {
      gate_ = rig().fence();
      submit.wait({gate_, 1});
    }
    submit.signal(lane.next());
    ASSERT_EQ(rig().copy(lane, source, target, submit), KVSPAN_OK);
  }

  void open_gate() {
    if (gate_ != nullptr) {
      EXPECT_EQ(fences().signal(gate_, 1, nullptr), KVSPAN_OK);
      gate_ = nullptr;
    }
  }

  kvspan_fence_t* gate_ = nullptr;
};

KVSPAN_CASE(FenceTest, HostSignalsOnlyGrow, "KV-FENCE-7 KV-FENCE-2") {
  kvspan_fence_t* fence = rig().fence(5);
  EXPECT_EQ(value_of(fence), 5u);
  EXPECT_EQ(fences().signal(fence, 5, nullptr), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(fences().signal(fence, 4, nullptr), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(fences().signal(fence, 6, nullptr), KVSPAN_OK);
  EXPECT_EQ(value_of(fence), 6u);
  ASSERT_GE(rig().info().fence_delta_max, (uint64_t{1} << 31) - 1);
  EXPECT_EQ(fences().signal(fence, 6 + (uint64_t{1} << 31) - 1, nullptr), KVSPAN_OK);
  if (rig().info().fence_delta_max < UINT64_MAX / 2) {
    const uint64_t far = value_of(fence) + rig().info().fence_delta_max + 1;
    EXPECT_EQ(fences().signal(fence, far, nullptr), KVSPAN_E_INVALID_ARG);
  }
}

KVSPAN_CASE(FenceTest,
            AFailureIsForGoodAndKeepsItsFirstCause,
            "KV-FENCE-2 KV-FENCE-3 KV-FENCE-8 KV-ERROR-4") {
  kvspan_fence_t* fence = rig().fence(3);
  EXPECT_EQ(fences().fail(fence, KVSPAN_OK, nullptr), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(fences().fail(fence, KVSPAN_TIMEOUT, nullptr), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(value_of(fence), 3u);
  EXPECT_EQ(fences().fail(fence, KVSPAN_E_FAILED, nullptr), KVSPAN_OK);
  EXPECT_EQ(fences().fail(fence, KVSPAN_E_CANCELLED, nullptr), KVSPAN_OK);
  uint64_t value = 0;
  kvspan_error_t error = fresh_error();
  EXPECT_EQ(fences().query(fence, &value, &error), KVSPAN_E_FAILED);
  EXPECT_EQ(error.code, KVSPAN_E_FAILED);
  EXPECT_NE(error.flags & KVSPAN_ERROR_ASYNC, 0u);
  EXPECT_EQ(value, 3u) << "the last value reached";
  EXPECT_EQ(fences().signal(fence, 4, nullptr), KVSPAN_E_FAILED);
  EXPECT_EQ(wait({{fence, 3}}, KVSPAN_WAIT_ALL, 0), KVSPAN_OK) << "reached before the failure";
  EXPECT_EQ(wait({{fence, 4}}, KVSPAN_WAIT_ALL, UINT64_MAX), KVSPAN_E_FAILED);
}

KVSPAN_CASE(FenceTest, WaitsForAllAndForAny, "KV-FENCE-6 KV-FENCE-10") {
  kvspan_fence_t* reached = rig().fence(9);
  kvspan_fence_t* pending = rig().fence(0);
  kvspan_fence_t* failed = rig().fence(0);
  ASSERT_EQ(fences().fail(failed, KVSPAN_E_FAILED, nullptr), KVSPAN_OK);
  const kvspan_point_t yes = {reached, 9};
  const kvspan_point_t not_yet = {pending, 1};
  const kvspan_point_t never = {failed, 1};
  EXPECT_EQ(wait({}, KVSPAN_WAIT_ALL, 0), KVSPAN_OK);
  EXPECT_EQ(wait({}, KVSPAN_WAIT_ANY, 0), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(wait({yes}, KVSPAN_WAIT_ALL, 0), KVSPAN_OK);
  EXPECT_EQ(wait({yes, not_yet}, KVSPAN_WAIT_ALL, 0), KVSPAN_TIMEOUT);
  EXPECT_EQ(wait({yes, not_yet}, KVSPAN_WAIT_ANY, 0), KVSPAN_OK);
  EXPECT_EQ(wait({yes, never}, KVSPAN_WAIT_ALL, UINT64_MAX), KVSPAN_E_FAILED);
  EXPECT_EQ(wait({not_yet, never}, KVSPAN_WAIT_ALL, UINT64_MAX), KVSPAN_E_FAILED);
  EXPECT_EQ(wait({never, yes}, KVSPAN_WAIT_ANY, UINT64_MAX), KVSPAN_OK);
  EXPECT_EQ(wait({yes}, 7, 0), KVSPAN_E_INVALID_ARG) << "an unknown mode";
  EXPECT_EQ(wait({{nullptr, 1}}, KVSPAN_WAIT_ALL, 0), KVSPAN_E_INVALID_ARG);
}

KVSPAN_CASE(FenceTest, TimeoutsAreNeverEarly, "KV-FENCE-4") {
  kvspan_fence_t* fence = rig().fence(0);
  EXPECT_EQ(wait({{fence, 1}}, KVSPAN_WAIT_ALL, 0), KVSPAN_TIMEOUT);
  for (const int64_t nanoseconds : {1, 300'000, 2'000'000}) {
    for (int again = 0; again < 10; ++again) {  // a busy machine hides what comes early once
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_EQ(wait({{fence, 1}}, KVSPAN_WAIT_ALL, static_cast<uint64_t>(nanoseconds)),
                KVSPAN_TIMEOUT);
      EXPECT_GE((std::chrono::steady_clock::now() - begin).count(), nanoseconds);
    }
  }
  EXPECT_EQ(fences().signal(fence, 1, nullptr), KVSPAN_OK);
  EXPECT_EQ(wait({{fence, 1}}, KVSPAN_WAIT_ALL, 0), KVSPAN_OK);
}

KVSPAN_CASE(FenceTest, AskingNeverBlocks, "KV-FENCE-4") {
  kvspan_fence_t* fence = rig().fence(0);
  const auto begin = std::chrono::steady_clock::now();
  const auto in_time = [begin] {
    return std::chrono::steady_clock::now() - begin < std::chrono::seconds(2);
  };
  for (int again = 0; again < 20 && in_time(); ++again) {
    EXPECT_EQ(wait({{fence, 1}}, KVSPAN_WAIT_ALL, 0), KVSPAN_TIMEOUT);
    EXPECT_EQ(wait({{fence, 1}}, KVSPAN_WAIT_ANY, 0), KVSPAN_TIMEOUT);
    EXPECT_EQ(value_of(fence), 0u);
  }
  EXPECT_TRUE(in_time()) << "twenty polls that cost microseconds";
}

KVSPAN_CASE(FenceTest, ValuesHaveSixtyFourBits, "KV-FENCE-2 KV-FENCE-7") {
  for (const uint64_t initial : {uint64_t{1} << 40, (uint64_t{1} << 32) - 1, uint64_t{1} << 63}) {
    kvspan_fence_t* fence = rig().fence(initial);
    EXPECT_EQ(value_of(fence), initial);
    EXPECT_EQ(wait({{fence, initial + 1}}, KVSPAN_WAIT_ALL, 0), KVSPAN_TIMEOUT);
    EXPECT_EQ(fences().signal(fence, initial, nullptr), KVSPAN_E_INVALID_ARG);
    EXPECT_EQ(fences().signal(fence, initial + 1, nullptr), KVSPAN_OK);
    EXPECT_EQ(value_of(fence), initial + 1);
    EXPECT_EQ(wait({{fence, initial + 1}}, KVSPAN_WAIT_ALL, 0), KVSPAN_OK);
  }
}

KVSPAN_CASE(FenceTest, FencesOfAnotherDeviceAreRefused, "KV-FENCE-1") {
  kvspan_device_t* other = nullptr;
  ASSERT_EQ(rig().tables().device->open(rig().plugin_self(), 0, &other, nullptr), KVSPAN_OK);
  kvspan_fence_t* foreign = nullptr;
  ASSERT_EQ(fences().create(other, 0, &foreign, nullptr), KVSPAN_OK);
  EXPECT_EQ(wait({{foreign, 0}}, KVSPAN_WAIT_ALL, 0), KVSPAN_E_INVALID_ARG);
  Lane& lane = rig().lane(KVSPAN_ROLE_UPLOAD);
  Submit waits;
  waits.wait({foreign, 0});
  EXPECT_EQ(rig().calls().copy(lane.queue, nullptr, 0, waits.raw(), nullptr), KVSPAN_E_INVALID_ARG);
  Submit signals;
  signals.signal({foreign, 1});
  EXPECT_EQ(rig().calls().copy(lane.queue, nullptr, 0, signals.raw(), nullptr),
            KVSPAN_E_INVALID_ARG);
  uint64_t value = 1;
  EXPECT_EQ(fences().query(foreign, &value, nullptr), KVSPAN_OK);
  EXPECT_EQ(value, 0u) << "nothing was signalled";
  EXPECT_EQ(rig().tables().device->close(other, nullptr), KVSPAN_E_BUSY) << "its fence lives";
  EXPECT_EQ(fences().destroy(foreign, nullptr), KVSPAN_OK);
  EXPECT_EQ(rig().tables().device->close(other, nullptr), KVSPAN_OK);
}

KVSPAN_CASE(FenceTest, SignalsOfSubmitsStrictlyIncrease, "KV-SUBMIT-6") {
  Lane& lane = rig().lane(KVSPAN_ROLE_UPLOAD);
  const auto submit = [&](uint64_t value) {
    Submit made;
    made.signal({lane.fence, value});
    return rig().calls().copy(lane.queue, nullptr, 0, made.raw(), nullptr);
  };
  EXPECT_EQ(submit(5), KVSPAN_OK);
  EXPECT_EQ(submit(5), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(submit(4), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(submit(7), KVSPAN_OK);
  EXPECT_EQ(wait({{lane.fence, 7}}, KVSPAN_WAIT_ALL, UINT64_MAX), KVSPAN_OK);
  EXPECT_EQ(value_of(lane.fence), 7u);
  lane.value = 7;
}

KVSPAN_CASE(FenceTest, AWaitForWhatNobodySubmittedIsRefusedOrHonoured, "KV-SUBMIT-5") {
  Lane& lane = rig().lane(KVSPAN_ROLE_UPLOAD);
  kvspan_fence_t* fence = rig().fence(0);
  Submit submit;
  submit.wait({fence, 1}).signal(lane.next());
  const kvspan_result_t result = rig().calls().copy(lane.queue, nullptr, 0, submit.raw(), nullptr);
  if (!rig().has(KVSPAN_DEVICE_WAIT_HOST) && !rig().has(KVSPAN_DEVICE_WAIT_UNSUBMITTED)) {
    EXPECT_EQ(result, KVSPAN_E_UNSUPPORTED);
    EXPECT_EQ(value_of(lane.fence), 0u);
    --lane.value;
    return;
  }
  ASSERT_EQ(result, KVSPAN_OK);
  EXPECT_EQ(wait({lane.last()}, KVSPAN_WAIT_ALL, 1'000'000), KVSPAN_TIMEOUT);
  EXPECT_EQ(fences().signal(fence, 1, nullptr), KVSPAN_OK);
  EXPECT_EQ(wait({lane.last()}, KVSPAN_WAIT_ALL, UINT64_MAX), KVSPAN_OK);
}

KVSPAN_CASE(FenceTest,
            AFullQueueSaysExactlyHowDeepItWouldHaveToBe,
            "KV-SUBMIT-8 KV-SUBMIT-1 KV-ERROR-3",
            needs::queues_four) {
  constexpr uint32_t kDepth = 3;
  Lane lane = rig().extra_lane(KVSPAN_ROLE_UPLOAD, kDepth);
  Buffer* source = rig().allocate(KVSPAN_MEMORY_HOST, uint64_t{4} << 20);
  Buffer* target = rig().allocate(KVSPAN_MEMORY_DEVICE, uint64_t{4} << 20);
  send_slow(lane, *source, *target);
  uint32_t accepted = 1;
  kvspan_result_t result = KVSPAN_OK;
  kvspan_error_t error = fresh_error();
  while (result == KVSPAN_OK && accepted < 200) {
    Submit submit;
    submit.signal(lane.next());
    result = rig().copy(lane, *source, *target, submit, &error);
    accepted += result == KVSPAN_OK ? 1u : 0u;
  }
  open_gate();
  if (result == KVSPAN_OK) {
    EXPECT_EQ(rig().wait(lane.last()), KVSPAN_OK);
    return inconclusive("the device finishes work faster than it can be submitted");
  }
  --lane.value;
  EXPECT_EQ(result, KVSPAN_E_QUEUE_FULL);
  EXPECT_EQ(error.resource, KVSPAN_RESOURCE_QUEUE_DEPTH);
  EXPECT_EQ(error.required, kDepth + 1u);
  EXPECT_EQ(error.provided, kDepth);
  EXPECT_EQ(error.missing, 1u);
  EXPECT_GE(accepted, kDepth);
  if (rig().has(KVSPAN_DEVICE_WAIT_HOST)) {
    EXPECT_EQ(accepted, kDepth) << "nothing could have settled behind the gate";
  }
  EXPECT_EQ(rig().wait(lane.last()), KVSPAN_OK) << "the refused submit signals nothing";
  EXPECT_EQ(value_of(lane.fence), accepted);
  Submit again;
  again.signal(lane.next());
  EXPECT_EQ(rig().copy(lane, *source, *target, again), KVSPAN_OK) << "and one fits again";
  EXPECT_EQ(rig().wait(lane.last()), KVSPAN_OK);
}

KVSPAN_CASE(FenceTest,
            WhatPendingWorkNamesIsBusy,
            "KV-MEMORY-5 KV-FENCE-9 KV-QUEUE-2",
            needs::queues_eight) {
  uint32_t busy_queues = 0;
  uint32_t busy_memories = 0;
  uint32_t busy_fences = 0;
  for (uint32_t round = 0; round < 8; ++round) {
    Buffer* source = rig().allocate(KVSPAN_MEMORY_HOST, uint64_t{2} << 20);
    Buffer* target = rig().allocate(KVSPAN_MEMORY_DEVICE, uint64_t{2} << 20);
    Lane lane;
    kvspan_queue_options_t options = {sizeof options, KVSPAN_ROLE_UPLOAD, 0, 0};
    ASSERT_EQ(rig().tables().queue->create(rig().device(), &options, &lane.queue, nullptr),
              KVSPAN_OK);
    lane.fence = rig().fence();
    kvspan_fence_t* extra = nullptr;
    ASSERT_EQ(fences().create(rig().device(), 0, &extra, nullptr), KVSPAN_OK);
    send_slow(lane, *source, *target);
    Submit names;
    names.signal({extra, 1});
    ASSERT_EQ(rig().copy(lane, *source, *target, names), KVSPAN_OK);
    kvspan_memory_t* memory = target->memory;
    const bool memory_busy = rig().tables().memory->release(memory, nullptr) == KVSPAN_E_BUSY;
    const bool fence_busy = fences().destroy(extra, nullptr) == KVSPAN_E_BUSY;
    const bool queue_busy = rig().tables().queue->destroy(lane.queue, nullptr) == KVSPAN_E_BUSY;
    open_gate();
    EXPECT_EQ(rig().wait(lane.last()), KVSPAN_OK);
    if (fence_busy) {
      EXPECT_EQ(wait({{extra, 1}}, KVSPAN_WAIT_ALL, UINT64_MAX), KVSPAN_OK);
      EXPECT_EQ(fences().destroy(extra, nullptr), KVSPAN_OK) << "no longer named";
    }
    if (queue_busy) {
      EXPECT_EQ(rig().tables().queue->destroy(lane.queue, nullptr), KVSPAN_OK);
    }
    if (!memory_busy) {
      rig().forget(target);
    }
    busy_memories += memory_busy ? 1u : 0u;
    busy_fences += fence_busy ? 1u : 0u;
    busy_queues += queue_busy ? 1u : 0u;
  }
  if (rig().has(KVSPAN_DEVICE_WAIT_HOST)) {
    EXPECT_EQ(busy_memories, 8u);
    EXPECT_EQ(busy_fences, 8u);
    EXPECT_EQ(busy_queues, 8u);
  } else {
    EXPECT_GT(busy_memories + busy_fences + busy_queues, 0u) << "nothing was ever pending";
  }
}

KVSPAN_CASE(FenceTest,
            WorkBehindAFailedPointFailsWithIt,
            "KV-SUBMIT-3 KV-SUBMIT-2 KV-ERROR-4",
            needs::queues_eight) {
  Buffer* target = rig().allocate(KVSPAN_MEMORY_HOST, 4096);
  rig().upload(*target);
  kvspan_fence_t* failed = rig().fence(0);
  ASSERT_EQ(fences().fail(failed, KVSPAN_E_FAILED, nullptr), KVSPAN_OK);
  Lane first = rig().extra_lane(KVSPAN_ROLE_UPLOAD);
  Lane second = rig().extra_lane(KVSPAN_ROLE_COMPUTE);
  Submit waits;
  waits.wait({failed, 1}).signal(first.next());
  ASSERT_EQ(rig().fill(first, *target, 1, waits), KVSPAN_OK);
  Submit follows;
  follows.wait(first.last()).signal(second.next());
  ASSERT_EQ(rig().fill(second, *target, 2, follows), KVSPAN_OK);
  kvspan_error_t error = fresh_error();
  EXPECT_EQ(rig().wait(second.last(), &error), KVSPAN_E_WAIT_FAILED);
  EXPECT_NE(error.flags & KVSPAN_ERROR_ASYNC, 0u);
  EXPECT_EQ(rig().wait(first.last()), KVSPAN_E_WAIT_FAILED);
  if (rig().has(KVSPAN_DEVICE_FAIL_STOPS)) {
    EXPECT_TRUE(rig().unchanged(*target)) << "the work did not even start";
  }
  Lane& healthy = rig().lane(KVSPAN_ROLE_COMPUTE);
  Submit works;
  works.signal(healthy.next());
  EXPECT_EQ(rig().fill(healthy, *target, 3, works), KVSPAN_OK);
  EXPECT_EQ(rig().wait(healthy.last()), KVSPAN_OK) << "other work goes on";
  const kvspan_point_t end = {rig().fence(), 1};
  Submit reuses;
  reuses.signal(end);
  EXPECT_EQ(rig().fill(first, *target, 4, reuses), KVSPAN_OK) << "and so does the queue";
  EXPECT_EQ(rig().wait(end), KVSPAN_OK);
}

KVSPAN_CASE(FenceTest,
            ASetCancelWordCancelsOrCompletesAndTheQueueGoesOn,
            "KV-SUBMIT-7",
            needs::queues_four) {
  Buffer* word = rig().allocate(KVSPAN_MEMORY_HOST, 4096);
  Buffer* target = rig().allocate(KVSPAN_MEMORY_HOST, 8192);
  std::fill(word->image.begin(), word->image.end(), uint8_t{0});
  word->image[128] = 1;
  rig().upload(*word);
  rig().upload(*target);
  Lane lane = rig().extra_lane(KVSPAN_ROLE_COMPUTE);
  kvspan_fence_t* done = rig().fence();
  Submit submit;
  submit.signal({done, 1}).cancel(*word, 128);
  submit.fields.submit_id = 4242;
  const kvspan_range_t range = {target->memory, 0, 4096};
  ASSERT_EQ(rig().calls().fill(lane.queue, &range, 0x5A, 1, submit.raw(), nullptr), KVSPAN_OK);
  kvspan_error_t error = fresh_error();
  const kvspan_result_t result = rig().wait({done, 1}, &error);
  EXPECT_TRUE(result == KVSPAN_OK || result == KVSPAN_E_CANCELLED) << told(result, error);
  EXPECT_TRUE(result == KVSPAN_OK || error.submit_id == 4242u);
  const Bytes now = rig().download(*target);
  EXPECT_TRUE(std::equal(now.begin() + 4096, now.end(), target->image.begin() + 4096));
  EXPECT_TRUE(rig().unchanged(*word)) << "the plugin never writes the word";
  Submit next;
  next.signal(lane.next());
  ASSERT_EQ(rig().fill(lane, *target, 7, next), KVSPAN_OK);
  EXPECT_EQ(rig().wait(lane.last()), KVSPAN_OK);
}

// KV-DEVICE-4; that every destroy and close then succeeds, the end of the test checks.
KVSPAN_CASE(FenceTest,
            ALostDeviceEndsEveryWaitAndSaysWhatIsEnough,
            "KV-DEVICE-4",
            needs::fault_device,
            needs::queues_eight) {
  const kvspan_debug_table_t* debug = rig().tables().debug;
  ASSERT_EQ(debug->fault(rig().device(), KVSPAN_FAULT_DEVICE, 1, KVSPAN_E_DEVICE_LOST, nullptr),
            KVSPAN_OK);
  Buffer* target = rig().allocate(KVSPAN_MEMORY_HOST, 4096);
  Lane first = rig().extra_lane(KVSPAN_ROLE_UPLOAD);
  Lane second = rig().extra_lane(KVSPAN_ROLE_COMPUTE);
  Submit lost;
  lost.signal(first.next());
  ASSERT_EQ(rig().fill(first, *target, 1, lost), KVSPAN_OK) << "accepted, lost afterwards";
  Submit after;
  after.wait(first.last()).signal(second.next());
  const kvspan_result_t accepted = rig().fill(second, *target, 2, after);
  EXPECT_TRUE(accepted == KVSPAN_OK || accepted == KVSPAN_E_DEVICE_LOST) << accepted;
  kvspan_error_t error = fresh_error();
  EXPECT_EQ(rig().wait(first.last(), &error), KVSPAN_E_DEVICE_LOST);
  EXPECT_NE(error.flags & KVSPAN_ERROR_STICKY, 0u);
  EXPECT_NE(error.flags & (KVSPAN_ERROR_REOPEN_DEVICE | KVSPAN_ERROR_RESTART_PROCESS), 0u);
  EXPECT_LT(rig().wait(second.last()), 0) << "what nobody will ever signal has failed too";
  Submit late;
  EXPECT_EQ(rig().fill(first, *target, 3, late), KVSPAN_E_DEVICE_LOST);
}

}  // namespace
}  // namespace kvspan::conformance
