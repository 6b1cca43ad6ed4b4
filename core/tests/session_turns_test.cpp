// SPDX-License-Identifier: Apache-2.0
// Prefill and decode have the arena one after the other: no bit moves whatever phases are taken,
// what both keep stays, each phase has all that the other one's scratch and tails would take, and
// whatever fails on the way leaves a session that goes on.
#include "any_submit.hpp"
#include "moving_rig.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace kvspan::test {
namespace {

std::uint64_t resident_bytes(const Plan& plan) {
  return plan.regions.resident_bytes;
}

// Steps of both phases in a drawn order, whatever the tokens: rows of prefill beside rows of
// decode.
struct DrawnStep {
  Phase phase;
  std::uint32_t rows;
};

std::vector<DrawnStep> drawn_steps(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<DrawnStep> steps;
  for (std::uint64_t at = 0; at < kEnd;) {
    const bool prefill = at == 0 || random() % 4 == 0;
    const std::uint64_t most = prefill ? 16 : 1;
    const auto rows = static_cast<std::uint32_t>(std::min(kEnd - at, 1 + random() % most));
    steps.push_back({prefill ? Phase::prefill : Phase::decode, rows});
    at += rows;
  }
  return steps;
}

Outputs run_steps(Session& session,
                  const Backend& backend,
                  const SessionOptions& options,
                  const std::vector<DrawnStep>& steps) {
  const SequenceId sequence = *session.add_sequence();
  Engine engine(backend, session, options, 16);
  Outputs outputs;
  std::uint64_t at = 0;
  for (const DrawnStep& step : steps) {
    EXPECT_TRUE(engine.step({{sequence, 7, at, step.rows}}, step.phase, &outputs).has_value());
    at += step.rows;
  }
  return outputs;
}

Outputs whole_run(SessionOptions options, const std::vector<DrawnStep>& steps) {
  options.arena_bytes = kResidentArena;
  options.placement = {};
  StubRig rig;
  auto session = Session::open(rig.backend(), options);
  EXPECT_TRUE(session.has_value()) << session.error().message;
  return run_steps(*session, rig.backend(), options, steps);
}

void check_sums(const Plan& plan) {
  for (const PhaseBudget& phase : plan.phases) {
    std::uint64_t sum = 0;
    for (const PlanComponent& component : phase.components) {
      sum += component.size_bytes;
    }
    EXPECT_EQ(sum, plan.total_bytes()) << phase.name;
  }
}

TEST(SessionTurns, PhasesAtAnyStepMoveNoBitAndStreamExactlyTheRest) {
  SessionOptions options = turning_options();
  int turned = 0;
  for (int seed = 1; seed <= seeds(60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const std::vector<DrawnStep> steps = drawn_steps(static_cast<std::uint64_t>(seed));
    const Outputs expected = whole_run(options, steps);
    StubRig rig({{"queues", "shuffled"}, {"seed", std::to_string(seed)}});
    options.lanes.waits = seed % 2 == 0 ? WaitMode::strict : WaitMode::normal;
    options.arena_bytes = minimum_of(rig.backend(), options) + random() % 60000;
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    const std::uint64_t total_bytes = session->plan().total_bytes();
    ASSERT_LE(total_bytes, options.arena_bytes);
    check_sums(session->plan());
    const SequenceId sequence = *session->add_sequence();
    Engine engine(rig.backend(), *session, options, 16);
    Outputs outputs;
    std::uint64_t at = 0;
    for (const DrawnStep& step : steps) {
      if (random() % 4 == 0) {
        const auto entered = session->enter(random() % 2 == 0 ? Phase::prefill : Phase::decode);
        ASSERT_TRUE(entered.has_value()) << entered.error().message;
      }
      const std::uint64_t before = session->counters().streamed_pages;
      const auto done = engine.step({{sequence, 7, at, step.rows}}, step.phase, &outputs);
      ASSERT_TRUE(done.has_value()) << done.error().message;
      ASSERT_EQ(session->plan().phase, step.phase);
      ASSERT_EQ(session->plan().total_bytes(), total_bytes);
      ASSERT_EQ(session->counters().streamed_pages - before,
                streamed(session->plan(), options, at));
      at += step.rows;
    }
    ASSERT_TRUE(same_bits(outputs, expected));
    turned += static_cast<int>(session->counters().phase_changes);
    EXPECT_EQ(session->counters().device_bytes_high_water, total_bytes);
  }
  EXPECT_GT(turned, seeds(60) * 5);
}

// A placement of one phase or of both, at any time: the other phase keeps its own.
TEST(SessionTurns, PlacementsOfEitherPhaseMoveNoBit) {
  SessionOptions options = turning_options();
  for (int seed = 1; seed <= seeds(60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const std::vector<DrawnStep> steps = drawn_steps(static_cast<std::uint64_t>(seed));
    const Outputs expected = whole_run(options, steps);
    StubRig rig({{"queues", "shuffled"}, {"seed", std::to_string(seed)}});
    options.arena_bytes = minimum_of(rig.backend(), options) + random() % 60000;
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    const SequenceId sequence = *session->add_sequence();
    Engine engine(rig.backend(), *session, options, 16);
    Outputs outputs;
    std::uint64_t at = 0;
    for (const DrawnStep& step : steps) {
      if (random() % 3 == 0 && session->plan().mode == PlanMode::streaming) {
        const Plan before = session->plan();
        const Phase other = before.phase == Phase::prefill ? Phase::decode : Phase::prefill;
        const Placement to = drawn_placement(before, 1, random);
        const auto placed = session->place(to);
        ASSERT_TRUE(placed.has_value()) << placed.error().message;
        ASSERT_EQ(placement_of(entered(session->plan(), other)),
                  placement_of(entered(before, other)));
        ASSERT_EQ(session->plan().ring_slots, to.ring_slots);
        check_sums(session->plan());
      }
      const std::uint64_t before = session->counters().streamed_pages;
      const auto done = engine.step({{sequence, 7, at, step.rows}}, step.phase, &outputs);
      ASSERT_TRUE(done.has_value()) << done.error().message;
      ASSERT_EQ(session->counters().streamed_pages - before,
                streamed(session->plan(), options, at));
      at += step.rows;
    }
    ASSERT_TRUE(same_bits(outputs, expected));
  }
}

// Pages that both phases keep are brought once, however often the phase changes.
TEST(SessionTurns, WhatBothPhasesKeepIsNotMoved) {
  SessionOptions options = turning_options();
  options.geometry.layers.resize(1);
  StubRig rig;
  options.arena_bytes = minimum_of(rig.backend(), options) + 9000;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const Plan prefill = entered(session->plan(), Phase::prefill);
  const Plan decode = entered(session->plan(), Phase::decode);
  ASSERT_EQ(decode.mode, PlanMode::streaming);
  ASSERT_GT(prefill.resident_pages[0], 0U);
  ASSERT_LT(prefill.resident_pages[0], decode.resident_pages[0]);
  ASSERT_EQ(decode.kept_pages[0], prefill.resident_pages[0]);
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  ASSERT_TRUE(engine.prefill(sequence, 7, 0, 200, 16, nullptr).has_value());
  EXPECT_EQ(session->counters().moved_bytes, 0U);
  std::uint64_t at = 200;
  for (int turn = 0; turn < 3; ++turn) {
    const std::uint64_t before = session->counters().moved_bytes;
    ASSERT_TRUE(engine.decode(sequence, 7, at, at + 2, nullptr).has_value());
    EXPECT_EQ(session->counters().moved_bytes - before,
              (decode.resident_pages[0] - prefill.resident_pages[0]) * decode.pages[0].page_bytes);
    at += 2;
    ASSERT_TRUE(engine.prefill(sequence, 7, at, at + 5, 5, nullptr).has_value());
    at += 5;
  }
  EXPECT_EQ(session->counters().phase_changes, 7U);
}

// What prefill's chunk needs is decode's to fill: same arena, more resident, and the bits.
TEST(SessionTurns, DecodeHasWhatPrefillsScratchTook) {
  SessionOptions options = turning_options();
  options.geometry.layers.resize(8, options.geometry.layers[0]);
  options.prefill_rows_fixed = 64;
  SessionOptions beside = options;
  beside.placement.phases_take_turns = false;
  StubRig rig;
  const std::uint64_t least = minimum_of(rig.backend(), options);
  const std::uint64_t least_beside = minimum_of(rig.backend(), beside);
  EXPECT_LT(least, least_beside);
  options.arena_bytes = beside.arena_bytes = least_beside + 4000;
  auto turning = Session::open(rig.backend(), options);
  ASSERT_TRUE(turning.has_value()) << turning.error().message;
  const Plan turns = turning->plan();
  StubRig other;
  auto fixed = Session::open(other.backend(), beside);
  ASSERT_TRUE(fixed.has_value()) << fixed.error().message;
  EXPECT_GT(resident_bytes(turns), resident_bytes(fixed->plan()));
  EXPECT_LT(entered(turns, Phase::prefill).regions.resident_bytes, resident_bytes(turns));
}

// The same options and arena as side by side behave as ever: entering moves nothing.
TEST(SessionTurns, PhasesBesideEachOtherNeverMove) {
  SessionOptions options = moving_options();
  StubRig rig;
  options.arena_bytes = minimum_of(rig.backend(), options) + 20000;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value());
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  ASSERT_TRUE(engine.prefill(sequence, 7, 0, 160, 16, nullptr).has_value());
  const Plan before = session->plan();
  ASSERT_TRUE(session->enter(Phase::decode).has_value());
  ASSERT_TRUE(engine.decode(sequence, 7, 160, 163, nullptr).has_value());
  ASSERT_TRUE(session->enter(Phase::prefill).has_value());
  EXPECT_EQ(session->counters().phase_changes, 0U);
  EXPECT_EQ(session->counters().moved_bytes, 0U);
  EXPECT_EQ(placement_of(session->plan()), placement_of(before));
}

TEST(SessionTurns, NothingIsEnteredUnderAStep) {
  SessionOptions options = turning_options();
  StubRig rig;
  options.arena_bytes = minimum_of(rig.backend(), options) + 20000;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value());
  const SequenceId sequence = *session->add_sequence();
  const StepRows part{sequence, 1};
  ASSERT_TRUE(session->begin_step({&part, 1}, Phase::prefill).has_value());
  EXPECT_EQ(session->enter(Phase::decode).error().code, Errc::busy);
  EXPECT_EQ(session->place({2, 1, {0, 0, 0}}).error().code, Errc::busy);
  EXPECT_EQ(session->plan().phase, Phase::prefill);
  session->cancel_step();
  EXPECT_TRUE(session->enter(Phase::decode).has_value());
  EXPECT_EQ(session->plan().phase, Phase::decode);
}

// Whichever submit around changes of phase fails, accepted or refused, the session goes on with the
// bits of a run without a failure.
TEST(SessionTurns, AnySubmitOfAChangeMayFail) {
  SessionOptions options = turning_options();
  StubRig calm;
  options.arena_bytes = minimum_of(calm.backend(), options) + 40000;
  const auto run = [&](StubRig& rig, std::uint64_t nth) {
    Outputs last;
    auto session = Session::open(rig.backend(), options);
    EXPECT_TRUE(session.has_value());
    const SequenceId sequence = *session->add_sequence();
    Engine engine(rig.backend(), *session, options, 16);
    EXPECT_TRUE(engine.prefill(sequence, 7, 0, 150, 15, nullptr).has_value());
    if (nth != 0) {
      rig.plant(KVSPAN_FAULT_SUBMIT, nth, KVSPAN_E_FAILED);
    }
    int failures = 0;
    while (*session->tokens(sequence) < 166 && failures < 5) {
      if (nth % 2 == 0 && !session->enter(nth % 4 == 0 ? Phase::decode : Phase::prefill)) {
        ++failures;
      }
      Outputs now;
      const std::uint64_t from = *session->tokens(sequence);
      const Phase phase = from % 5 == 0 ? Phase::prefill : Phase::decode;
      if (engine.step({{sequence, 7, from, 1}}, phase, &now)) {
        last = std::move(now);
      } else {
        ++failures;
      }
    }
    EXPECT_LT(failures, 5);
    return last;
  };
  expect_same_whichever_submit_fails(150, 1, run);
}

// A cancellation between a step and the change of phase behind it is told by the change.
TEST(SessionTurns, ACancellationIsToldByTheChange) {
  SessionOptions options = turning_options();
  StubRig rig;
  options.arena_bytes = minimum_of(rig.backend(), options) + 20000;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value());
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  ASSERT_TRUE(engine.prefill(sequence, 7, 0, 160, 16, nullptr).has_value());
  session->cancel();
  EXPECT_EQ(session->enter(Phase::decode).error().code, Errc::cancelled);
  EXPECT_EQ(session->plan().phase, Phase::prefill);
  EXPECT_TRUE(session->enter(Phase::decode).has_value());
  const std::uint64_t at = *session->tokens(sequence);
  EXPECT_TRUE(engine.decode(sequence, 7, at, at + 2, nullptr).has_value());
}

