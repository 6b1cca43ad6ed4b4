// SPDX-License-Identifier: Apache-2.0
// The link that the plugin can be asked to model: what a copy takes at least, lines that copies
// share, waits that end at once. No test needs a copy to be fast: times are lower bounds, or of a
// copy that would take an hour.
#include "link.hpp"

#include "rig.hpp"

#include <chrono>

namespace kvspan::cpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr uint64_t kMiB = uint64_t{1} << 20;
// At this rate a MiB takes 291 hours.
constexpr uint64_t kEndlessRate = 1;

Options modelled(uint64_t bytes_s, uint64_t copy_ns = 0) {
  return {1, KVSPAN_UNKNOWN_AMOUNT, {bytes_s, copy_ns}};
}

TEST(Link, ACopyTakesItsBytesAtTheRateAndTheTimeBeforeThem) {
  const LinkModel model{1'000'000'000, 500};
  EXPECT_EQ(model.time_of(2000), nanoseconds(2500));
  EXPECT_EQ(model.time_of(0), nanoseconds(0));
  EXPECT_EQ((LinkModel{0, 500}.time_of(kMiB)), nanoseconds(500));
  EXPECT_GT((LinkModel{1, 0}.time_of(UINT64_MAX)), nanoseconds(1'000'000'000)) << "no overflow";
  EXPECT_FALSE(LinkModel{}.is_there());
}

TEST(Link, CopiesOfALineFollowEachOtherAndAnIdleLineSavesNothingUp) {
  LinkLine line;
  const Clock::time_point zero{std::chrono::hours(1)};
  EXPECT_EQ(line.take(zero, milliseconds(10)), zero + milliseconds(10));
  EXPECT_EQ(line.take(zero + milliseconds(1), milliseconds(10)), zero + milliseconds(20));
  EXPECT_EQ(line.take(zero + milliseconds(50), milliseconds(10)), zero + milliseconds(60));
}

TEST(Link, ACopyThatEndedEarlyFreesItsLineForTheNext) {
  LinkLine line;
  const Clock::time_point zero{std::chrono::hours(1)};
  const Clock::time_point end = line.take(zero, milliseconds(100));
  line.give_back(end, zero + milliseconds(5));
  EXPECT_EQ(line.take(zero, milliseconds(10)), zero + milliseconds(15));
  // One that has its place keeps it.
  const Clock::time_point first = line.take(zero, milliseconds(100));
  const Clock::time_point second = line.take(zero, milliseconds(100));
  line.give_back(first, zero + milliseconds(20));
  EXPECT_EQ(line.take(zero, milliseconds(0)), second);
}

// Submits `bytes` from one HOST memory to another, where each copy has a place of its own: those of
// two queues run side by side.
class LinkRig {
 public:
  explicit LinkRig(const Options& options) : rig(options) {
    source_ = rig.memory(kMiB);
    target_ = rig.memory(kCopiesMax * kMiB);
    void* address = nullptr;
    word_ = rig.memory(64, &address);
    word = static_cast<uint32_t*>(address);
    *word = 0;
  }

  void copy(Line& line, uint64_t bytes) {
    ASSERT_LT(copies_, kCopiesMax);
    const kvspan_segment_t segment{source_, target_, 0, copies_++ * kMiB, bytes, 1, 0, 0};
    rig.expect_ok(rig.submit(line,
                             [&](auto* queue, const auto* submit, auto* error) {
                               kvspan_submit_t with_word = *submit;
                               with_word.cancel_memory = word_;
                               return kCopyTable.copy(queue, &segment, 1, &with_word, error);
                             }),
                  "copy");
  }

  // Whether what was submitted to the line has settled.
  static bool settled(const Line& line) {
    uint64_t value = 0;
    (void)kFenceTable.query(line.fence, &value, nullptr);
    return value >= line.value;
  }

  Rig rig;
  uint32_t* word = nullptr;

 private:
  static constexpr uint64_t kCopiesMax = 16;

  uint64_t copies_ = 0;
  kvspan_memory_t* source_ = nullptr;
  kvspan_memory_t* target_ = nullptr;
  kvspan_memory_t* word_ = nullptr;
};

nanoseconds since(Clock::time_point start) {
  return Clock::now() - start;
}

TEST(Link, CopiesOfADirectionLastAtLeastWhatTheyTakeTogetherOnWhateverQueues) {
  for (const uint32_t role : {KVSPAN_ROLE_UPLOAD, KVSPAN_ROLE_DOWNLOAD}) {
    LinkRig link(modelled(100 * kMiB, 1'000'000));
    Line& line = link.rig.line(role);
    Line& other = link.rig.line(role);
    const Clock::time_point start = Clock::now();
    link.copy(line, kMiB);
    link.copy(line, kMiB);
    link.copy(other, kMiB);
    link.rig.expect_ok(link.rig.wait(line), "wait");
    EXPECT_GE(since(start), milliseconds(22));
    link.rig.expect_ok(link.rig.wait(other), "wait");
    EXPECT_GE(since(start), milliseconds(33)) << "of role " << role;
  }
}

TEST(Link, TheOtherDirectionAndOtherQueuesDoNotWait) {
  LinkRig link(modelled(kEndlessRate));
  Line& up = link.rig.line(KVSPAN_ROLE_UPLOAD);
  link.copy(up, 3600);
  Line& compute = link.rig.line(KVSPAN_ROLE_COMPUTE);
  link.copy(compute, kMiB);
  link.rig.expect_ok(link.rig.wait(compute), "a copy on a compute queue");
  Line& down = link.rig.line(KVSPAN_ROLE_DOWNLOAD);
  link.copy(down, 0);
  link.rig.expect_ok(link.rig.wait(down), "no bytes");
  link.copy(down, 1);
  link.rig.expect_ok(link.rig.wait(down), "a second's byte the other way");
  EXPECT_FALSE(LinkRig::settled(up));
  __atomic_store_n(link.word, 1U, __ATOMIC_RELEASE);
  EXPECT_EQ(link.rig.wait(up), KVSPAN_E_CANCELLED);
}

TEST(Link, ACancelledCopyEndsAtOnceAndFreesTheLine) {
  LinkRig link(modelled(kEndlessRate));
  Line& line = link.rig.line(KVSPAN_ROLE_UPLOAD);
  link.copy(line, 3600);
  EXPECT_FALSE(LinkRig::settled(line));
  __atomic_store_n(link.word, 1U, __ATOMIC_RELEASE);
  EXPECT_EQ(link.rig.wait(line), KVSPAN_E_CANCELLED);
  __atomic_store_n(link.word, 0U, __ATOMIC_RELEASE);
  Line& next = link.rig.line(KVSPAN_ROLE_UPLOAD);
  link.copy(next, 1);
  link.rig.expect_ok(link.rig.wait(next), "the next copy");
}

TEST(Link, ALostDeviceEndsAWaitAtOnceAndCloses) {
  LinkRig link(modelled(kEndlessRate));
  Line& line = link.rig.line(KVSPAN_ROLE_UPLOAD);
  link.copy(line, 3600);
  link.rig.expect_ok(
      kDebugTable.fault(
          link.rig.device, KVSPAN_FAULT_DEVICE, 1, KVSPAN_E_DEVICE_LOST, &link.rig.error),
      "fault");
  Line& other = link.rig.line(KVSPAN_ROLE_COMPUTE);
  link.copy(other, 1);
  EXPECT_EQ(link.rig.wait(other), KVSPAN_E_DEVICE_LOST);
  EXPECT_EQ(link.rig.wait(line), KVSPAN_E_DEVICE_LOST);
}  // and the rig's end destroys the queue whose copy would take an hour

TEST(Link, WhatIsMeasuredIsTheModelledTime) {
  LinkRig link(modelled(100 * kMiB));
  Line& line = link.rig.line(KVSPAN_ROLE_UPLOAD);
  kvspan_memory_t* const from = link.rig.memory(kMiB);
  const kvspan_segment_t segment{from, link.rig.memory(kMiB), 0, 0, kMiB, 1, 0, 0};
  link.rig.settle(line, [&](auto* queue, const auto* submit, auto* error) {
    kvspan_submit_t measured = *submit;
    measured.flags = KVSPAN_SUBMIT_MEASURE;
    return kCopyTable.copy(queue, &segment, 1, &measured, error);
  });
  kvspan_measurement_t measurement{};
  uint32_t count = 0;
  link.rig.expect_ok(kCopyTable.feedback(line.queue, &measurement, 1, &count, &link.rig.error),
                     "feedback");
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(measurement.bytes, kMiB);
  EXPECT_GE(measurement.duration_ns, 9'000'000U);
}

}  // namespace
}  // namespace kvspan::cpu
