// SPDX-License-Identifier: Apache-2.0
// Phases are told: what moves memory, what does not, what is refused and leaves the phase as it
// was.
#include "kvspan/core/memory/phase_owner.hpp"

#include "transition_rig.hpp"

#include <optional>

namespace kvspan::test {
namespace {

using ::testing::HasSubstr;

// Stage 1 is prefill's, stage 2 decode's, stage 3 everybody else's.
class PhaseTest : public TransitionRig {
 protected:
  PhaseTest() : owner(make_owner()) {}

  PhaseOwner make_owner() {
    StageRequest kept = request();
    kept.inputs = {1};  // phases come again and again: what is kept is kept in all of them
    return std::move(PhaseOwner::create(change,
                                        plan_stages(kept).value(),
                                        {{WorkPhase::prefill, 1, 512, 2},
                                         {WorkPhase::decode, 2, 1, 4},
                                         {WorkPhase::verify, 2, 8, 1},
                                         {WorkPhase::catch_up, 3, 64, 1},
                                         {WorkPhase::draft, 3, 1, 1},
                                         {WorkPhase::spill, 3, 0, 1},
                                         {WorkPhase::restore, 3, 0, 1}},
                                        LayoutSizes::minimum)
                         .value());
  }

  PhaseIdentity entered(WorkPhase phase) {
    const auto identity = owner.enter(phase);
    EXPECT_TRUE(identity.has_value()) << identity.error().message;
    return identity.value_or(PhaseIdentity{});
  }

  void run(const PhaseIdentity& identity, std::uint32_t rows, std::uint32_t sequences = 1) {
    const auto work = owner.begin(identity, {rows, sequences});
    ASSERT_TRUE(work.has_value()) << work.error().message;
    ASSERT_TRUE(owner.finish(*work).has_value());
  }

  std::uint64_t moves() { return device.arena().generation(); }

