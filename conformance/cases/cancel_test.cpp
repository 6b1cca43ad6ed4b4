// SPDX-License-Identifier: Apache-2.0
// Cancelling at random moments, from another thread, while work is queued or runs: every point
// settles, reached or CANCELLED; nothing outside the destinations is written; what was reached is
// whole; the word stays as the host wrote it; the queue goes on. A word set before the submit:
// fence_test.cpp.
#include "worker/case.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(core);

constexpr uint64_t kPart = 16384;  // bytes of a segment, with as many of guard behind it
constexpr uint64_t kParts = 16;

/// A thread that sets the cancel word of a round after so many turns of a loop.
class Canceller {
 public:
  explicit Canceller(uint32_t* word) : word_(word) {}

  void order(uint32_t round, uint64_t turns) { order_ = (uint64_t{round} << 32) | turns; }

  void wait_until_obeyed(uint32_t round) const {
    while (obeyed_ != round) {
      std::this_thread::yield();
    }
  }

 private:
  void work(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const uint64_t now = order_.exchange(0);
      if (now == 0) {
        std::this_thread::yield();
        continue;
      }
      for (std::atomic<uint32_t> turn = 0; turn < static_cast<uint32_t>(now); ++turn) {
      }
      std::atomic_ref<uint32_t>(*word_).store(1, std::memory_order_release);
      obeyed_ = static_cast<uint32_t>(now >> 32);
    }
  }

  uint32_t* word_;
  std::atomic<uint64_t> order_ = 0;  // round << 32 | turns; 0 = nothing to do
  std::atomic<uint32_t> obeyed_ = 0;
  std::jthread thread_{[this](const std::stop_token& stop) { work(stop); }};  // ends first
};

class CancelTest : public PluginTest {
 protected:
  void SetUp() override {
    PluginTest::SetUp();
    if (HasFatalFailure() || IsSkipped()) {
      return;
    }
    word_ = rig().allocate(KVSPAN_MEMORY_HOST, 4096);
    source_ = rig().allocate(KVSPAN_MEMORY_HOST, 2 * kPart * kParts);
    target_ = rig().allocate(KVSPAN_MEMORY_HOST, 2 * kPart * kParts);
    spot_ = rig().allocate(KVSPAN_MEMORY_HOST, 8192);
    ASSERT_NE(spot_, nullptr);
    ASSERT_NE(word_, nullptr);
    ASSERT_NE(source_, nullptr);
    ASSERT_NE(target_, nullptr);
    ASSERT_NE(word_->mapped, nullptr);
    rig().upload(*source_);
    rig().upload(*target_);
    for (uint64_t part = 0; part < kParts; ++part) {
      const uint64_t at = 2 * part * kPart;
      segments_.push_back({source_->memory, target_->memory, at, at, kPart, 1, 0, 0});
    }
  }

  uint32_t* word() { return reinterpret_cast<uint32_t*>(word_->mapped + kWordOffset); }

  static uint64_t id_of(uint32_t round, std::size_t submit) {
    return uint64_t{round} * 10 + submit;
  }

  /// Submits the whole copy `count` times, each with the word, an id and a fence of its own: a
  /// failed fence never recovers.
  std::vector<kvspan_fence_t*> submit_copies(uint32_t round, uint32_t count);
  /// Waits for them and ends the fences. Whether the last one was reached: a cancelled one behind a
  /// reached one would leave anything.
  bool settle_copies(uint32_t round, const std::vector<kvspan_fence_t*>& fences);
  /// A fill that may be cancelled too, on another queue, settled and checked.
  void fill_with_the_word(uint8_t byte);
  void play(uint32_t round, Canceller& canceller);

  /// Guards are as they were; where the copy was reached, its parts are the source's.
  void expect_right(bool reached) {
    const Bytes now = rig().download(*target_);
    for (uint64_t part = 0; part < kParts; ++part) {
      const uint64_t at = 2 * part * kPart;
      ASSERT_EQ(std::memcmp(&now[at + kPart], &target_->image[at + kPart], kPart), 0)
          << "bytes behind segment " << part << " were written";
      ASSERT_TRUE(!reached || std::memcmp(&now[at], &source_->image[at], kPart) == 0)
          << "segment " << part << " of a copy that was reached is not there";
    }
  }

