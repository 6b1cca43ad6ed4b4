// SPDX-License-Identifier: Apache-2.0
// Work and preparation: who is let in when, what a preparation that fails leaves behind, and what
// is refused before anybody is asked.
#include "kvspan/core/memory/transition.hpp"

#include "transition_rig.hpp"

#include <new>
#include <optional>
#include <stdexcept>

namespace kvspan::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TransitionTest : public TransitionRig {};

Interruption at_prepare(std::function<Result<void>()> outcome) {
  return [outcome = std::move(outcome)](TransitionStep step, TransitionDirection) {
    return step == TransitionStep::prepare ? outcome() : Result<void>();
  };
}

Result<void> out_of_room() {
  return tl::unexpected(Error{Errc::device_memory, "no room"});
}

TEST_F(TransitionTest, OneWorkAtATimeAndOnlyItsOwnNumberEndsIt) {
  enter(1);
  const std::uint64_t first = change.admit().value();
  EXPECT_EQ(change.state(), TransitionState::executing);
  EXPECT_EQ(change.admit().error().code, Errc::busy);
  EXPECT_EQ(prepare(2).error().code, Errc::busy);
  EXPECT_EQ(change.activate().error().code, Errc::busy);
  EXPECT_EQ(change.finish(first + 1).error().code, Errc::invalid_argument);
  ASSERT_TRUE(change.finish(first).has_value());
  EXPECT_EQ(change.finish(first).error().code, Errc::invalid_argument);
  const std::uint64_t second = change.admit().value();
  EXPECT_GT(second, first);
  EXPECT_EQ(change.finish(first).error().code, Errc::invalid_argument) << "stale";
  EXPECT_TRUE(change.finish(second).has_value());
}

TEST_F(TransitionTest, APreparedChangeClosesAdmission) {
  enter(1);
  const World before = world();
  EXPECT_EQ(prepare(2).value(), Prepared::ready);
  EXPECT_EQ(change.state(), TransitionState::prepared);
  EXPECT_EQ(change.admit().error().code, Errc::busy);
  EXPECT_EQ(prepare(3).error().code, Errc::busy);
  EXPECT_EQ(world(), before) << "nothing is touched yet";
  ASSERT_TRUE(change.cancel().has_value());
  EXPECT_EQ(world(), before);
  EXPECT_TRUE(change.admit().has_value());
}

TEST_F(TransitionTest, NobodyComesInFromInsideAConsumer) {
  enter(1);
  std::vector<Errc> codes;
  scratch.on_step = [&](TransitionStep, TransitionDirection) {
    codes = {change.admit().error().code,
             prepare(3).error().code,
             change.activate().error().code,
             change.recover().error().code};
    return Result<void>();
  };
  const std::vector<Errc> all_busy(4, Errc::busy);
  ASSERT_TRUE(prepare(2).has_value());
  EXPECT_EQ(codes, all_busy);
  codes.clear();
  ASSERT_TRUE(change.activate().has_value());
  EXPECT_EQ(codes, all_busy);
}

// Whatever a consumer had made when it failed goes with it; later ones are not asked.
TEST_F(TransitionTest, AFailedConsumersOwnWorkIsDiscarded) {
  enter(1);
  history.on_step = at_prepare(out_of_room);
  const auto failed = prepare(2);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code, Errc::device_memory);
  EXPECT_THAT(failed.error().message, HasSubstr("prepare of history: no room"));
  EXPECT_THAT(ledger.log, ElementsAre("prepare history", "discard history"));
  EXPECT_EQ(ledger.preparations, 0);
  EXPECT_EQ(change.failure()->consumer, "history");
}

TEST_F(TransitionTest, AFailureDiscardsTheLastFirst) {
  enter(1);
  const World before = world();
  draft.on_step = at_prepare(out_of_room);
  ASSERT_FALSE(prepare(2).has_value());
  EXPECT_THAT(ledger.log,
              ElementsAre("prepare history",
                          "prepare scratch",
                          "prepare draft",
                          "discard draft",
                          "discard scratch",
                          "discard history"));
  EXPECT_EQ(world(), before);
  EXPECT_EQ(change.state(), TransitionState::idle);
  draft.on_step = {};
  enter(2);
}

