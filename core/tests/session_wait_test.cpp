// SPDX-License-Identifier: Apache-2.0
// Points that a session is asked to wait for: its own, and those that it never gave out, which it
// refuses at once in place of a wait without end or an answer about somebody else's work.
#include "kvspan/core/session/session.hpp"

#include "cancel_rig.hpp"
#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

namespace kvspan::test {
namespace {

constexpr std::uint32_t kChunk = 11;

class SessionWait : public ::testing::Test {
 protected:
  SessionWait() {
    options_ = small_options();
    options_.prefill_rows_fixed = kChunk;
    options_.arena_bytes = 60'000;
    session_ = open();
    sequence_ = *session_->add_sequence();
    step_ = std::make_unique<AstrayStep>(rig_.backend(), *session_, StepRows{sequence_, kChunk});
  }

  std::unique_ptr<Session> open() {
    auto opened = Session::open(rig_.backend(), options_);
    EXPECT_TRUE(opened.has_value()) << opened.error().message;
    return std::make_unique<Session>(std::move(*opened));
  }

  // Begins a step and attends its first layer.
  static kvspan_point_t attended(AstrayStep& step) {
    for (int at = 0; at < 3; ++at) {
      const auto done = step.call(at);
      EXPECT_TRUE(done.has_value()) << done.error().message;
    }
    return step.point();
  }

  void expect_refused(Session& session, const kvspan_point_t& point) {
    const std::uint64_t tokens = *session.tokens(sequence_);
    const auto waited = session.wait(point);
    ASSERT_FALSE(waited.has_value());
    EXPECT_EQ(waited.error().code, Errc::invalid_argument) << waited.error().message;
    EXPECT_NE(waited.error().message.find(std::to_string(point.value)), std::string::npos)
        << waited.error().message;
    EXPECT_EQ(*session.tokens(sequence_), tokens);
  }

  StubRig rig_;
  SessionOptions options_;
  std::unique_ptr<Session> session_;
  SequenceId sequence_ = 0;
  std::unique_ptr<AstrayStep> step_;
};

TEST_F(SessionWait, ItsOwnPointIsReachedAndMayBeAskedForAgain) {
  const kvspan_point_t point = attended(*step_);
  EXPECT_TRUE(session_->wait(point).has_value());
  EXPECT_TRUE(session_->wait(point).has_value());
}

TEST_F(SessionWait, ValuesThatNothingSignalsAreRefused) {
  kvspan_point_t point = attended(*step_);
  for (const std::uint64_t more : {1U, 2U, 1000U}) {
    expect_refused(*session_, {point.fence, point.value + more});
  }
  expect_refused(*session_, {point.fence, UINT64_MAX});
  expect_refused(*session_, {point.fence, 0});
  // The step goes on.
  EXPECT_TRUE(session_->wait(point).has_value());
  for (int at = 4; at < kCallsOfAStep; ++at) {
    EXPECT_TRUE(step_->call(at).has_value());
  }
  EXPECT_EQ(*session_->tokens(sequence_), kChunk);
}

TEST_F(SessionWait, APointOfAnotherSessionIsRefusedWhateverItsValue) {
  const auto other = open();
  const SequenceId theirs = *other->add_sequence();
  ASSERT_EQ(theirs, sequence_);
  AstrayStep step(rig_.backend(), *other, {theirs, kChunk});
  const kvspan_point_t early = attended(step);
  ASSERT_TRUE(other->wait(early).has_value());
  const kvspan_point_t own = attended(*step_);
  for (int at = 4; at < 6; ++at) {
    ASSERT_TRUE(step.call(at).has_value());
  }
  ASSERT_GT(step.point().value, own.value);
  expect_refused(*session_, early);
  expect_refused(*session_, step.point());
  EXPECT_TRUE(session_->wait(own).has_value());
  EXPECT_TRUE(other->wait(step.point()).has_value());
}

TEST_F(SessionWait, TheEnginesOwnFenceIsRefused) {
  const kvspan_point_t own = attended(*step_);
  const Backend& backend = rig_.backend();
  kvspan_fence_t* fence = nullptr;
  ASSERT_EQ(backend.tables().fence->create(backend.device(), 0, &fence, nullptr), KVSPAN_OK);
  for (const std::uint64_t value : {std::uint64_t{1}, own.value, own.value + 1}) {
    expect_refused(*session_, {fence, value});
  }
  EXPECT_EQ(backend.tables().fence->destroy(fence, nullptr), KVSPAN_OK);
  expect_refused(*session_, {nullptr, 1});
}

// Points of the lanes before a recovery keep their answers, and their fence gets no new ones.
TEST_F(SessionWait, PointsBeforeARecoveryAreAnsweredAsTheyWere) {
  const kvspan_point_t reached = attended(*step_);
  ASSERT_TRUE(session_->wait(reached).has_value());
  rig_.plant(KVSPAN_FAULT_SUBMIT, 1, KVSPAN_E_FAILED);
  ASSERT_TRUE(step_->call(4).has_value());
  ASSERT_TRUE(step_->call(5).has_value());
  const kvspan_point_t lost = step_->point();
  ASSERT_FALSE(session_->wait(lost).has_value());
  EXPECT_TRUE(session_->wait(reached).has_value());
  const auto again = session_->wait(lost);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, Errc::wait_failed);
  expect_refused(*session_, {reached.fence, lost.value + 1});
  const kvspan_point_t next = attended(*step_);
  EXPECT_TRUE(session_->wait(next).has_value());
  EXPECT_TRUE(session_->wait(reached).has_value());
  expect_refused(*session_, {next.fence, next.value + 1});
  // Whatever a call would answer, a cancellation before it comes first, and once.
  for (const kvspan_point_t& point : {reached, lost}) {
    session_->cancel();
    expect_refused(*session_, {nullptr, point.value});
    const auto told = session_->wait(point);
    ASSERT_FALSE(told.has_value());
    EXPECT_EQ(told.error().code, Errc::cancelled);
    const auto after = session_->wait(point);
    EXPECT_TRUE(after ? point.value == reached.value : after.error().code == Errc::wait_failed);
  }
}

}  // namespace
}  // namespace kvspan::test