  static constexpr uint64_t kWordOffset = 64;
  Buffer* word_ = nullptr;
  Buffer* source_ = nullptr;
  Buffer* target_ = nullptr;
  Buffer* spot_ = nullptr;
  std::vector<kvspan_segment_t> segments_;
  uint32_t cancelled_ = 0;
};

std::vector<kvspan_fence_t*> CancelTest::submit_copies(uint32_t round, uint32_t count) {
  Lane& lane = rig().lane(KVSPAN_ROLE_UPLOAD);
  std::vector<kvspan_fence_t*> fences;
  for (uint32_t i = 0; i < count; ++i) {
    fences.push_back(rig().fence());
    Submit submit;
    submit.signal({fences.back(), 1}).cancel(*word_, kWordOffset);
    submit.fields.submit_id = id_of(round, i);
    EXPECT_EQ(rig().calls().copy(lane.queue, segments_.data(), kParts, submit.raw(), nullptr),
              KVSPAN_OK);
  }
  return fences;
}

bool CancelTest::settle_copies(uint32_t round, const std::vector<kvspan_fence_t*>& fences) {
  bool reached = false;
  for (std::size_t i = 0; i < fences.size(); ++i) {
    kvspan_error_t error = fresh_error();
    const kvspan_result_t result = rig().wait({fences[i], 1}, &error);
    EXPECT_TRUE(result == KVSPAN_OK || result == KVSPAN_E_CANCELLED) << told(result, error);
    EXPECT_TRUE(result == KVSPAN_OK || error.submit_id == id_of(round, i)) << "another submit's id";
    cancelled_ += result == KVSPAN_E_CANCELLED ? 1u : 0u;
    reached = result == KVSPAN_OK;
    rig().destroy(fences[i]);
  }
  return reached;
}

void CancelTest::fill_with_the_word(uint8_t byte) {
  constexpr uint64_t kHalf = 4096;
  std::memset(spot_->mapped, 0xEE, 2 * kHalf);
  const kvspan_range_t range = {spot_->memory, 0, kHalf};
  const kvspan_point_t done = {rig().fence(), 1};
  Submit submit;
  submit.signal(done).cancel(*word_, kWordOffset);
  kvspan_queue_t* queue = rig().lane(KVSPAN_ROLE_COMPUTE).queue;
  ASSERT_EQ(rig().calls().fill(queue, &range, byte, 1, submit.raw(), nullptr), KVSPAN_OK);
  const kvspan_result_t result = rig().wait(done);
  ASSERT_TRUE(result == KVSPAN_OK || result == KVSPAN_E_CANCELLED) << result;
  for (uint64_t i = 0; i < 2 * kHalf; ++i) {
    ASSERT_TRUE(i < kHalf ? result != KVSPAN_OK || spot_->mapped[i] == byte
                          : spot_->mapped[i] == 0xEE)
        << "byte " << i << " is " << int{spot_->mapped[i]} << " after result " << result;
  }
  rig().destroy(done.fence);
}

