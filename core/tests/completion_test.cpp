// SPDX-License-Identifier: Apache-2.0
// Completions on the stub: what orders queues, what makes bytes visible, and what is waited for
// when one is let go. Waits of the fence table are counted, and refused where a test says so.
#include "kvspan/core/memory/completion.hpp"

#include "failing_new.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace kvspan::test {
namespace {

static_assert(!std::is_copy_constructible_v<Completion>);
static_assert(std::is_nothrow_move_constructible_v<Completion>);
static_assert(std::is_nothrow_move_assignable_v<Completion>);

// The stub's waits, counted. A C slot has no place for a context, so tests take turns.
struct Waits {
  const kvspan_fence_table_t* stub = nullptr;
  int count = 0;
  int refuse = 0;  // from now on, as many
  const kvspan_copy_table_t* copy = nullptr;
  int copies = 0;  // an empty one drains a lane whose fence failed
};

Waits*& waits() {
  static Waits* now = nullptr;
  return now;
}

kvspan_result_t KVSPAN_CALL counted_wait(kvspan_device_t* device,
                                         const kvspan_point_t* points,
                                         std::uint32_t count,
                                         std::uint32_t mode,
                                         std::uint64_t timeout_ns,
                                         kvspan_error_t* error) noexcept {
  ++waits()->count;
  if (waits()->refuse != 0) {
    --waits()->refuse;
    return KVSPAN_E_HOST_MEMORY;
  }
  return waits()->stub->wait(device, points, count, mode, timeout_ns, error);
}

kvspan_result_t KVSPAN_CALL counted_copy(kvspan_queue_t* queue,
                                         const kvspan_segment_t* segments,
                                         std::uint32_t count,
                                         const kvspan_submit_t* submit,
                                         kvspan_error_t* error) noexcept {
  ++waits()->copies;
  return waits()->copy->copy(queue, segments, count, submit, error);
}

class CompletionTest : public ::testing::Test {
 protected:
  CompletionTest()
      : rig_(std::map<std::string, std::string>{{"queues", "shuffled"}, {"seed", "1"}}) {
    waits() = &waits_;
    waits_.stub = rig_.backend().tables().fence;
    fences_ = *waits_.stub;
    fences_.wait = counted_wait;
    BackendTables tables = rig_.backend().tables();
    tables.fence = &fences_;
    waits_.copy = tables.copy;
    copies_ = *tables.copy;
    copies_.copy = counted_copy;
    tables.copy = &copies_;
    backend_ = std::make_unique<Backend>(tables, rig_.backend().device(), rig_.backend().info());
    bytes_ = std::move(backend_->allocate(KVSPAN_MEMORY_DEVICE, 1 << 16).value());
    lanes_ = std::make_unique<Lanes>(std::move(Lanes::create(*backend_, {}).value()));
  }

  void TearDown() override {
    lanes_.reset();
    bytes_ = {};
    kvspan_error_t error = empty_error();
    EXPECT_EQ(rig_.close(&error), KVSPAN_OK) << error.message;
  }

  // Work on a lane of its own: fills some bytes.
  Moment work(LaneId lane, const Moment& behind = {}) {
    const auto value = lanes_->submit(
        lane,
        {behind},
        [this](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
          const kvspan_range_t range{bytes_.get(), 0, 1 << 12};
          return backend_->tables().copy->fill(queue, &range, 0x2a, 1, submit, error);
        });
    EXPECT_TRUE(value.has_value()) << value.error().message;
    return Moment::at(lane, value.value_or(0));
  }

  Completion recorded(LaneId lane) {
    Completion completion(*lanes_);
    EXPECT_TRUE(completion.record(work(lane)).has_value());
    return completion;
  }

  StubRig rig_;
  Waits waits_;
  kvspan_fence_table_t fences_{};
  kvspan_copy_table_t copies_{};
  std::unique_ptr<Backend> backend_;
  DeviceMemory bytes_;
  std::unique_ptr<Lanes> lanes_;
};

TEST_F(CompletionTest, NothingRecordedCannotBeWaitedFor) {
  Completion completion(*lanes_);
  EXPECT_EQ(completion.settle().error().code, Errc::invalid_argument);
  EXPECT_EQ(completion.before_read(*lanes_).error().code, Errc::invalid_argument);
  EXPECT_EQ(completion.add_reader({}).error().code, Errc::invalid_argument);
  EXPECT_EQ(completion.record(Moment::at(LaneId::upload, 1)).error().code, Errc::invalid_argument)
      << "a value that no submit has";
  EXPECT_FALSE(completion.is_recorded());
  ASSERT_TRUE(completion.record(work(LaneId::upload)).has_value());
  EXPECT_EQ(completion.record(work(LaneId::upload)).error().code, Errc::invalid_argument);
  EXPECT_EQ(completion.before_read(*lanes_)->of(LaneId::upload), 1U);
}

TEST_F(CompletionTest, OrderingAQueueIsNotVisibility) {
  Completion completion = recorded(LaneId::upload);
  const int before = waits_.count;
  const auto behind = completion.before_read(*lanes_);
  ASSERT_TRUE(behind.has_value());
  ASSERT_TRUE(completion.add_reader(work(LaneId::compute, *behind)).has_value());
  EXPECT_EQ(waits_.count, before) << "no host wait orders queues";
  EXPECT_FALSE(completion.host_sees());
  ASSERT_TRUE(completion.settle().has_value());
  EXPECT_TRUE(completion.host_sees());
  const int settled = waits_.count;
  ASSERT_TRUE(completion.settle().has_value());
  EXPECT_EQ(waits_.count, settled) << "told before";
}

// Letting go has nobody to tell, and no memory for words: it waits all the same.
TEST_F(CompletionTest, WithoutHostMemoryItWaitsForItsWork) {
  const Moment end = work(LaneId::upload);
  {
    Completion completion(*lanes_);
    ASSERT_TRUE(completion.record(end).has_value());
    waits_.refuse = 1;
    fail_new(1, NewFails::from_then_on);
  }
  fail_new(0);
  EXPECT_EQ(waits_.refuse, 0);
  EXPECT_EQ(lanes_->reached(LaneId::upload), end.of(LaneId::upload));
}

TEST_F(CompletionTest, OtherLanesAreRefused) {
  Lanes others = std::move(Lanes::create(*backend_, {}).value());
  const Completion completion = recorded(LaneId::upload);
  const auto refused = completion.before_read(others);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::unsupported);
}