class TurnsOn : public ::testing::TestWithParam<const char*> {};

// With each phase in turn deciding.
TEST_P(TurnsOn, TheMinimumRunsAndOneByteLessIsRefused) {
  for (const bool prefill_decides : {true, false}) {
    SCOPED_TRACE(prefill_decides ? "prefill" : "decode");
    SessionOptions options = turning_options();
    options.geometry.page_tokens = 32;
    options.sequences = 2;
    options.error_class = KVSPAN_ERROR_E0;
    options.prefill_rows_fixed = prefill_decides ? 100 : 1;
    options.decode_rows = prefill_decides ? 1 : 24;
    const StubRig rig(StubRig::Plugin{GetParam()});
    SessionOptions full = options;
    full.placement = {};
    full.arena_bytes = kResidentArena;
    const auto run = [&rig, &options](const SessionOptions& with) {
      auto session = Session::open(rig.backend(), with);
      EXPECT_TRUE(session.has_value()) << session.error().message;
      Engine engine(rig.backend(), *session, with, 100);
      Outputs outputs;
      const SequenceId ids[] = {*session->add_sequence(), *session->add_sequence()};
      const std::uint32_t chunk = options.prefill_rows_fixed;
      for (const SequenceId id : ids) {
        EXPECT_TRUE(engine.prefill(id, id, 0, 100, chunk, &outputs).has_value());
      }
      for (std::uint64_t at = 100; at < 200; at += 25) {
        EXPECT_TRUE(
            engine
                .step({{ids[0], 0, at, options.decode_rows}, {ids[1], 1, at, options.decode_rows}},
                      Phase::decode,
                      &outputs)
                .has_value());
        const std::uint64_t from = at + options.decode_rows;
        for (const SequenceId id : ids) {
          EXPECT_TRUE(engine.prefill(id, id, from, at + 25, chunk, &outputs).has_value());
        }
      }
      EXPECT_LE(session->counters().device_bytes_high_water, with.arena_bytes);
      return outputs;
    };
    const auto least = plan(plan_request(rig.backend(), options));
    ASSERT_TRUE(least.has_value()) << least.error().message;
    options.arena_bytes = least->minimum_arena_bytes;
    const Outputs outputs = run(options);
    --options.arena_bytes;
    const auto refused = Session::open(rig.backend(), options);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Errc::device_memory);
    EXPECT_EQ(refused.error().required, least->minimum_arena_bytes);
    EXPECT_EQ(refused.error().missing, 1U);
    EXPECT_NE(refused.error().message.find(prefill_decides ? "phase prefill" : "phase decode"),
              std::string::npos)
        << refused.error().message;
    EXPECT_TRUE(same_bits(outputs, run(full)));
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, TurnsOn, ::testing::Values("stub", "cpu"));

}  // namespace
}  // namespace kvspan::test
