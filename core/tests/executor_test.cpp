// SPDX-License-Identifier: Apache-2.0
// Executors and pins over an arena whose parent nobody touches: what is launched, what is refused,
// and the order in which things are given up, also when each callback fails.
#include "kvspan/core/memory/executor.hpp"

#include "kvspan/core/memory/arena.hpp"

#include "failing_new.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvspan {
namespace {

using test::fail_new;
using test::new_has_failed;
using test::NewFails;
using ::testing::ElementsAre;

static_assert(!std::is_copy_constructible_v<Pin> && !std::is_copy_constructible_v<Executable>);
static_assert(std::is_nothrow_move_constructible_v<Pin>);

// Regions 1 and 2 are persistent, region 3 is not. What happens is written down.
class ExecutorTest : public ::testing::Test {
 protected:
  ExecutorTest() : arena_(make_arena()), executor_(make_executor()) {}

  Arena make_arena() {
    auto made = Arena::create({reinterpret_cast<kvspan_memory_t*>(&object_), 4096},
                              64,
                              [this](kvspan_memory_t*) { log_.emplace_back("parent"); });
    EXPECT_TRUE(made->begin() && made->reserve(1, 256, 64, {true}) &&
                made->reserve(2, 256, 64, {true}) && made->reserve(3, 256, 64) && made->commit());
    return std::move(*made);
  }

  Executor make_executor() {
    return Executor([this](const Moment& end) -> Result<void> {
      waited_ = end;
      log_.emplace_back("wait");
      return in_wait_ ? in_wait_() : Result<void>();
    });
  }

  Executable make_executable() {
    return {reinterpret_cast<kvspan_graph_s*>(&graph_), [this](kvspan_graph_s*) -> Result<void> {
              log_.emplace_back("destroy " + std::to_string(arena_ ? arena_->lease_count() : 0));
              return in_destroy_ ? in_destroy_() : Result<void>();
            }};
  }

  std::vector<Lease> leases(const std::vector<std::uint64_t>& ids) {
    std::vector<Lease> held;
    held.reserve(ids.size());
    for (const std::uint64_t id : ids) {
      held.push_back(std::move(arena_->acquire(id).value()));
    }
    return held;
  }

  std::vector<Binding> bindings(const std::vector<std::uint64_t>& ids) const {
    std::vector<Binding> of;
    of.reserve(ids.size());
    for (const std::uint64_t id : ids) {
      of.push_back({reinterpret_cast<kvspan_memory_t*>(const_cast<std::uint64_t*>(&object_)),
                    arena_->find(id).value()});
    }
    return of;
  }

  void capture(const std::vector<std::uint64_t>& ids, std::uint64_t revision = 1) {
    Executable executable = make_executable();
    std::vector<Lease> held = leases(ids);
    const auto captured = executor_->capture(executable, held, revision);
    ASSERT_TRUE(captured.has_value()) << captured.error().message;
  }

  // A commit that changes nothing but the generation and region 3.
  Result<void> replan() {
    (void)arena_->rollback();
    EXPECT_TRUE(arena_->begin() && arena_->keep_persistent());
    return arena_->commit();
  }

