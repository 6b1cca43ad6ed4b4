// SPDX-License-Identifier: Apache-2.0
// Making a change: the order of everybody's steps, what is rebound, what sends it back to prepared,
// and every callback failing once in every way.
#include "transition_rig.hpp"

#include <optional>

namespace kvspan::test {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

class ActivationTest : public TransitionRig {};

std::vector<std::string> all_steps(const std::string& direction) {
  std::vector<std::string> log;
  for (const TransitionStep step : kConsumerSteps) {
    for (const char* const tenant : {"history", "scratch", "draft"}) {
      log.push_back(direction + name(step) + " " + tenant);
    }
  }
  for (const char* const tenant : {"draft", "scratch", "history"}) {
    log.push_back(std::string("discard ") + tenant);
  }
  return log;
}

TEST_F(ActivationTest, EveryStepIsDoneByAllBeforeTheNext) {
  enter(1);
  ASSERT_TRUE(prepare(2).has_value());
  ledger.log.clear();
  scratch.on_step = [this](TransitionStep step, TransitionDirection) {
    const bool closed = step != TransitionStep::quiesce && step < TransitionStep::commit;
    expect_open(!closed);  // arenas behind the consumers, open again behind the commit
    EXPECT_EQ(device.arena().find(4).has_value(), step > TransitionStep::commit);
    return Result<void>();
  };
  ASSERT_TRUE(change.activate().has_value());
  EXPECT_THAT(ledger.log, ElementsAreArray(all_steps("")));
  EXPECT_EQ(ledger.preparations, 0);
  EXPECT_EQ(change.stage(), 2U);
  EXPECT_FALSE(change.failure().has_value());
  EXPECT_TRUE(change.admit().has_value());
  EXPECT_TRUE(draft.holds(4));
}

// Region 2 is where it was and as large, but not persistent: its lease, address and contents are
// new.
TEST_F(ActivationTest, WhatIsNotPersistentIsBoundAnewInPlace) {
  enter(1);
  const Region before = device.arena().find(2).value();
  *scratch.bytes_of(2) = std::byte{0x11};
  *history.bytes_of(1) = std::byte{0x22};
  ASSERT_TRUE(prepare(3).has_value());
  draft.on_step = [&](TransitionStep step, TransitionDirection) {
    if (step == TransitionStep::acquire) {
      EXPECT_EQ(device.arena().lease_count(1), 1U) << "what stays is held all along";
    }
    return Result<void>();
  };
  const std::uint64_t generation = device.arena().generation();
  ASSERT_TRUE(change.activate().has_value());
  EXPECT_EQ(device.arena().generation(), generation + 1);
  EXPECT_EQ(device.arena().find(2).value(), before);
  EXPECT_EQ(*scratch.bytes_of(2), std::byte{0x42});
  EXPECT_EQ(*history.bytes_of(1), std::byte{0x22});
}

// Where everything stays nothing is committed, and the steps are done all the same.
TEST_F(ActivationTest, ALayoutThatStaysIsNotCommitted) {
  LiveStage kept = plan.stage(3).value();
  kept.live.resize(1);
  kept.live[0].holds_contents = false;
  ASSERT_TRUE(change.prepare(kept, LayoutSizes::minimum).has_value());
  ASSERT_TRUE(change.activate().has_value());
  const std::uint64_t generation = device.arena().generation();
  const World before = world();
  ledger.log.clear();
  kept.live[0].holds_contents = true;
  EXPECT_EQ(change.prepare(kept, LayoutSizes::minimum).value(), Prepared::ready);
  ASSERT_TRUE(change.activate().has_value());
  EXPECT_EQ(device.arena().generation(), generation);
  EXPECT_EQ(world().device, before.device);
  EXPECT_EQ(ledger.log.size(), 3 + all_steps("").size());
}

TEST_F(ActivationTest, ABadArenaSendsItBackToPrepared) {
  enter(1);
  const World before = world();
  ASSERT_TRUE(prepare(2).has_value());
  ledger.log.clear();
  const auto refused = [&](const char* says) {
    const auto active = change.activate();
    ASSERT_FALSE(active.has_value()) << says;
    EXPECT_EQ(active.error().code, Errc::busy);
    EXPECT_THAT(active.error().message, HasSubstr(says));
    EXPECT_EQ(change.state(), TransitionState::prepared);
    EXPECT_TRUE(ledger.log.empty());
    EXPECT_EQ(world(), before);
    EXPECT_FALSE(change.failure().has_value());
  };
  pinned.arena().quiesce();
  refused("quiesced");
  pinned.arena().reopen();
  ASSERT_TRUE(pinned.arena().begin().has_value());
  refused("open already");
  ASSERT_TRUE(pinned.arena().rollback().has_value());
  ASSERT_TRUE(device.arena().begin().has_value()) << "the other arena's plan was rolled back";
  ASSERT_TRUE(device.arena().rollback().has_value());
  EXPECT_TRUE(change.activate().has_value());
}

// Persistent regions as they were, but by somebody else's commit: what was prepared may be stale.
TEST_F(ActivationTest, AnArenaThatChangedMeanwhileIsStale) {
  LiveStage kept = plan.stage(3).value();
  kept.live.resize(1);
  ASSERT_TRUE(change.prepare(kept, LayoutSizes::minimum) && change.activate());
  ASSERT_TRUE(prepare(2).has_value());
  ledger.log.clear();
  Arena& arena = device.arena();
  ASSERT_TRUE(arena.begin() && arena.keep_persistent() && arena.commit());
  EXPECT_EQ(change.activate().error().code, Errc::busy);
  EXPECT_EQ(change.state(), TransitionState::prepared);
  EXPECT_TRUE(ledger.log.empty());
  ASSERT_TRUE(change.cancel().has_value());
  enter(2);
}

TEST_F(ActivationTest, ADrainThatIsIncompleteFails) {
  enter(1);
  scratch.working = true;
  ASSERT_TRUE(prepare(2).has_value());
  plant(1, TransitionStep::drain, TransitionDirection::forward, Fault::value);
  EXPECT_EQ(change.activate().error().code, Errc::device_lost);
  EXPECT_EQ(change.state(), TransitionState::failed);
  EXPECT_TRUE(scratch.working);
  EXPECT_TRUE(scratch.holds(2)) << "nothing is released under running work";
  EXPECT_EQ(change.failure()->step, TransitionStep::drain);
}

TEST_F(ActivationTest, SomebodyElsesLeaseBlocksTheCommit) {
  enter(1);
  const World before = world();
  Lease outside = std::move(device.arena().acquire(2).value());
  ASSERT_TRUE(prepare(2).has_value());
  const auto active = change.activate();
  EXPECT_EQ(active.error().code, Errc::busy);
  EXPECT_THAT(active.error().message, HasSubstr("region 2"));
  EXPECT_EQ(change.failure()->step, TransitionStep::commit);
  EXPECT_TRUE(change.failure()->consumer.empty());
  expect_open(false);
  EXPECT_EQ(world().device, before.device);
  outside.release();
  ASSERT_TRUE(change.recover().has_value());
  EXPECT_EQ(world(), before);
  enter(2);
}

// One round of its own.
class Round : public TransitionRig {
 public:
  void TestBody() override {}

