// SPDX-License-Identifier: Apache-2.0
// Visibility, many rounds of one message: a payload is written on one side, a point tells the
// other, and whoever has seen the point must see the payload. Between queue and host both ways,
// between two queues, and by a thread that only polls. Payloads from one byte to 64 KiB, so that a
// copy that signals before its last byte is caught at either end. One by one:
// fence_memory_test.cpp.
#include "worker/case.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

constexpr uint64_t kBytesMax = 65536;

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
    there_ = rig().allocate(KVSPAN_MEMORY_HOST, kBytesMax);
    middle_ = rig().allocate(KVSPAN_MEMORY_DEVICE, kBytesMax);
    back_ = rig().allocate(KVSPAN_MEMORY_HOST, kBytesMax);
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

  uint64_t unit_ = 1;
  Buffer* there_ = nullptr;
  Buffer* middle_ = nullptr;
  Buffer* back_ = nullptr;
};

/// Host writes, one queue carries it up, another down, host reads: each sees the one before.
KVSPAN_CASE(LitmusTest,
            AMessageGoesUpAndDownThroughTwoQueues,
            "KV-FENCE-5 KV-SUBMIT-9",
            cost_ms(400)) {
  Lane& up = rig().lane(KVSPAN_ROLE_UPLOAD);
  Lane& down = rig().lane(KVSPAN_ROLE_DOWNLOAD);
  Dice dice(settings(), 1);
  for (uint32_t round = 1; round <= cases(settings(), 4000, 300) && !HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const uint64_t bytes = size(dice);
    const auto value = static_cast<uint8_t>(1 + round % 255);
    std::memset(there_->mapped, value, bytes);
    const kvspan_segment_t first = {there_->memory, middle_->memory, 0, 0, bytes, 1, 0, 0};
    const kvspan_segment_t second = {middle_->memory, back_->memory, 0, 0, bytes, 1, 0, 0};
    Submit uploads;
    uploads.wait(down.last()).signal(up.next());
    ASSERT_EQ(rig().calls().copy(up.queue, &first, 1, uploads.raw(), nullptr), KVSPAN_OK);
    Submit downloads;
    downloads.wait(up.last()).signal(down.next());
    ASSERT_EQ(rig().calls().copy(down.queue, &second, 1, downloads.raw(), nullptr), KVSPAN_OK);
    ASSERT_EQ(rig().wait(down.last()), KVSPAN_OK);
    ASSERT_TRUE(holds(back_->mapped, bytes, value));
  }
}

/// A thread that never waits, only asks for the value, reads memory behind what it was told.
KVSPAN_CASE(LitmusTest, WhoPollsSeesTheBytesToo, "KV-FENCE-5 KV-FENCE-2", cost_ms(400)) {
  const kvspan_fence_table_t& fences = *rig().tables().fence;
  Lane& lane = rig().lane(KVSPAN_ROLE_DOWNLOAD);
  const uint32_t rounds = cases(settings(), 3000, 200);
  std::atomic<uint64_t> asked = 0;  // round << 32 | bytes
  std::atomic<uint64_t> seen = 0;   // rounds that the reader is done with
  std::atomic<uint64_t> wrong = 0;  // the first round whose bytes were not there
  std::atomic<uint64_t> backward = 0;
  const std::jthread reader([&](const std::stop_token& stop) {
    uint64_t last = 0;
    while (!stop.stop_requested()) {
      const uint64_t now = asked;
      if (now >> 32 == seen) {
        std::this_thread::yield();
        continue;
      }
      uint64_t value = 0;
      if (fences.query(lane.fence, &value, nullptr) != KVSPAN_OK || value < last) {
        backward = now >> 32;
      }
      last = value;
      if (value >= now >> 32) {
        const auto expected = static_cast<uint8_t>(1 + (now >> 32) % 255);
        const bool right = static_cast<bool>(holds(back_->mapped, now & UINT32_MAX, expected));
        wrong = wrong == 0 && !right ? now >> 32 : wrong.load();
        seen = now >> 32;
      }
    }
  });
  Dice dice(settings(), 2);
  for (uint32_t round = 1; round <= rounds && wrong == 0 && backward == 0; ++round) {
    const uint64_t bytes = size(dice);
    const kvspan_range_t range = {back_->memory, 0, bytes};
    Submit submit;
    submit.signal(lane.next());
    ASSERT_EQ(rig().calls().fill(lane.queue, &range, 1 + round % 255, 1, submit.raw(), nullptr),
              KVSPAN_OK);
    ASSERT_EQ(lane.value, round);
    asked = (uint64_t{round} << 32) | bytes;
    while (seen != round && backward == 0) {
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(wrong, 0u) << "the round whose value was seen before its bytes";
  EXPECT_EQ(backward, 0u) << "the round in which a value went back, or a query failed";
}

/// Two queues write the same bytes in turn; each waits for the other, so the last one stays.
KVSPAN_CASE(LitmusTest, TwoQueuesTakeTurnsOnOneByteRange, "KV-SUBMIT-9", cost_ms(400)) {
  Lane* lanes[2] = {&rig().lane(KVSPAN_ROLE_UPLOAD), &rig().lane(KVSPAN_ROLE_COMPUTE)};
  const uint32_t turns = std::max(2u, std::min(16u, rig().info().depth_max));
  Dice dice(settings(), 3);
  for (uint32_t round = 1; round <= cases(settings(), 300, 30) && !HasFailure(); ++round) {
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
}

}  // namespace
}  // namespace kvspan::conformance
