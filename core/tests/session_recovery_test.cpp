// SPDX-License-Identifier: Apache-2.0
// What happens while a session recovers: a cancellation, a refused object, a point of work that
// fell. Each was found by the simulator first.
#include "kvspan/core/session/session.hpp"

#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <utility>

namespace kvspan::test {
namespace {

constexpr std::uint32_t kChunk = 11;

// Called before the slot; anything but OK is the slot's answer.
struct Intercepted {
  BackendTables real;
  std::function<kvspan_result_t()> queue_create;
  std::function<kvspan_result_t()> queue_destroy;
  std::function<kvspan_result_t()> fence_destroy;
};

Intercepted* intercepted = nullptr;  // slots are plain functions, and a test has one device

kvspan_result_t queue_create(kvspan_device_t* device,
                             const kvspan_queue_options_t* options,
                             kvspan_queue_t** out,
                             kvspan_error_t* error) noexcept {
  const kvspan_result_t result =
      intercepted->queue_create ? intercepted->queue_create() : KVSPAN_OK;
  return result == KVSPAN_OK ? intercepted->real.queue->create(device, options, out, error)
                             : result;
}

kvspan_result_t queue_destroy(kvspan_queue_t* queue, kvspan_error_t* error) noexcept {
  const kvspan_result_t result =
      intercepted->queue_destroy ? intercepted->queue_destroy() : KVSPAN_OK;
  return result == KVSPAN_OK ? intercepted->real.queue->destroy(queue, error) : result;
}

kvspan_result_t fence_destroy(kvspan_fence_t* fence, kvspan_error_t* error) noexcept {
  const kvspan_result_t result =
      intercepted->fence_destroy ? intercepted->fence_destroy() : KVSPAN_OK;
  return result == KVSPAN_OK ? intercepted->real.fence->destroy(fence, error) : result;
}

class RecoveryTest : public ::testing::Test {
 protected:
  RecoveryTest() { intercepted = &calls_; }

  ~RecoveryTest() override {
    calls_.queue_create = calls_.queue_destroy = calls_.fence_destroy = {};
    engine_.reset();
    session_.reset();
    intercepted = nullptr;
  }

  RecoveryTest(const RecoveryTest&) = delete;
  RecoveryTest& operator=(const RecoveryTest&) = delete;
  RecoveryTest(RecoveryTest&&) = delete;
  RecoveryTest& operator=(RecoveryTest&&) = delete;

