// SPDX-License-Identifier: Apache-2.0
// Taking a failed change back: data, addresses and revisions as before, or closed for good with
// nothing leaked. Each callback on the way back fails once, behind each failure on the way there.
#include "transition_rig.hpp"

#include <utility>

namespace kvspan::test {
namespace {

using ::testing::HasSubstr;

constexpr auto kForward = TransitionDirection::forward;
constexpr auto kBack = TransitionDirection::back;

class RecoveryTest : public TransitionRig {
 protected:
  // A change to stage 2 that fails at this step of a tenant.
  void fail_at(std::size_t tenant, TransitionStep step) {
    ASSERT_TRUE(prepare(2).has_value());
    plant(tenant, step, kForward, Fault::value);
    ASSERT_FALSE(change.activate().has_value());
    ASSERT_EQ(change.state(), TransitionState::failed);
  }

  void expect_invalid() {
    EXPECT_EQ(change.state(), TransitionState::invalid);
    EXPECT_EQ(ledger.preparations, 0);
    expect_open(false);
    EXPECT_EQ(change.admit().error().code, Errc::internal);
    EXPECT_EQ(prepare(2).error().code, Errc::internal);
    EXPECT_EQ(change.activate().error().code, Errc::internal);
    EXPECT_EQ(change.recover().error().code, Errc::internal);
    EXPECT_EQ(change.cancel().error().code, Errc::invalid_argument);
  }
};

TEST_F(RecoveryTest, OnlyWhatFailedIsTakenBack) {
  EXPECT_EQ(change.recover().error().code, Errc::invalid_argument);
  enter(1);
  ASSERT_TRUE(prepare(2).has_value());
  EXPECT_EQ(change.recover().error().code, Errc::busy);
  ASSERT_TRUE(change.cancel().has_value());
  const std::uint64_t work = change.admit().value();
  EXPECT_EQ(change.recover().error().code, Errc::busy);
  ASSERT_TRUE(change.finish(work).has_value());
}

// Work that is still under way when the change begins may write; what is saved is what it left.
TEST_F(RecoveryTest, WhatIsSavedIsWhatTheOldWorkLeft) {
  enter(1);
  for (Tenant* tenant : tenants()) {
    tenant->working = true;
  }
  scratch.on_step = [this](TransitionStep step, TransitionDirection) {
    if (step == TransitionStep::drain) {
      *scratch.bytes_of(2) = std::byte{0x77};  // its last kernel
      *scratch.bytes_of(3) = std::byte{0x78};
    }
    if (step == TransitionStep::invalidate) {
      EXPECT_FALSE(history.working || draft.working) << "everybody's work is over by then";
    }
    return Result<void>();
  };
  fail_at(2, TransitionStep::activate);
  EXPECT_EQ(*scratch.bytes_of(2), std::byte{0x42}) << "the new layout's";
  scratch.on_step = {};
  ASSERT_TRUE(change.recover().has_value());
  EXPECT_EQ(*scratch.bytes_of(2), std::byte{0x77});
  EXPECT_EQ(*scratch.bytes_of(3), std::byte{0x78});
}

TEST_F(RecoveryTest, HalfAnActivationRestoresDataAndRevision) {
  enter(1);
  *history.bytes_of(1) = std::byte{0x31};
  *scratch.bytes_of(3) = std::byte{0x33};
  const World before = world();
  fail_at(1, TransitionStep::activate);
  EXPECT_EQ(history.revision, before.tenants[0].revision + 1) << "it was active already";
  EXPECT_TRUE(history.open);
  EXPECT_FALSE(draft.open);
  ASSERT_TRUE(change.recover().has_value());
  EXPECT_EQ(world(), before);
}

TEST_F(RecoveryTest, EveryRetryGoesBackToTheLastGoodStage) {
  enter(1);
  *scratch.bytes_of(2) = std::byte{0x55};
  const World before = world();
  const std::uint64_t generation = device.arena().generation();
  std::uint64_t commits = 0;
  for (const TransitionStep step : kConsumerSteps) {
    fail_at(2, step);
    ASSERT_TRUE(change.recover().has_value());
    EXPECT_EQ(world(), before);
    commits += step > TransitionStep::commit ? 2 : 0;
  }
  EXPECT_EQ(device.arena().generation(), generation + commits);
  enter(2);
}

// What addresses only memory that stays is launched again as it is; what does not was retired.
TEST_F(RecoveryTest, ACaptureOnWhatStaysSurvivesBothCommits) {
  enter(1);
  int destroyed = 0;
  std::uint64_t graph = 0;
  const auto capture = [&](Tenant& tenant, std::uint64_t id) {
    tenant.executor = std::make_unique<Executor>([](const Moment&) { return Result<void>(); });
    Executable executable(reinterpret_cast<kvspan_graph_s*>(&graph), [&](kvspan_graph_s*) {
      ++destroyed;
      return Result<void>();
    });
    std::vector<Lease> leases;
    leases.push_back(std::move(device.arena().acquire(id).value()));
    ASSERT_TRUE(tenant.executor->capture(executable, leases, 1).has_value());
  };
  capture(history, 1);
  capture(scratch, 2);
  const std::vector<Binding> bound = history.executor->bindings();
  fail_at(2, TransitionStep::activate);
  EXPECT_EQ(destroyed, 1);
  EXPECT_FALSE(scratch.executor->holds());
  ASSERT_TRUE(change.recover().has_value());
  EXPECT_TRUE(history.executor->matches(bound, 1));
  EXPECT_TRUE(history.executor->acquire(bound, 1).has_value());
  enter(2);
  EXPECT_TRUE(history.executor->matches(bound, 1));
  EXPECT_EQ(destroyed, 1);
  history.executor.reset();
  EXPECT_EQ(destroyed, 2);
}

TEST_F(RecoveryTest, AConsumerThatCannotRestoreClosesEverything) {
  enter(1);
  fail_at(1, TransitionStep::bind);
  draft.on_restorable = []() -> Result<void> {
    return tl::unexpected(Error{Errc::not_found, "the source is gone"});
  };
  ledger.log.clear();
  const auto back = change.recover();
  EXPECT_EQ(back.error().code, Errc::not_found);
  expect_invalid();
  EXPECT_EQ(ledger.log.size(), 3U) << "discarded, without a step";
  EXPECT_EQ(ledger.log.front(), "discard draft");
  EXPECT_EQ(change.failure()->consumer, "scratch") << "the first failure is the one that is told";
  EXPECT_EQ(change.failure()->step, TransitionStep::bind);
}

// A pin that somebody forgot: nothing was released yet, and once it is given back all is as before.
TEST_F(RecoveryTest, APendingPinFailsTheChangeAndNotTheWayBack) {
  enter(1);
  const World before = world();
  std::uint64_t graph = 0;
  scratch.executor = std::make_unique<Executor>([](const Moment&) { return Result<void>(); });
  Executable executable(reinterpret_cast<kvspan_graph_s*>(&graph),
                        [](kvspan_graph_s*) { return Result<void>(); });
  std::vector<Lease> leases;
  leases.push_back(std::move(device.arena().acquire(2).value()));
  ASSERT_TRUE(scratch.executor->capture(executable, leases, 1).has_value());
  Pin pin = std::move(scratch.executor->acquire(scratch.executor->bindings(), 1).value());
  ASSERT_TRUE(prepare(2).has_value());
  EXPECT_EQ(change.activate().error().code, Errc::busy);
  EXPECT_EQ(change.failure()->step, TransitionStep::invalidate);
  EXPECT_TRUE(scratch.holds(2));
  pin.release({});
  ASSERT_TRUE(change.recover().has_value());
  EXPECT_EQ(world(), before);
}

// Captured on the new layout already: gone before its memory is.
TEST_F(RecoveryTest, ACaptureOfTheNewLayoutIsRetiredOnTheWayBack) {
  enter(1);
  std::uint64_t graph = 0;
  draft.executor = std::make_unique<Executor>([](const Moment&) { return Result<void>(); });
  draft.on_step = [&](TransitionStep step, TransitionDirection direction) {
    if (step == TransitionStep::activate && direction == kForward) {
      Executable executable(reinterpret_cast<kvspan_graph_s*>(&graph),
                            [](kvspan_graph_s*) { return Result<void>(); });
      std::vector<Lease> leases;
      leases.push_back(std::move(device.arena().acquire(4).value()));
      EXPECT_TRUE(draft.executor->capture(executable, leases, 1).has_value());
      return Result<void>(tl::unexpected(Error{Errc::device_lost, "late"}));
    }
    return Result<void>();
  };
  ASSERT_TRUE(prepare(2).has_value());
  ASSERT_FALSE(change.activate().has_value());
  EXPECT_TRUE(draft.executor->holds());
  ASSERT_TRUE(change.recover().has_value());
  EXPECT_FALSE(draft.executor->holds());
}

TEST_F(RecoveryTest, ASecondFailureKeepsTheFirst) {
  enter(1);
  fail_at(0, TransitionStep::acquire);
  plant(2, TransitionStep::bind, kBack, Fault::exception);
  const auto back = change.recover();
  EXPECT_EQ(back.error().code, Errc::internal);
  EXPECT_THAT(back.error().message, HasSubstr("bind of draft"));
  EXPECT_EQ(change.failure()->consumer, "history");
  EXPECT_EQ(change.failure()->direction, kForward);
  EXPECT_EQ(change.failure()->error.code, Errc::device_lost);
  expect_invalid();
}

TEST_F(RecoveryTest, SomebodyElsesRegionsAreLeftAlone) {
  enter(1);
  fail_at(0, TransitionStep::acquire);
  Arena& arena = device.arena();  // committed, and nobody has leased what is not kept
  ASSERT_TRUE(arena.begin() && arena.keep_persistent() && arena.reserve(99, 64, 64, {}) &&
              arena.commit());
  const auto foreign = arena.committed();
  const auto back = change.recover();
  EXPECT_EQ(back.error().code, Errc::busy);
  EXPECT_THAT(back.error().message, HasSubstr("somebody else"));
  EXPECT_EQ(arena.committed(), foreign);
  expect_invalid();
}

// The first arena was committed when the second was refused: both are as before.
TEST_F(RecoveryTest, HalfACommitIsTakenBack) {
  enter(1);
  const World before = world();
  const std::uint64_t first = device.arena().generation();
  const std::uint64_t second = pinned.arena().generation();
  const Lease outside = std::move(pinned.arena().acquire(3).value());
  ASSERT_TRUE(prepare(2).has_value());
  EXPECT_EQ(change.activate().error().code, Errc::busy);
  EXPECT_EQ(change.failure()->step, TransitionStep::commit);
  EXPECT_NE(world().device, before.device);
  EXPECT_EQ(world().pinned, before.pinned);
  ASSERT_TRUE(change.recover().has_value()) << "the lease is of the former layout";
  EXPECT_EQ(world().device, before.device);
  EXPECT_EQ(device.arena().generation(), first + 2);
  EXPECT_EQ(pinned.arena().generation(), second) << "it never changed";
}

TEST_F(RecoveryTest, ALeaseOfTheNewLayoutBlocksTheWayBack) {
  enter(1);
  Lease outside;
  history.on_step = [&](TransitionStep step, TransitionDirection direction) {
    if (step == TransitionStep::bind && direction == kForward) {
      outside = std::move(device.arena().acquire(4).value());
    }
    return Result<void>();
  };
  fail_at(2, TransitionStep::activate);
  const auto back = change.recover();
  EXPECT_EQ(back.error().code, Errc::busy);
  EXPECT_THAT(back.error().message, HasSubstr("region 4"));
  expect_invalid();
  EXPECT_TRUE(device.arena().find(4).has_value()) << "what is leased stays";
}

TEST_F(RecoveryTest, TheWayBackIsNotInterrupted) {
  enter(1);
  const World before = world();
  fail_at(1, TransitionStep::release);
  std::vector<Errc> codes;
  draft.on_step = [&](TransitionStep, TransitionDirection) {
    codes = {change.cancel().error().code,
             change.recover().error().code,
             change.admit().error().code,
             prepare(3).error().code};
    return Result<void>();
  };
  ASSERT_TRUE(change.recover().has_value());
  EXPECT_EQ(codes, std::vector<Errc>(4, Errc::busy));
  EXPECT_EQ(world(), before);
}

// Only what was committed is committed back.
TEST_F(RecoveryTest, ArenasThatWereNotReachedKeepTheirGeneration) {
  enter(1);
  const std::uint64_t first = device.arena().generation();
  fail_at(2, TransitionStep::release);
  ASSERT_TRUE(change.recover().has_value());
  EXPECT_EQ(device.arena().generation(), first);
  LiveStage one = plan.stage(3).value();  // stage 3 without what is in the pinned arena
  one.live.pop_back();
  scratch.on_step = {};
  ASSERT_TRUE(change.prepare(one, LayoutSizes::minimum) && change.activate());
  const std::uint64_t second = pinned.arena().generation();
  ASSERT_TRUE(change.prepare(one, LayoutSizes::minimum).has_value());
  plant(0, TransitionStep::bind, kForward, Fault::value);
  ASSERT_FALSE(change.activate().has_value());
  ASSERT_TRUE(change.recover().has_value());
  EXPECT_EQ(pinned.arena().generation(), second) << "nothing of it changes";
}

class Round : public RecoveryTest {
 public:
  void TestBody() override {}

