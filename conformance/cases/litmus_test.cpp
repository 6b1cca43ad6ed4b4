// SPDX-License-Identifier: Apache-2.0
// Visibility, many rounds of one message: a payload is written on one side, a point tells the
// other, and whoever has seen the point must see the payload. Between queue and host both ways,
// between two queues, and by a thread that only polls. Payloads from one byte to 64 KiB, so that a
// copy that signals before its last byte is caught at either end. A usual run looks at 20,000
// points a case, --soak at as many times that. One by one: fence_memory_test.cpp.
#include "worker/case.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

constexpr uint64_t kBytesMax = 65536;  // of a message
constexpr uint32_t kSlots = 16;        // of a buffer, a message each
constexpr uint32_t kMessages = 20000;  // a usual run; a million is asked for before a release

class LitmusTest : public PluginTest {
 protected:
  void SetUp() override {
    PluginTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) {
      return;
    }
    kvspan_copy_limits_t limits = {};
    limits.struct_size = sizeof limits;
    ASSERT_EQ(rig().tables().copy->limits(rig().device(), &limits, nullptr), KVSPAN_OK);
    unit_ = std::max({limits.bytes_alignment,
                      limits.source_alignment,
                      limits.target_alignment,
                      limits.fill_alignment,
                      uint64_t{1}});
    depth_ = rig().info().depth_max;
    there_ = rig().allocate(KVSPAN_MEMORY_HOST, kSlots * kBytesMax);
    middle_ = rig().allocate(KVSPAN_MEMORY_DEVICE, kBytesMax);
    back_ = rig().allocate(KVSPAN_MEMORY_HOST, kSlots * kBytesMax);
    for (Buffer* buffer : {there_, middle_, back_}) {
      ASSERT_NE(buffer, nullptr);
      rig().upload(*buffer);
    }
  }

  /// A payload size: small ones often.
  uint64_t size(Dice& dice) const {
    const uint64_t bytes = dice.between(1, uint64_t{1} << dice.between(0, 16));
    return std::min((bytes + unit_ - 1) / unit_ * unit_, kBytesMax);
  }

  static ::testing::AssertionResult holds(const uint8_t* bytes, uint64_t count, uint8_t value) {
    for (uint64_t i = 0; i < count; ++i) {
      if (bytes[i] != value) {
        return ::testing::AssertionFailure() << "byte " << i << " of " << count << " is "
                                             << int{bytes[i]} << ", expected " << int{value};
      }
    }
    return ::testing::AssertionSuccess();
  }

  /// How many messages may be on their way where each takes `submits` places of its queue.
  uint32_t messages_at_once(uint32_t submits) const {
    return std::clamp(depth_ / submits, 1u, kSlots);
  }

  /// What a message consists of: never 0, and another for 254 messages.
  static uint8_t value_of(uint64_t message) { return static_cast<uint8_t>(1 + message % 255); }

  /// The report has how much was looked at: one message says little.
  static void tell(uint64_t count, const char* what) {
    RecordProperty("note",
                   std::to_string(count) + " " + what + " (usual: " + std::to_string(kMessages) +
                       "; --soak 50 gives a million)");
  }

  uint64_t unit_ = 1;
  uint32_t depth_ = 1;
  Buffer* there_ = nullptr;
  Buffer* middle_ = nullptr;
  Buffer* back_ = nullptr;
};

/// Host writes, one queue carries it up, another down, host reads: each sees the one before.
/// Several messages are on their way at once, all through one place of the device.
KVSPAN_CASE(LitmusTest,
            AMessageGoesUpAndDownThroughTwoQueues,
            "KV-FENCE-5 KV-SUBMIT-9",
            cost_ms(700)) {
  Lane& up = rig().lane(KVSPAN_ROLE_UPLOAD);
  Lane& down = rig().lane(KVSPAN_ROLE_DOWNLOAD);
  const bool one_queue = up.queue == down.queue;  // which then holds both halves of a message
  const uint32_t at_once = messages_at_once(one_queue ? 2 : 1);
  Dice dice(settings(), 1);
  const uint32_t rounds = soaked(settings(), kMessages, 300);
  uint64_t bytes[kSlots] = {};
  uint64_t points = 0;
  for (uint32_t round = 0; round < rounds && !HasFailure(); round += at_once) {
    kvspan_point_t arrived[kSlots] = {};
    for (uint32_t slot = 0; slot < at_once; ++slot) {
      const uint64_t at = slot * kBytesMax;
      bytes[slot] = size(dice);
      std::memset(there_->mapped + at, value_of(round + slot), bytes[slot]);
      const kvspan_segment_t first = {there_->memory, middle_->memory, at, 0, bytes[slot], 1, 0, 0};
      const kvspan_segment_t second = {middle_->memory, back_->memory, 0, at, bytes[slot], 1, 0, 0};
      Submit uploads;
      uploads.wait(down.last()).signal(up.next());
      ASSERT_EQ(rig().calls().copy(up.queue, &first, 1, uploads.raw(), nullptr), KVSPAN_OK);
      Submit downloads;
      downloads.wait(up.last()).signal(down.next());
      ASSERT_EQ(rig().calls().copy(down.queue, &second, 1, downloads.raw(), nullptr), KVSPAN_OK);
      arrived[slot] = down.last();
    }
    for (uint32_t slot = 0; slot < at_once; ++slot) {
      SCOPED_TRACE(testing::Message() << "message " << round + slot);
      ASSERT_EQ(rig().wait(arrived[slot]), KVSPAN_OK);
      ASSERT_TRUE(holds(back_->mapped + slot * kBytesMax, bytes[slot], value_of(round + slot)));
      ++points;
    }
  }
  tell(points, "messages seen, each behind a point");
}