void CancelTest::play(uint32_t round, Canceller& canceller) {
  Dice dice(settings(), round);
  std::atomic_ref<uint32_t>(*word()).store(0, std::memory_order_release);
  if (round % 16 == 0) {
    rig().upload(*target_);
  }
  const auto count = static_cast<uint32_t>(dice.between(1, std::min(4u, rig().info().depth_max)));
  const uint64_t when = dice.below(4);  // set already; set while we submit; else afterwards
  const uint64_t turns = dice.below(uint64_t{1} << dice.between(2, 15));
  if (when == 0) {
    std::atomic_ref<uint32_t>(*word()).store(1, std::memory_order_release);
  } else if (when == 1) {
    canceller.order(round, turns);
  }
  const std::vector<kvspan_fence_t*> fences = submit_copies(round, count);
  if (when > 1) {
    canceller.order(round, turns);
  }
  fill_with_the_word(static_cast<uint8_t>(1 + round % 255));
  const bool reached = settle_copies(round, fences);
  if (when != 0) {
    canceller.wait_until_obeyed(round);
  }
  expect_right(reached);
  EXPECT_EQ(std::atomic_ref<uint32_t>(*word()).load(), 1u) << "the plugin wrote the word";
  Lane& lane = rig().lane(KVSPAN_ROLE_UPLOAD);
  Submit next;
  next.signal(lane.next());
  ASSERT_EQ(rig().calls().copy(lane.queue, segments_.data(), 1, next.raw(), nullptr), KVSPAN_OK)
      << "the queue goes on";
  ASSERT_EQ(rig().wait(lane.last()), KVSPAN_OK);
}

KVSPAN_CASE(CancelTest,
            AtAnyMomentSettlesAndWritesNothingElse,
            "KV-SUBMIT-7 KV-SUBMIT-2",
            cost_ms(900)) {
  Canceller canceller(word());
  for (uint32_t round = 1; round <= cases(settings(), 1000, 50) && !HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    play(round, canceller);
  }
  RecordProperty("cancelled", static_cast<int>(cancelled_));
  if (rig().info().cancel == KVSPAN_CANCEL_NONE) {
    EXPECT_EQ(cancelled_, 0u) << "the device says that it never sees the word";
  }
}

/// What info.cancel promises: a word that is set while the work still waits is seen before it
/// starts.
KVSPAN_CASE(CancelTest, AWordSetBeforeTheWorkStartsIsSeen, "KV-SUBMIT-7", needs::wait_host) {
  Lane& lane = rig().lane(KVSPAN_ROLE_UPLOAD);
  for (uint32_t round = 1; round <= 8; ++round) {
    kvspan_fence_t* gate = rig().fence();
    const kvspan_point_t done = {rig().fence(), 1};
    Submit submit;
    submit.wait({gate, 1}).signal(done).cancel(*word_, kWordOffset);
    std::atomic_ref<uint32_t>(*word()).store(0);
    ASSERT_EQ(rig().calls().copy(lane.queue, segments_.data(), kParts, submit.raw(), nullptr),
              KVSPAN_OK);
    std::atomic_ref<uint32_t>(*word()).store(round, std::memory_order_release);
    ASSERT_EQ(rig().tables().fence->signal(gate, 1, nullptr), KVSPAN_OK);
    const kvspan_result_t result = rig().wait(done);
    ASSERT_EQ(result, rig().info().cancel == KVSPAN_CANCEL_NONE ? KVSPAN_OK : KVSPAN_E_CANCELLED);
    expect_right(result == KVSPAN_OK);
  }
}