TEST_F(TransitionTest, NobodyIsLetInWhilePreparationsAreDiscarded) {
  enter(1);
  std::vector<Errc> codes;
  history.on_discard = [&] { codes.push_back(change.admit().error().code); };
  draft.on_step = at_prepare(out_of_room);
  ASSERT_FALSE(prepare(2).has_value());
  draft.on_step = {};
  ASSERT_TRUE(prepare(2).has_value() && change.cancel().has_value());
  ASSERT_TRUE(prepare(2).has_value() && change.activate().has_value());
  EXPECT_THAT(codes, ElementsAre(Errc::busy, Errc::busy, Errc::busy));
  history.on_discard = {};
  EXPECT_TRUE(change.admit().has_value());
}

TEST_F(TransitionTest, WhatIsThrownIsToldAndTheOldStageGoesOn) {
  enter(1);
  const World before = world();
  scratch.on_step = at_prepare([]() -> Result<void> { throw std::runtime_error("surprise"); });
  const auto thrown = prepare(2);
  EXPECT_EQ(thrown.error().code, Errc::internal);
  EXPECT_THAT(thrown.error().message, HasSubstr("surprise"));
  EXPECT_EQ(change.failure()->consumer, "scratch");
  EXPECT_THAT(change.failure()->error.message, HasSubstr("surprise"));
  EXPECT_EQ(world(), before);
  scratch.on_step = at_prepare([]() -> Result<void> { throw 7; });
  EXPECT_EQ(prepare(2).error().code, Errc::internal);
  EXPECT_TRUE(change.admit().has_value());
}

TEST_F(TransitionTest, HostMemoryThatRunsOutDiscards) {
  enter(1);
  draft.on_step = at_prepare([]() -> Result<void> { throw std::bad_alloc(); });
  EXPECT_EQ(prepare(2).error().code, Errc::host_memory);
  EXPECT_EQ(ledger.preparations, 0);
  EXPECT_EQ(change.state(), TransitionState::idle);
}

TEST_F(TransitionTest, ACancelFromInsideWaitsForItsConsumer) {
  enter(1);
  bool returned = false;
  history.on_step = at_prepare([&] {
    EXPECT_TRUE(change.cancel().has_value());
    EXPECT_EQ(change.state(), TransitionState::preparing);
    EXPECT_EQ(ledger.preparations, 1) << "nothing is discarded under its feet";
    returned = true;
    return Result<void>();
  });
  EXPECT_EQ(prepare(2).error().code, Errc::cancelled);
  EXPECT_TRUE(returned);
  EXPECT_THAT(ledger.log, ElementsAre("prepare history", "discard history"));
  EXPECT_EQ(change.state(), TransitionState::idle);
  history.on_step = {};
  enter(2);  // the cancel is used up
}

TEST_F(TransitionTest, NothingToCancelIsSaid) {
  EXPECT_EQ(change.cancel().error().code, Errc::invalid_argument);
  ASSERT_TRUE(change.admit().has_value());
  EXPECT_EQ(change.cancel().error().code, Errc::invalid_argument);
}

TEST_F(TransitionTest, UnchangedIsWhatEveryConsumerSays) {
  enter(1);
  for (Tenant* tenant : tenants()) {
    tenant->indifferent = true;
  }
  const std::uint64_t generation = device.arena().generation();
  EXPECT_EQ(prepare(3).value(), Prepared::unchanged);
  EXPECT_EQ(change.state(), TransitionState::idle);
  EXPECT_EQ(change.stage(), 3U);
  draft.indifferent = false;
  EXPECT_EQ(prepare(3).value(), Prepared::ready) << "one of them has something to do";
  ASSERT_TRUE(change.cancel().has_value());
  draft.indifferent = true;
  EXPECT_EQ(prepare(2).value(), Prepared::ready) << "the layout is another";
  ASSERT_TRUE(change.cancel().has_value());
  EXPECT_EQ(device.arena().generation(), generation);
}

// The layout of stage 3 is that of stage 1 to the byte; its consumers are asked all the same.
TEST_F(TransitionTest, AnIdenticalLayoutIsStillAskedAbout) {
  enter(1);
  for (Tenant* tenant : tenants()) {
    tenant->indifferent = true;
  }
  ASSERT_TRUE(prepare(3).has_value());
  EXPECT_THAT(ledger.log, ElementsAre("prepare history", "prepare scratch", "prepare draft"));
  scratch.on_step = at_prepare(out_of_room);
  EXPECT_EQ(prepare(1).error().code, Errc::device_memory);
}