  struct Place {
    std::size_t tenant;
    TransitionStep step;
  };

  void fail_twice(const Place& there, const Place& back, Fault fault) {
    enter(1);
    fail_at(there.tenant, there.step);
    plant(back.tenant, back.step, kBack, fault);
    ledger.log.clear();
    const auto recovered = change.recover();
    ASSERT_FALSE(recovered.has_value());
    EXPECT_EQ(recovered.error().code, code_of(fault));
    EXPECT_EQ(change.failure()->step, there.step);
    EXPECT_EQ(change.failure()->consumer, tenants()[there.tenant]->name());
    const std::string last =
        "back " + std::string(name(back.step)) + " " + std::string(tenants()[back.tenant]->name());
    ASSERT_GE(ledger.log.size(), 4U);
    EXPECT_EQ(ledger.log[ledger.log.size() - 4], last) << "nothing but discards after it";
    expect_invalid();
  }
};

TEST(Recovery, EveryCallbackOfTheWayBackFailsOnceBehindEveryFailure) {
  int rounds = 0;
  for (const TransitionStep there : kConsumerSteps) {
    for (const TransitionStep back : kConsumerSteps) {
      for (std::size_t pair = 0; pair < 9; ++pair) {
        for (const Fault fault : kFailures) {
          SCOPED_TRACE(std::string(name(there)) + ", then " + name(back) + ", tenants " +
                       std::to_string(pair / 3) + " and " + std::to_string(pair % 3));
          std::shared_ptr<int> releases;
          {
            Round round;
            round.fail_twice({pair / 3, there}, {pair % 3, back}, fault);
            releases = round.releases();
          }
          EXPECT_EQ(*releases, 2) << "a lease or an arena leaked";
          ASSERT_FALSE(::testing::Test::HasFailure());
          ++rounds;
        }
      }
    }
  }
  EXPECT_EQ(rounds, 7 * 7 * 9 * 3);
}

}  // namespace
}  // namespace kvspan::test