  std::uint64_t object_ = 0;
  std::uint64_t graph_ = 0;
  std::vector<std::string> log_;
  Moment waited_;
  std::function<Result<void>()> in_wait_;
  std::function<Result<void>()> in_destroy_;
  std::optional<Arena> arena_;
  std::optional<Executor> executor_;
};

TEST_F(ExecutorTest, APinLaunchesWhatWasCaptured) {
  EXPECT_FALSE(executor_->holds());
  EXPECT_EQ(executor_->acquire({}, 1).error().code, Errc::not_found);
  capture({1, 2});
  EXPECT_EQ(executor_->generation(), 1U);
  EXPECT_TRUE(executor_->matches(bindings({1, 2}), 1));
  Pin pin = std::move(executor_->acquire(bindings({1, 2}), 1).value());
  EXPECT_EQ(pin.graph(), reinterpret_cast<kvspan_graph_s*>(&graph_));
  EXPECT_EQ(pin.generation(), 1U);
  EXPECT_EQ(executor_->pin_count(), 1U);
  const Pin moved = std::move(pin);
  EXPECT_EQ(executor_->pin_count(), 1U);
  // NOLINTNEXTLINE(bugprone-use-after-move,clang-analyzer-cplusplus.Move): it holds nothing now
  EXPECT_FALSE(pin);
  EXPECT_EQ(pin.graph(), nullptr);
}

TEST_F(ExecutorTest, AnotherRevisionIsStale) {
  capture({1, 2}, 7);
  EXPECT_FALSE(executor_->matches(bindings({1, 2}), 8));
  EXPECT_EQ(executor_->acquire(bindings({1, 2}), 8).error().code, Errc::not_found);
  EXPECT_EQ(executor_->pin_count(), 0U);
  EXPECT_TRUE(log_.empty());
}

TEST_F(ExecutorTest, TheSameIdElsewhereIsStale) {
  capture({1, 2});
  std::vector<Binding> other = bindings({1, 2});
  other[0].memory = reinterpret_cast<kvspan_memory_t*>(&graph_);  // another arena's region 1
  EXPECT_FALSE(executor_->matches(other, 1));
  other = bindings({1, 2});
  other[1].region.offset += 64;
  EXPECT_EQ(executor_->acquire(other, 1).error().code, Errc::not_found);
  EXPECT_EQ(executor_->acquire(bindings({1}), 1).error().code, Errc::not_found);
  EXPECT_EQ(executor_->acquire(bindings({1, 2, 3}), 1).error().code, Errc::not_found);
}

TEST_F(ExecutorTest, ARefusedCaptureLeavesEverythingWithItsCaller) {
  Executable none;
  std::vector<Lease> held = leases({1});
  EXPECT_EQ(executor_->capture(none, held, 1).error().code, Errc::invalid_argument);
  EXPECT_EQ(held.size(), 1U);
  Executable executable = make_executable();
  held.emplace_back();
  EXPECT_EQ(executor_->capture(executable, held, 1).error().code, Errc::invalid_argument);
  EXPECT_TRUE(executable);
  EXPECT_EQ(held.size(), 2U);
  EXPECT_FALSE(executor_->holds());
  EXPECT_EQ(executor_->generation(), 0U);
  EXPECT_TRUE(log_.empty());
}

TEST_F(ExecutorTest, OrderAndRepetitionOfLeasesDoNotMatter) {
  capture({2, 1, 2});
  EXPECT_TRUE(executor_->matches(bindings({1, 2}), 1));
  EXPECT_TRUE(executor_->matches(bindings({2, 2, 1}), 1));
  EXPECT_EQ(executor_->bindings(), bindings({1, 2}));
  EXPECT_EQ(executor_->retire().value(), Retirement::retired);
  EXPECT_EQ(arena_->lease_count(), 0U);
}

TEST_F(ExecutorTest, OtherRegionsAndGenerationsDoNotRetire) {
  capture({1});
  ASSERT_TRUE(replan().has_value());
  EXPECT_EQ(arena_->generation(), 2U);
  EXPECT_TRUE(executor_->matches(bindings({1}), 1));
  EXPECT_EQ(executor_->retire(bindings({2})).value(), Retirement::unchanged);
  EXPECT_TRUE(executor_->admits());
  EXPECT_TRUE(executor_->acquire(bindings({1}), 1).has_value());
  std::vector<Binding> moved = bindings({1});
  moved[0].region.bytes *= 2;  // the same region, as it will be
  EXPECT_EQ(executor_->retire(moved).value(), Retirement::retired);
}

TEST_F(ExecutorTest, ACaptureAloneKeepsItsRegions) {
  capture({1, 3});
  EXPECT_EQ(replan().error().code, Errc::busy);
  EXPECT_EQ(executor_->retire().value(), Retirement::retired);
  EXPECT_TRUE(replan().has_value());
}

TEST_F(ExecutorTest, RetiringWaitsForComputeAndCopiesThenDestroysThenGivesBack) {
  capture({1, 2});
  Pin compute = std::move(executor_->acquire(bindings({1, 2}), 1).value());
  Pin copies = std::move(executor_->acquire(bindings({1, 2}), 1).value());
  compute.release(Moment::at(LaneId::compute, 5));
  copies.release(Moment::at(LaneId::download, 3));
  EXPECT_EQ(executor_->retire().value(), Retirement::retired);
  EXPECT_EQ(waited_.of(LaneId::compute), 5U);
  EXPECT_EQ(waited_.of(LaneId::download), 3U);
  EXPECT_THAT(log_, ElementsAre("wait", "destroy 2"));  // both leases were still held
  EXPECT_EQ(arena_->lease_count(), 0U);
  EXPECT_EQ(executor_->retire().value(), Retirement::unchanged);
}

TEST_F(ExecutorTest, NothingIsDestroyedUnderAPin) {
  capture({1});
  Pin pin = std::move(executor_->acquire(bindings({1}), 1).value());
  EXPECT_EQ(executor_->retire().value(), Retirement::pending);
  EXPECT_TRUE(log_.empty());
  EXPECT_NE(pin.graph(), nullptr);
  EXPECT_EQ(executor_->acquire(bindings({1}), 1).error().code, Errc::busy) << "closed by now";
  pin.release({});
  EXPECT_EQ(executor_->retire().value(), Retirement::retired);
}

// A wait or a destroyer that fails or throws: all is still held, nothing is launched, and the next
// try does it.
TEST_F(ExecutorTest, EveryFailureOnTheWayKeepsCaptureAndLeases) {
  const std::vector<std::function<Result<void>()>> failures = {
      [] {
        return Result<void>(tl::unexpected(Error{Errc::device_lost, "gone"}));
      },
      []() -> Result<void> { throw std::runtime_error("thrown"); },
      []() -> Result<void> { throw std::bad_alloc(); }};
  for (const auto& fail : failures) {
    for (auto* const place : {&in_wait_, &in_destroy_}) {
      capture({1, 3});
      *place = fail;
      log_.clear();
      EXPECT_FALSE(executor_->retire().has_value());
      EXPECT_EQ(log_.size(), place == &in_wait_ ? 1U : 2U) << "nothing goes under running work";
      EXPECT_TRUE(executor_->holds());
      EXPECT_EQ(arena_->lease_count(), 2U);
      EXPECT_EQ(executor_->acquire(bindings({1, 3}), 1).error().code, Errc::busy);
      *place = {};
      EXPECT_EQ(executor_->retire().value(), Retirement::retired);
      EXPECT_EQ(arena_->lease_count(), 0U);
    }
  }
  EXPECT_EQ(executor_->generation(), 6U);
}

TEST_F(ExecutorTest, ACallbackCannotRetireItsOwnExecutor) {
  capture({1});
  std::vector<Errc> codes;
  in_wait_ = [&] {
    Executable other = make_executable();
    std::vector<Lease> held = leases({2});
    codes.push_back(executor_->retire().error().code);
    codes.push_back(executor_->capture(other, held, 1).error().code);
    (void)other.destroy();
    return Result<void>();
  };
  EXPECT_EQ(executor_->retire().value(), Retirement::retired);
  EXPECT_THAT(codes, ElementsAre(Errc::busy, Errc::busy));
}

TEST_F(ExecutorTest, APinOutlivesExecutorAndArena) {
  capture({1});
  Pin pin = std::move(executor_->acquire(bindings({1}), 1).value());
  executor_.reset();
  arena_.reset();
  EXPECT_TRUE(log_.empty());
  EXPECT_NE(pin.graph(), nullptr);
  pin.release(Moment::at(LaneId::compute, 9));
  EXPECT_EQ(waited_.of(LaneId::compute), 9U);
  EXPECT_THAT(log_, ElementsAre("wait", "destroy 0", "parent"));
}

TEST_F(ExecutorTest, AnotherCaptureNeedsTheOldOneRetired) {
  capture({1});
  executor_->acquire(bindings({1}), 1)->release(Moment::at(LaneId::compute, 4));
  Executable executable = make_executable();
  std::vector<Lease> held = leases({2});
  EXPECT_EQ(executor_->capture(executable, held, 2).error().code, Errc::busy);
  EXPECT_TRUE(executable);
  EXPECT_EQ(held.size(), 1U);
  ASSERT_EQ(executor_->retire().value(), Retirement::retired);
  EXPECT_TRUE(executor_->capture(executable, held, 2).has_value());
  EXPECT_EQ(executor_->generation(), 2U);
  EXPECT_FALSE(executor_->matches(bindings({1}), 1));
  EXPECT_EQ(executor_->retire().value(), Retirement::retired);
  EXPECT_EQ(waited_.of(LaneId::compute), 0U) << "the old one's work is not the new one's";
}

TEST_F(ExecutorTest, ALaunchInPartClosesAdmission) {
  capture({1});
  {
    Pin pin = std::move(executor_->acquire(bindings({1}), 1).value());
    pin.close_admission();
    EXPECT_EQ(executor_->acquire(bindings({1}), 1).error().code, Errc::busy);
    EXPECT_NE(pin.graph(), nullptr);
    pin.release(Moment::at(LaneId::compute, 1));
  }
  EXPECT_EQ(executor_->acquire(bindings({1}), 1).error().code, Errc::busy);
  EXPECT_EQ(executor_->retire().value(), Retirement::retired);
  capture({1});
  EXPECT_TRUE(executor_->acquire(bindings({1}), 1).has_value());
}

// Given up without being asked: the same order, and a wait that fails is tried again.
TEST_F(ExecutorTest, AnExecutorThatGoesWaitsForItsWork) {
  capture({1, 2});
  int tries = 0;
  in_wait_ = [&tries] {
    return ++tries < 3 ? Result<void>(tl::unexpected(Error{Errc::internal, "not yet"}))
                       : Result<void>();
  };
  executor_.reset();
  EXPECT_THAT(log_, ElementsAre("wait", "wait", "wait", "destroy 2"));
  EXPECT_EQ(arena_->lease_count(), 0U);
}

// Nothing is taken to give something up, and what cannot be told in words is told all the same.
TEST_F(ExecutorTest, WithoutHostMemoryWhatIsHeldIsGivenUp) {
  log_.reserve(16);
  capture({1, 2});
  const std::vector<Binding> wanted = bindings({1, 2});
  fail_new(1, NewFails::from_then_on);
  const auto retired = executor_->retire(wanted);
  const bool allocated = new_has_failed();
  fail_new(0);
  EXPECT_EQ(retired.value(), Retirement::retired);
  EXPECT_FALSE(allocated);
  capture({1, 2});
  in_wait_ = []() -> Result<void> { throw std::bad_alloc(); };
  for (int tries = 0; tries < 2; ++tries) {
    fail_new(1, NewFails::from_then_on);
    const auto refused = executor_->retire();
    const auto pin = executor_->acquire(wanted, 1);
    Executable other = make_executable();
    std::vector<Lease> none;
    const auto captured = executor_->capture(other, none, 1);
    fail_new(0);
    EXPECT_EQ(refused.error().code, Errc::host_memory);
    EXPECT_FALSE(refused.error().message.empty());
    EXPECT_EQ(pin.error().code, Errc::host_memory);
    EXPECT_EQ(captured.error().code, Errc::busy);
    EXPECT_TRUE(other.destroy().has_value());
  }
  log_.clear();
  fail_new(1, NewFails::from_then_on);
  executor_.reset();
  fail_new(0);
  EXPECT_THAT(log_, ElementsAre("wait", "wait", "wait", "wait", "destroy 2"));
  EXPECT_EQ(arena_->lease_count(), 0U);
}

TEST_F(ExecutorTest, EightThreadsPinBesideOneThatRetires) {
  constexpr int kRounds = 2000;
  capture({1});
  const std::vector<Binding> wanted = bindings({1});
  std::atomic<int> launched = 0;
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        if (auto pin = executor_->acquire(wanted, 1)) {
          launched += pin->graph() != nullptr ? 1 : 0;
          pin->release(Moment::at(LaneId::compute, 1));
        }
      }
    });
  }
  int retired = 0;
  for (int round = 0; round < 200; ++round) {
    const auto outcome = executor_->retire();
    ASSERT_TRUE(outcome.has_value());
    if (*outcome == Retirement::retired) {
      ++retired;
      capture({1});
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_NE(executor_->retire().value(), Retirement::pending);
  EXPECT_EQ(executor_->pin_count(), 0U);
  EXPECT_EQ(arena_->lease_count(), 0U);
  EXPECT_EQ(executor_->generation(), static_cast<std::uint64_t>(retired) + 1);
}

}  // namespace
}  // namespace kvspan