TEST_F(CompletionTest, LettingGoWaitsForProducerAndReaders) {
  const auto all_over = [this](const Moment& end) {
    return lanes_->reached(LaneId::upload) >= end.of(LaneId::upload) &&
           lanes_->reached(LaneId::compute) >= end.of(LaneId::compute) &&
           lanes_->reached(LaneId::download) >= end.of(LaneId::download);
  };
  Moment end;
  {
    Completion completion = recorded(LaneId::upload);
    for (int reader = 0; reader < 16; ++reader) {  // the last of them long behind the producer
      ASSERT_TRUE(completion.add_reader(work(LaneId::compute)).has_value());
      ASSERT_TRUE(completion.add_reader(work(LaneId::download)).has_value());
    }
    end = completion.before_write();
    EXPECT_EQ(end.of(LaneId::compute), 16U);
    EXPECT_EQ(end.of(LaneId::download), 16U);
    EXPECT_FALSE(completion.is_over());
  }
  EXPECT_TRUE(all_over(end));
  Completion completion = recorded(LaneId::upload);
  end = completion.before_write();
  completion = Completion(*lanes_);  // as does taking another in its place
  EXPECT_TRUE(all_over(end));
}

TEST_F(CompletionTest, ForgottenReadersAreNotWaitedFor) {
  const int before = waits_.count;
  {
    Completion completion = recorded(LaneId::upload);
    ASSERT_TRUE(completion.settle().has_value());
    ASSERT_TRUE(completion.add_reader(work(LaneId::compute)).has_value());
    EXPECT_EQ(completion.before_write().of(LaneId::compute), 1U);
    completion.forget_readers();
    EXPECT_EQ(completion.before_write().of(LaneId::compute), 0U);
  }
  EXPECT_EQ(waits_.count, before + 1) << "settle() only";
}

TEST_F(CompletionTest, ARefusedWaitIsAskedAgain) {
  Completion completion = recorded(LaneId::upload);
  waits_.refuse = 1;
  EXPECT_EQ(completion.settle().error().code, Errc::host_memory);
  EXPECT_TRUE(completion.is_recorded());
  EXPECT_FALSE(completion.host_sees());
  EXPECT_TRUE(completion.settle().has_value());
  EXPECT_TRUE(completion.is_over());
}

// Not reached, ever: drained instead, so that nothing writes any more when it is let go.
TEST_F(CompletionTest, FailedWorkIsDrained) {
  {
    rig_.plant(KVSPAN_FAULT_SUBMIT, 1, KVSPAN_E_FAILED);
    Completion completion = recorded(LaneId::upload);
    EXPECT_EQ(completion.settle().error().code, Errc::wait_failed);
    EXPECT_FALSE(completion.host_sees());
    EXPECT_FALSE(completion.is_over());
    (void)work(LaneId::upload);  // behind the failure
    ASSERT_TRUE(completion.add_reader(Moment::at(LaneId::upload, 2)).has_value());
    EXPECT_EQ(waits_.copies, 0);
  }
  EXPECT_EQ(waits_.copies, 1) << "one lane was drained";
  EXPECT_EQ(backend_->tables().memory->release(bytes_.detach(), nullptr), KVSPAN_OK)
      << "something still names the bytes";
}

TEST_F(CompletionTest, MovingTakesTheWaitAlong) {
  Completion first = recorded(LaneId::upload);
  const Moment end = first.before_write();
  {
    const Completion second = std::move(first);
    EXPECT_TRUE(second.is_recorded());
    EXPECT_EQ(second.before_write().of(LaneId::upload), end.of(LaneId::upload));
  }
  EXPECT_GE(lanes_->reached(LaneId::upload), end.of(LaneId::upload));
  // NOLINTNEXTLINE(bugprone-use-after-move,clang-analyzer-cplusplus.Move): it owns nothing now
  EXPECT_FALSE(first.is_recorded());
  const int before = waits_.count;
  first = Completion(*lanes_);
  EXPECT_EQ(waits_.count, before);
}

}  // namespace
}  // namespace kvspan::test