/// Whatever says that it is done is whole, though the word was set before the submit.
KVSPAN_CASE(CancelTest, WhatSaysItIsDoneIsWhole, "KV-SUBMIT-7") {
  constexpr uint32_t kRows = 16;
  constexpr uint64_t kRowBytes = 256;
  constexpr uint64_t kUsed = kRows * kRowBytes;
  std::atomic_ref<uint32_t>(*word()).store(1, std::memory_order_release);
  Buffer* rows = rig().allocate(KVSPAN_MEMORY_HOST, kUsed);
  Buffer* plane = rig().allocate(KVSPAN_MEMORY_HOST, kUsed);
  kvspan_codec_item_t item = {};
  item.rows = {rows->memory, 0, kRowBytes, kRowBytes, KVSPAN_TYPE_F32, 0};
  item.plane.memory = plane->memory;
  item.plane.row_stride = item.plane.head_stride = kRowBytes;
  item.type = KVSPAN_TYPE_F32;  // stored as they are
  item.row_count = kRows;
  item.head_count = 1;
  item.head_size = 64;
  for (uint32_t round = 1; round <= 8 && !HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    fill_with_the_word(static_cast<uint8_t>(round));
    rig().upload(*target_);
    expect_right(settle_copies(round, submit_copies(round, 1)));
    for (const bool decode : {false, true}) {
      Buffer& source = decode ? *plane : *rows;
      const Buffer& target = decode ? *rows : *plane;
      const std::vector<float> values(kUsed / 4,
                                      static_cast<float>(round) + (decode ? 0.5F : 0.0F));
      std::memcpy(source.mapped, values.data(), kUsed);
      const kvspan_point_t done = {rig().fence(), 1};
      Submit submit;
      submit.signal(done).cancel(*word_, kWordOffset);
      kvspan_queue_t* queue = rig().lane(KVSPAN_ROLE_COMPUTE).queue;
      ASSERT_EQ(decode ? rig().calls().decode(queue, &item, 1, submit.raw(), nullptr)
                       : rig().calls().encode(queue, &item, 1, submit.raw(), nullptr),
                KVSPAN_OK);
      const kvspan_result_t result = rig().wait(done);
      ASSERT_TRUE(result == KVSPAN_OK || result == KVSPAN_E_CANCELLED) << result;
      ASSERT_TRUE(result != KVSPAN_OK || std::memcmp(target.mapped, values.data(), kUsed) == 0)
          << (decode ? "decode" : "encode") << " was reached and is not there";
      rig().destroy(done.fence);
    }
  }
}

/// Work of many items whose word is set already settles as cancelled, or at least at once.
KVSPAN_CASE(CancelTest,
            ManyItemsEndSoonAfterTheWordIsSet,
            "KV-SUBMIT-7",
            needs::cancel_items,
            cost_ms(300)) {
  constexpr uint64_t kItemBytes = uint64_t{64} << 10;
  kvspan_copy_limits_t limits = {};
  limits.struct_size = sizeof limits;
  ASSERT_EQ(rig().tables().copy->limits(rig().device(), &limits, nullptr), KVSPAN_OK);
  const uint32_t items = std::min(512u, limits.segments_max);
  Buffer* from = rig().allocate(KVSPAN_MEMORY_HOST, items * kItemBytes);
  Buffer* to = rig().allocate(KVSPAN_MEMORY_DEVICE, items * kItemBytes);
  ASSERT_NE(to, nullptr);
  std::vector<kvspan_segment_t> all;
  for (uint64_t at = 0; at < items * kItemBytes; at += kItemBytes) {
    all.push_back({from->memory, to->memory, at, at, kItemBytes, 1, 0, 0});
  }
  uint32_t cancelled = 0;
  const auto fastest = [&](uint32_t set) {
    std::atomic_ref<uint32_t>(*word()).store(set, std::memory_order_release);
    auto least = std::chrono::steady_clock::duration::max();
    for (int round = 0; round < 4; ++round) {
      const kvspan_point_t done = {rig().fence(), 1};
      Submit submit;
      submit.signal(done).cancel(*word_, kWordOffset);
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_EQ(rig().calls().copy(
                    rig().lane(KVSPAN_ROLE_UPLOAD).queue, all.data(), items, submit.raw(), nullptr),
                KVSPAN_OK);
      const kvspan_result_t result = rig().wait(done);
      least = std::min(least, std::chrono::steady_clock::now() - begin);
      EXPECT_TRUE(result == KVSPAN_OK || (set != 0 && result == KVSPAN_E_CANCELLED)) << result;
      cancelled += result == KVSPAN_E_CANCELLED ? 1u : 0u;
      rig().destroy(done.fence);
    }
    return least;
  };
  const auto whole = fastest(0);
  const auto stopped = fastest(1);
  EXPECT_TRUE(cancelled != 0 || stopped < whole / 4)
      << "none of four was cancelled, and the fastest took " << stopped.count() << " ns of "
      << whole.count() << ", though the device says that it sees the word between items";
}

}  // namespace
}  // namespace kvspan::conformance