/// A thread that never waits, only asks for the value, reads memory behind what it was told.
KVSPAN_CASE(LitmusTest, WhoPollsSeesTheBytesToo, "KV-FENCE-5 KV-FENCE-2", cost_ms(700)) {
  const kvspan_fence_table_t& fences = *rig().tables().fence;
  Lane& lane = rig().lane(KVSPAN_ROLE_DOWNLOAD);
  const uint32_t rounds = soaked(settings(), kMessages, 200);
  const uint32_t at_once = messages_at_once(1);
  std::atomic<uint64_t> bytes[kSlots] = {};  // of the message in the slot, before it is submitted
  std::atomic<uint64_t> seen = 0;            // the last message that the reader is done with
  std::atomic<uint64_t> wrong = 0;           // the first whose bytes were not there
  std::atomic<uint64_t> backward = 0;
  const std::jthread reader([&](const std::stop_token& stop) {
    uint64_t last = 0;
    while (!stop.stop_requested()) {
      uint64_t value = 0;
      if (fences.query(lane.fence, &value, nullptr) != KVSPAN_OK || value < last) {
        backward = last + 1;
      }
      last = value;
      if (seen >= value) {
        std::this_thread::yield();
      }
      while (seen < value) {
        const uint64_t now = seen + 1;
        const uint64_t slot = now % at_once;
        if (!holds(back_->mapped + slot * kBytesMax, bytes[slot], value_of(now)) && wrong == 0) {
          wrong = now;
        }
        seen = now;
      }
    }
  });
  Dice dice(settings(), 2);
  for (uint32_t round = 1; round <= rounds && wrong == 0 && backward == 0; ++round) {
    while (seen + at_once < round && backward == 0) {
      std::this_thread::yield();  // its slot is still read
    }
    const uint64_t slot = round % at_once;
    bytes[slot] = size(dice);
    const kvspan_range_t range = {back_->memory, slot * kBytesMax, bytes[slot]};
    Submit submit;
    submit.signal(lane.next());
    const kvspan_result_t result =
        rig().calls().fill(lane.queue, &range, value_of(round), 1, submit.raw(), nullptr);
    ASSERT_EQ(result, KVSPAN_OK);
    ASSERT_EQ(lane.value, round);
  }
  ASSERT_EQ(rig().wait(lane.last()), KVSPAN_OK);
  while (seen != lane.value && backward == 0) {
    std::this_thread::yield();
  }
  EXPECT_EQ(wrong, 0u) << "the message whose value was seen before its bytes";
  EXPECT_EQ(backward, 0u) << "after that value one went back, or a query failed";
  tell(seen, "messages seen, each behind a point");
}

/// Two queues write the same bytes in turn; each waits for the other, so the last one stays.
KVSPAN_CASE(LitmusTest, TwoQueuesTakeTurnsOnOneByteRange, "KV-SUBMIT-9", cost_ms(400)) {
  Lane* lanes[2] = {&rig().lane(KVSPAN_ROLE_UPLOAD), &rig().lane(KVSPAN_ROLE_COMPUTE)};
  const uint32_t turns = std::max(2u, std::min(16u, rig().info().depth_max));
  Dice dice(settings(), 3);
  const uint32_t rounds = soaked(settings(), kMessages / 16, 30);
  for (uint32_t round = 1; round <= rounds && !HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const uint64_t bytes = size(dice);
    const kvspan_range_t range = {back_->memory, 0, bytes};
    for (uint32_t turn = 1; turn <= turns; ++turn) {
      Lane& mine = *lanes[turn % 2];
      Submit submit;
      submit.wait(lanes[(turn + 1) % 2]->last()).signal(mine.next());
      ASSERT_EQ(rig().calls().fill(mine.queue, &range, turn, 1, submit.raw(), nullptr), KVSPAN_OK);
    }
    ASSERT_EQ(rig().wait(lanes[turns % 2]->last()), KVSPAN_OK);
    ASSERT_TRUE(holds(back_->mapped, bytes, static_cast<uint8_t>(turns)));
  }
  tell(uint64_t{rounds} * turns, "turns behind a point each, the last of a round seen");
}

}  // namespace
}  // namespace kvspan::conformance