  PhaseOwner owner;
};

TEST_F(PhaseTest, APromptOfOneTokenIsPrefill) {
  const PhaseIdentity prefill = entered(WorkPhase::prefill);
  run(prefill, 1);
  EXPECT_EQ(owner.identity(), prefill);
  EXPECT_EQ(change.stage(), 1U);
  const PhaseIdentity decode = entered(WorkPhase::decode);
  EXPECT_NE(decode, prefill);
  run(decode, 1);
  EXPECT_EQ(change.stage(), 2U);
}

TEST_F(PhaseTest, AShortLastChunkStaysPrefill) {
  const PhaseIdentity prefill = entered(WorkPhase::prefill);
  run(prefill, 512);
  const std::uint64_t before = moves();
  run(entered(WorkPhase::prefill), 3);
  EXPECT_EQ(owner.identity(), prefill);
  EXPECT_EQ(moves(), before);
}

TEST_F(PhaseTest, RepeatedDecodeMovesNothing) {
  const PhaseIdentity decode = entered(WorkPhase::decode);
  const std::uint64_t before = moves();
  ledger.log.clear();
  for (int step = 0; step < 20; ++step) {
    EXPECT_EQ(entered(WorkPhase::decode), decode);
    run(decode, 1);
  }
  EXPECT_EQ(moves(), before);
  EXPECT_TRUE(ledger.log.empty());
}

TEST_F(PhaseTest, DecodeAndPrefillTakeTurnsAndKeepWhatIsKept) {
  (void)entered(WorkPhase::prefill);
  *history.bytes_of(1) = std::byte{0x61};
  for (std::uint64_t turn = 0; turn < 10; ++turn) {
    EXPECT_EQ(entered(WorkPhase::decode).generation, 2 + 2 * turn);
    EXPECT_TRUE(draft.holds(4));
    EXPECT_EQ(entered(WorkPhase::prefill).generation, 3 + 2 * turn);
    EXPECT_FALSE(draft.holds(4));
  }
  EXPECT_EQ(*history.bytes_of(1), std::byte{0x61});
}

TEST_F(PhaseTest, WhatIsNotPlannedIsRefused) {
  const PhaseIdentity decode = entered(WorkPhase::decode);
  EXPECT_EQ(owner.enter(WorkPhase::lent).error().code, Errc::unsupported);
  EXPECT_EQ(owner.enter(static_cast<WorkPhase>(99)).error().code, Errc::unsupported);
  const auto crowd = owner.begin(decode, {1, 5});
  EXPECT_EQ(crowd.error().code, Errc::invalid_argument);
  EXPECT_THAT(crowd.error().message, HasSubstr("1 to 4 sequences, not 5"));
  EXPECT_EQ(owner.begin(decode, {1, 0}).error().code, Errc::invalid_argument);
  EXPECT_EQ(owner.identity(), decode);
  run(decode, 1, 4);
}

// Also those that share their stage with another one.
TEST_F(PhaseTest, EveryPhaseOfSpeculationIsTold) {
  PhaseIdentity last;
  for (const WorkPhase phase : {WorkPhase::decode,
                                WorkPhase::verify,
                                WorkPhase::spill,
                                WorkPhase::restore,
                                WorkPhase::catch_up,
                                WorkPhase::draft,
                                WorkPhase::verify}) {
    const PhaseIdentity identity = entered(phase);
    EXPECT_EQ(identity.phase, phase);
    EXPECT_EQ(identity.generation, last.generation + 1);
    const bool no_rows = phase == WorkPhase::spill || phase == WorkPhase::restore;
    run(identity, no_rows ? 0 : 1);
    if (last.generation != 0) {
      EXPECT_FALSE(owner.begin(last, {1, 1}).has_value()) << "planned for what was before";
    }
    last = identity;
  }
  const std::uint64_t before = moves();
  (void)entered(WorkPhase::decode);
  EXPECT_EQ(moves(), before) << "decode and verify share a stage";
}

TEST_F(PhaseTest, WrongSignalsLeaveThePhaseAsItIs) {
  EXPECT_EQ(owner.begin({}, {1, 1}).error().code, Errc::invalid_argument) << "none was entered";
  const PhaseIdentity prefill = entered(WorkPhase::prefill);
  draft.on_step = [](TransitionStep, TransitionDirection) -> Result<void> {
    return tl::unexpected(Error{Errc::device_memory, "no room"});
  };
  EXPECT_EQ(owner.enter(WorkPhase::decode).error().code, Errc::device_memory);
  draft.on_step = {};
  EXPECT_FALSE(owner.begin({WorkPhase::decode, prefill.generation}, {1, 1}).has_value());
  EXPECT_FALSE(owner.begin({WorkPhase::prefill, 9}, {1, 1}).has_value());
  EXPECT_FALSE(owner.finish(7).has_value());
  EXPECT_EQ(owner.identity(), prefill);
  run(prefill, 1);
}

TEST_F(PhaseTest, WorkOfAnEarlierEntryIsStale) {
  const PhaseIdentity first = entered(WorkPhase::prefill);
  (void)entered(WorkPhase::decode);
  const PhaseIdentity again = entered(WorkPhase::prefill);
  const auto stale = owner.begin(first, {1, 1});
  EXPECT_EQ(stale.error().code, Errc::invalid_argument);
  EXPECT_THAT(stale.error().message, HasSubstr("generation 3"));
  run(again, 1);
}

TEST_F(PhaseTest, NothingIsEnteredUnderWork) {
  const PhaseIdentity prefill = entered(WorkPhase::prefill);
  const std::uint64_t work = owner.begin(prefill, {1, 1}).value();
  EXPECT_EQ(owner.begin(prefill, {1, 1}).error().code, Errc::busy);
  EXPECT_EQ(owner.enter(WorkPhase::decode).error().code, Errc::busy);
  EXPECT_EQ(owner.enter(WorkPhase::prefill).error().code, Errc::busy);
  ASSERT_TRUE(owner.finish(work).has_value());
  (void)entered(WorkPhase::decode);
}

TEST_F(PhaseTest, RowsHaveACeilingAPhase) {
  const PhaseIdentity prefill = entered(WorkPhase::prefill);
  run(prefill, 512);
  EXPECT_EQ(owner.begin(prefill, {513, 1}).error().code, Errc::invalid_argument);
  EXPECT_EQ(owner.begin(prefill, {0, 1}).error().code, Errc::invalid_argument);
  const PhaseIdentity verify = entered(WorkPhase::verify);
  run(verify, 8);
  EXPECT_FALSE(owner.begin(verify, {9, 1}).has_value());
  EXPECT_FALSE(owner.begin(entered(WorkPhase::spill), {1, 1}).has_value()) << "it has no rows";
}

// A change that fails is taken back, and the old phase works; one that cannot be is the end.
TEST_F(PhaseTest, AFailedChangeGoesBackOrCloses) {
  const PhaseIdentity prefill = entered(WorkPhase::prefill);
  const World before = world();
  plant(1, TransitionStep::bind, TransitionDirection::forward, Fault::value);
  EXPECT_EQ(owner.enter(WorkPhase::decode).error().code, Errc::device_lost);
  EXPECT_EQ(owner.identity(), prefill);
  EXPECT_EQ(world(), before);
  run(prefill, 1);
  plant(1, TransitionStep::bind, TransitionDirection::forward, Fault::value);
  plant(2, TransitionStep::release, TransitionDirection::back, Fault::exception);
  const auto closed = owner.enter(WorkPhase::decode);
  EXPECT_EQ(closed.error().code, Errc::device_lost) << "the first failure";
  EXPECT_THAT(closed.error().message, HasSubstr("could not be taken back"));
  EXPECT_EQ(owner.identity(), prefill);
  EXPECT_EQ(owner.begin(prefill, {1, 1}).error().code, Errc::internal);
  EXPECT_EQ(owner.enter(WorkPhase::prefill).error().code, Errc::internal);
}

// An arena that somebody else closed: given up before anything was touched.
TEST_F(PhaseTest, ABusyArenaLeavesThePhaseAsItIs) {
  const PhaseIdentity prefill = entered(WorkPhase::prefill);
  device.arena().quiesce();
  EXPECT_EQ(owner.enter(WorkPhase::decode).error().code, Errc::busy);
  EXPECT_EQ(change.state(), TransitionState::idle);
  device.arena().reopen();
  run(prefill, 1);
  (void)entered(WorkPhase::decode);
}

// Needs of a phase that is not the present one may grow; nothing moves until it is entered.
TEST_F(PhaseTest, AnotherPhasesNeedsMayGrow) {
  (void)entered(WorkPhase::prefill);
  StageRequest grown = request();
  grown.inputs = {1};
  grown.stages[1].requirements[1].minimum_bytes += 64;  // decode's scratch
  const std::uint64_t before = moves();
  ledger.log.clear();
  ASSERT_TRUE(owner.replan(plan_stages(grown).value()).has_value());
  EXPECT_EQ(moves(), before);
  EXPECT_TRUE(ledger.log.empty());
  (void)entered(WorkPhase::decode);
  EXPECT_EQ(device.arena().find(2)->bytes, 2048U + 64);
  grown.stages[1].requirements[1].minimum_bytes += 64;
  EXPECT_EQ(owner.replan(plan_stages(grown).value()).error().code, Errc::busy);
  grown.stages.resize(2);
  EXPECT_EQ(owner.replan(plan_stages(grown).value()).error().code, Errc::invalid_argument);
}

TEST_F(PhaseTest, WrongRulesAreRefused) {
  const auto code = [this](std::vector<PhaseRule> rules) {
    const auto made = PhaseOwner::create(change, plan, std::move(rules), LayoutSizes::minimum);
    return made ? std::optional<Errc>() : made.error().code;
  };
  EXPECT_EQ(code({}), std::nullopt);
  EXPECT_EQ(code({{WorkPhase::decode, 1, 1, 1}, {WorkPhase::decode, 2, 1, 1}}),
            Errc::invalid_argument);
  EXPECT_EQ(code({{WorkPhase::decode, 9, 1, 1}}), Errc::invalid_argument);
  EXPECT_EQ(code({{static_cast<WorkPhase>(50), 1, 1, 1}}), Errc::invalid_argument);
}

}  // namespace
}  // namespace kvspan::test