  // Fails once at `step` of `tenant`, looks, and takes it back.
  void fail_and_recover(std::size_t tenant, TransitionStep step, Fault fault) {
    enter(1);
    const World before = world();
    ASSERT_TRUE(prepare(2).has_value());
    ledger.log.clear();
    plant(tenant, step, TransitionDirection::forward, fault);
    const auto active = change.activate();
    ASSERT_FALSE(active.has_value());
    const std::string called(tenants()[tenant]->name());
    EXPECT_EQ(active.error().code, code_of(fault));
    EXPECT_EQ(change.state(), TransitionState::failed);
    ASSERT_TRUE(change.failure().has_value());
    EXPECT_EQ(change.failure()->step, step);
    EXPECT_EQ(change.failure()->direction, TransitionDirection::forward);
    EXPECT_EQ(change.failure()->consumer, called);
    EXPECT_EQ(change.failure()->error.message, active.error().message);
    EXPECT_EQ(ledger.log.back(), std::string(name(step)) + " " + called) << "nobody after it";
    EXPECT_EQ(ledger.preparations, 3);
    expect_open(false);
    EXPECT_EQ(change.admit().error().code, Errc::busy);
    EXPECT_EQ(prepare(2).error().code, Errc::busy);
    EXPECT_EQ(change.activate().error().code, Errc::busy);
    EXPECT_EQ(change.cancel().error().code, Errc::invalid_argument);
    ledger.log.clear();
    const auto back = change.recover();
    ASSERT_TRUE(back.has_value()) << back.error().message;
    EXPECT_THAT(ledger.log, ElementsAreArray(all_steps("back ")));
    EXPECT_EQ(world(), before);
    EXPECT_EQ(change.failure()->consumer, called) << "kept";
    EXPECT_EQ(ledger.preparations, 0);
    expect_open(true);
    enter(2);
    EXPECT_TRUE(draft.holds(4));
  }
};

TEST(Activation, EveryCallbackFailsOnceInEveryWay) {
  int rounds = 0;
  for (const TransitionStep step : kConsumerSteps) {
    for (std::size_t tenant = 0; tenant < 3; ++tenant) {
      for (const Fault fault :
           {Fault::value, Fault::exception, Fault::out_of_memory, Fault::cancel}) {
        SCOPED_TRACE(std::string(name(step)) + ", tenant " + std::to_string(tenant) + ", fault " +
                     std::to_string(static_cast<int>(fault)));
        std::shared_ptr<int> releases;
        {
          Round round;
          round.fail_and_recover(tenant, step, fault);
          releases = round.releases();
        }
        EXPECT_EQ(*releases, 2) << "a lease or an arena leaked";
        ASSERT_FALSE(::testing::Test::HasFailure());
        ++rounds;
      }
    }
  }
  EXPECT_EQ(rounds, 84);
}

}  // namespace
}  // namespace kvspan::test