TEST_F(TransitionTest, WrongRegistrationsAreRefused) {
  const auto code = [](std::vector<TransitionArena> arenas,
                       std::vector<TransitionConsumer*> consumers) {
    const auto made = Transition::create(std::move(arenas), std::move(consumers));
    return made ? std::optional<Errc>() : made.error().code;
  };
  const TransitionArena card{kDomain, MemoryKind::device, &device.arena(), 64};
  const TransitionArena other{kDomain, MemoryKind::device, &pinned.arena(), 64};
  Tenant nameless("", {}, ledger);
  Tenant twin("history", {}, ledger);
  EXPECT_EQ(code({card}, {&history}), std::nullopt);
  EXPECT_EQ(code({}, {}), std::nullopt);
  EXPECT_EQ(code({{kDomain, MemoryKind::device, nullptr, 64}}, {}), Errc::invalid_argument);
  EXPECT_EQ(code({card, {2, MemoryKind::device, &device.arena(), 64}}, {}), Errc::invalid_argument);
  EXPECT_EQ(code({card, other}, {}), Errc::invalid_argument);
  EXPECT_EQ(code({{kDomain, MemoryKind::device, &device.arena(), 48}}, {}), Errc::invalid_argument);
  EXPECT_EQ(code({card}, {nullptr}), Errc::invalid_argument);
  EXPECT_EQ(code({card}, {&nameless}), Errc::invalid_argument);
  EXPECT_EQ(code({card}, {&history, &history}), Errc::invalid_argument);
  EXPECT_EQ(code({card}, {&history, &twin}), Errc::invalid_argument);
}

TEST_F(TransitionTest, ALayoutThatFailsAsksNobody) {
  enter(1);
  LiveStage huge = plan.stage(2).value();
  huge.live[1].requirement.minimum_bytes = huge.live[1].requirement.preferred_bytes = 1 << 20;
  EXPECT_EQ(change.prepare(huge, LayoutSizes::minimum).error().code, Errc::too_large);
  LiveStage coarse = plan.stage(2).value();
  coarse.live[1].requirement.alignment = 256;  // the parent's first byte is aligned to 64
  EXPECT_EQ(change.prepare(coarse, LayoutSizes::minimum).error().code, Errc::unsupported);
  LiveStage elsewhere = plan.stage(2).value();
  elsewhere.live[1].resource.domain = 9;
  EXPECT_EQ(change.prepare(elsewhere, LayoutSizes::minimum).error().code, Errc::not_found);
  EXPECT_TRUE(ledger.log.empty());
  EXPECT_TRUE(change.failure()->consumer.empty());
  EXPECT_EQ(change.state(), TransitionState::idle);
}

// Kept, but nothing was written yet: it may be placed anew, and larger. With contents it may not.
TEST_F(TransitionTest, OnlyContentsHoldARegionInPlace) {
  enter(1);
  LiveStage larger = plan.stage(1).value();
  larger.live[0].requirement.minimum_bytes = larger.live[0].requirement.preferred_bytes = 640;
  EXPECT_EQ(change.prepare(larger, LayoutSizes::minimum).value(), Prepared::ready);
  ASSERT_TRUE(change.activate().has_value());
  EXPECT_EQ(device.arena().find(1)->bytes, 640U);
  larger.live[0].holds_contents = true;
  larger.live[0].requirement.minimum_bytes = larger.live[0].requirement.preferred_bytes = 704;
  EXPECT_EQ(change.prepare(larger, LayoutSizes::minimum).error().code, Errc::invalid_argument);
}

// The request, the plan and the layout of the caller may be gone; what is activated is a copy.
TEST_F(TransitionTest, WhatWasPreparedIsItsOwn) {
  enter(1);
  auto other = std::make_unique<LiveStage>(plan.stage(2).value());
  ASSERT_TRUE(change.prepare(*other, LayoutSizes::minimum).has_value());
  other->live.clear();
  other.reset();
  plan = StagePlan({});
  ASSERT_TRUE(change.activate().has_value());
  EXPECT_EQ(device.arena().find(4)->bytes, 512U);
  EXPECT_EQ(change.stage(), 2U);
}

TEST_F(TransitionTest, ATransitionThatGoesDiscardsTheLastFirst) {
  enter(1);
  {
    Transition other = make();
    ASSERT_TRUE(other.prepare(plan.stage(2).value(), LayoutSizes::minimum).has_value());
    const Transition moved = std::move(other);
    ledger.log.clear();
  }
  EXPECT_THAT(ledger.log, ElementsAre("discard draft", "discard scratch", "discard history"));
  expect_open(true);
  enter(2);
}

}  // namespace
}  // namespace kvspan::test