  // A session with 33 tokens, and its engine.
  void open(const std::string& queues = "one") {
    calls_.queue_create = calls_.queue_destroy = calls_.fence_destroy = {};
    engine_.reset();
    session_.reset();
    rig_ = std::make_unique<StubRig>(
        std::map<std::string, std::string>{{"queues", queues}, {"seed", "3"}});
    calls_.real = rig_->backend().tables();
    queue_table_ = *calls_.real.queue;
    queue_table_.create = queue_create;
    queue_table_.destroy = queue_destroy;
    BackendTables tables = calls_.real;
    tables.queue = &queue_table_;
    fence_table_ = *calls_.real.fence;
    fence_table_.destroy = fence_destroy;
    tables.fence = &fence_table_;
    backend_ = std::make_unique<Backend>(tables, rig_->backend().device(), rig_->backend().info());
    options_ = small_options();
    options_.prefill_rows_fixed = kChunk;
    options_.arena_bytes = 60'000;
    auto opened = Session::open(*backend_, options_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    session_ = std::make_unique<Session>(std::move(*opened));
    sequence_ = *session_->add_sequence();
    engine_ = std::make_unique<Engine>(*backend_, *session_, options_, 64);
    for (std::uint64_t token = 0; token < 33; token += kChunk) {
      ASSERT_TRUE(step(token).has_value());
    }
  }

  Result<void> step(std::uint64_t token) {
    return engine_->step({{sequence_, 7, token, kChunk}}, Phase::prefill, nullptr);
  }

  std::uint64_t tokens() { return *session_->tokens(sequence_); }

  Intercepted calls_;
  kvspan_queue_table_t queue_table_{};
  kvspan_fence_table_t fence_table_{};
  std::unique_ptr<StubRig> rig_;
  std::unique_ptr<Backend> backend_;
  SessionOptions options_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Engine> engine_;
  SequenceId sequence_ = 0;
};

TEST_F(RecoveryTest, ACancellationDuringItIsToldByTheNextCall) {
  ASSERT_NO_FATAL_FAILURE(open());
  bool once = true;
  calls_.queue_create = [&] {
    if (std::exchange(once, false)) {
      session_->cancel();
    }
    return KVSPAN_OK;
  };
  rig_->plant(KVSPAN_FAULT_SUBMIT, 1, KVSPAN_E_FAILED);
  const auto failed = step(33);
  ASSERT_FALSE(failed.has_value());
  EXPECT_FALSE(once) << "the recovery makes queues";
  ASSERT_NE(failed.error().code, Errc::cancelled);
  const auto told = step(tokens());
  ASSERT_FALSE(told.has_value());
  EXPECT_EQ(told.error().code, Errc::cancelled);
  EXPECT_TRUE(step(tokens()).has_value());
}

TEST_F(RecoveryTest, CancelDoesNotWaitForItsDevice) {
  ASSERT_NO_FATAL_FAILURE(open());
  std::future<void> cancelling;
  bool came_back = false;
  calls_.queue_destroy = [&] {
    if (!cancelling.valid()) {
      cancelling = std::async(std::launch::async, [&] { session_->cancel(); });
      came_back = cancelling.wait_for(std::chrono::seconds(5)) == std::future_status::ready;
    }
    return KVSPAN_OK;
  };
  rig_->plant(KVSPAN_FAULT_SUBMIT, 1, KVSPAN_E_FAILED);
  EXPECT_FALSE(step(33).has_value());
  EXPECT_TRUE(cancelling.valid()) << "the recovery ends the old queues";
  EXPECT_TRUE(came_back);
  calls_.queue_destroy = {};
}

// A copy down fails behind its commit, and the first try to recover is refused a queue: whoever was
// told that the tokens are there is told when they are not any more.
TEST_F(RecoveryTest, ASecondTryTellsThatTokensFell) {
  int fell = 0;
  for (std::uint64_t nth = 1; nth <= 12; ++nth) {
    SCOPED_TRACE("submit " + std::to_string(nth));
    ASSERT_NO_FATAL_FAILURE(open());
    rig_->plant(KVSPAN_FAULT_SUBMIT, nth, KVSPAN_E_FAILED);
    bool once = true;
    calls_.queue_create = [&] {
      return std::exchange(once, false) ? KVSPAN_E_HOST_MEMORY : KVSPAN_OK;
    };
    if (step(33)) {
      (void)step(tokens());
    }
    rig_->plant(0, 0, KVSPAN_OK);
    const StepRows rows{sequence_, kChunk};
    for (bool begun = false; !begun;) {
      const std::uint64_t told = tokens();
      begun = session_->begin_step({&rows, 1}, Phase::prefill).has_value();
      if (begun) {
        EXPECT_EQ(tokens(), told);
      }
      fell += begun ? 0 : 1;
      ASSERT_LT(fell, 40);
    }
    session_->cancel_step();
    EXPECT_TRUE(step(tokens()).has_value());
  }
  EXPECT_GT(fell, 0) << "no submit was a copy down behind its commit";
}

// A point of a step that fell: an answer, not a wait without end.
TEST_F(RecoveryTest, APointOfFallenWorkIsAnswered) {
  ASSERT_NO_FATAL_FAILURE(open());
  Buffer rows = make_buffer(*backend_, 64, 4, 32);
  const StepRows part{sequence_, kChunk};
  ASSERT_TRUE(session_->begin_step({&part, 1}, Phase::prefill).has_value());
  WriteRows write;
  write.k = write.v = rows.rows();
  AttendRows attend;
  attend.q = attend.out = rows.rows();
  attend.scale = 1.0F;
  rig_->plant(KVSPAN_FAULT_SUBMIT, 1, KVSPAN_E_FAILED);
  ASSERT_TRUE(session_->write(0, write).has_value());
  const auto point = session_->attend(0, attend);
  ASSERT_TRUE(point.has_value()) << point.error().message;
  ASSERT_FALSE(session_->wait(*point).has_value());
  const auto again = session_->wait(*point);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, Errc::wait_failed);
  EXPECT_EQ(tokens(), 33U);
  EXPECT_TRUE(step(33).has_value());
}

// Work of the engine still waits for a point that fell: its fence is given back later, not lost.
TEST_F(RecoveryTest, AFenceThatTheEnginesWorkNamesIsGivenBackLater) {
  ASSERT_NO_FATAL_FAILURE(open());
  int queues = 0;  // behind the third old queue come the old fences, not those that drain
  int busy = 0;
  calls_.queue_destroy = [&] {
    ++queues;
    return KVSPAN_OK;
  };
  calls_.fence_destroy = [&] { return queues >= 3 && ++busy <= 3 ? KVSPAN_E_BUSY : KVSPAN_OK; };
  rig_->plant(KVSPAN_FAULT_SUBMIT, 1, KVSPAN_E_FAILED);
  EXPECT_FALSE(step(33).has_value());
  EXPECT_GE(busy, 3) << "the recovery gives the old fences back";
  EXPECT_TRUE(step(33).has_value());
  calls_.queue_destroy = calls_.fence_destroy = {};
  engine_.reset();
  session_.reset();
  kvspan_error_t error = empty_error();
  EXPECT_EQ(rig_->close(&error), KVSPAN_OK) << error.message;
}

}  // namespace
}  // namespace kvspan::test
