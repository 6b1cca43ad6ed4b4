// SPDX-License-Identifier: Apache-2.0
// Another placement between two steps: no bit moves, what streams is exactly what is not resident,
// whatever fails on the way leaves a session that goes on. And the policy in a session: a constant
// load comes to rest, a slower link is answered.
#include "any_submit.hpp"
#include "moving_rig.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>

namespace kvspan::test {
namespace {

TEST(SessionPlacement, ChangesAtAnyStepMoveNoBitAndStreamExactlyTheRest) {
  SessionOptions options = moving_options();
  const Outputs expected = resident_run(options);
  for (int seed = 1; seed <= seeds(80); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    StubRig rig({{"queues", "shuffled"}, {"seed", std::to_string(seed)}});
    options.lanes.waits = seed % 2 == 0 ? WaitMode::strict : WaitMode::normal;
    options.arena_bytes = minimum_of(rig.backend(), options) + random() % 60000;
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    if (session->plan().mode == PlanMode::resident) {
      continue;
    }
    const std::uint64_t total_bytes = session->plan().total_bytes();
    const SequenceId sequence = *session->add_sequence();
    Engine engine(rig.backend(), *session, options, 16);
    Outputs outputs;
    std::uint64_t changes = 0;
    for (std::uint64_t at = 0; at < kEnd;) {
      if (random() % 3 == 0) {
        const Placement to = drawn_placement(session->plan(), 1, random);
        const auto placed = session->place(to);
        ASSERT_TRUE(placed.has_value()) << placed.error().message;
        ++changes;
        ASSERT_EQ(session->plan().ring_slots, to.ring_slots);
        ASSERT_EQ(session->plan().total_bytes(), total_bytes);
        for (const PhaseBudget& phase : session->plan().phases) {
          std::uint64_t sum = 0;
          for (const PlanComponent& component : phase.components) {
            sum += component.size_bytes;
          }
          ASSERT_EQ(sum, total_bytes);
        }
      }
      const std::uint64_t before = session->counters().streamed_pages;
      if (at < kPrompt) {
        const auto rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(16, kPrompt - at));
        ASSERT_TRUE(engine.step({{sequence, 7, at, rows}}, Phase::prefill, &outputs).has_value());
        at += rows;
        continue;
      }
      ASSERT_TRUE(engine.step({{sequence, 7, at, 1}}, Phase::decode, &outputs).has_value());
      ASSERT_EQ(session->counters().streamed_pages - before,
                streamed(session->plan(), options, at));
      ++at;
    }
    ASSERT_TRUE(same_bits(outputs, expected));
    const Counters counters = session->counters();
    EXPECT_EQ(counters.placement_changes, changes);
    EXPECT_EQ(counters.device_bytes_high_water, total_bytes);
    EXPECT_LE(counters.device_bytes_high_water, options.arena_bytes);
  }
}

// Pages that lie where they lay are not moved: the first layer's of the first sequence.
TEST(SessionPlacement, OnlyWhatLiesElsewhereIsMoved) {
  SessionOptions options = moving_options();
  options.geometry.layers.resize(1);
  options.stream.resident_pages_max = 26;
  StubRig rig;
  options.arena_bytes = minimum_of(rig.backend(), options) + 60000;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const std::uint64_t page_bytes = session->plan().pages[0].page_bytes;
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  ASSERT_TRUE(engine.prefill(sequence, 7, 0, 160, 16, nullptr).has_value());
  const auto moved = [&](std::uint64_t resident, std::uint64_t at) {
    const std::uint64_t before = session->counters().moved_bytes;
    EXPECT_TRUE(session->place({4, 2, {resident}}).has_value());
    EXPECT_EQ(session->counters().moved_bytes, before) << "moved before a step needs it";
    EXPECT_TRUE(engine.decode(sequence, 7, at, at + 1, nullptr).has_value());
    return (session->counters().moved_bytes - before) / page_bytes;
  };
  EXPECT_EQ(moved(6, 160), 0U);   // fewer: those that go just stop being resident
  EXPECT_EQ(moved(11, 161), 5U);  // five come
  EXPECT_EQ(moved(11, 162), 0U);
  EXPECT_EQ(moved(8, 163), 0U);
  EXPECT_EQ(moved(25, 164), 13U);  // as many as there are: 21 with the begun one
}

TEST(SessionPlacement, WhatCannotBeIsRefusedAndNothingChanges) {
  SessionOptions options = moving_options();
  StubRig rig;
  options.arena_bytes = minimum_of(rig.backend(), options) + 30000;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const Plan plan = session->plan();
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  ASSERT_TRUE(engine.prefill(sequence, 7, 0, kPrompt, 16, nullptr).has_value());
  EXPECT_EQ(session->place({2, 1, {0, 0}}).error().code, Errc::invalid_argument);
  EXPECT_EQ(session->place({1, 1, {0, 0, 0}}).error().code, Errc::invalid_argument);
  EXPECT_EQ(session->place({2, 3, {0, 0, 0}}).error().code, Errc::invalid_argument);
  EXPECT_EQ(session->place({40, 33, {0, 0, 0}}).error().code, Errc::device_memory);
  const auto much = session->place({2, 1, {32, 32, 32}});
  EXPECT_EQ(much.error().code, Errc::device_memory);
  EXPECT_EQ(much.error().missing, much.error().required - much.error().provided);
  EXPECT_EQ(session->observe({}).error().code, Errc::invalid_argument) << "no link is known";
  const StepRows part{sequence, 1};
  ASSERT_TRUE(session->begin_step({&part, 1}, Phase::decode).has_value());
  EXPECT_EQ(session->place({2, 1, {0, 0, 0}}).error().code, Errc::busy);
  session->cancel_step();
  EXPECT_EQ(session->plan().resident_pages, plan.resident_pages);
  EXPECT_EQ(session->counters().placement_changes, 0U);
  EXPECT_TRUE(engine.decode(sequence, 7, kPrompt, kPrompt + 3, nullptr).has_value());
  options.placement.changes = false;
  StubRig other;
  auto fixed = Session::open(other.backend(), options);
  ASSERT_TRUE(fixed.has_value()) << fixed.error().message;
  EXPECT_EQ(fixed->place({2, 1, {0, 0, 0}}).error().code, Errc::invalid_argument);
}

// Whichever submit around two moves fails, accepted or refused, the session goes on with the bits
// of a run without a failure.
TEST(SessionPlacement, AnySubmitOfAMoveMayFail) {
  SessionOptions options = moving_options();
  StubRig calm;
  options.arena_bytes = minimum_of(calm.backend(), options) + 40000;
  const auto run = [&](StubRig& rig, std::uint64_t nth) {
    Outputs last;
    auto session = Session::open(rig.backend(), options);
    EXPECT_TRUE(session.has_value());
    const SequenceId sequence = *session->add_sequence();
    Engine engine(rig.backend(), *session, options, 16);
    EXPECT_TRUE(engine.prefill(sequence, 7, 0, 150, 15, nullptr).has_value());
    std::mt19937_64 random(nth);
    if (nth != 0) {
      rig.plant(KVSPAN_FAULT_SUBMIT, nth, KVSPAN_E_FAILED);
    }
    int failures = 0;
    while (*session->tokens(sequence) < 162 && failures < 5) {
      const std::uint64_t at = *session->tokens(sequence);
      if (nth != 0 && at % 4 == 0) {
        failures += session->place(drawn_placement(session->plan(), 1, random)) ? 0 : 1;
      }
      Outputs now;
      const std::uint64_t from = *session->tokens(sequence);
      if (engine.step({{sequence, 7, from, 1}}, Phase::decode, &now)) {
        last = std::move(now);
      } else {
        ++failures;
      }
    }
    EXPECT_LT(failures, 5);
    return last;
  };
  expect_same_whichever_submit_fails(300, 1, run);
}

// Of the context: a step there is what the plan was made for.
constexpr std::uint64_t kFull = 396;

// Equal layers on a link, with a gap worth covering.
SessionOptions observed_options(const Backend& backend) {
  SessionOptions options = small_options();
  options.geometry.layers.assign(4, options.geometry.layers[0]);
  options.context_tokens = 400;
  options.prefill_rows_fixed = 16;
  options.placement.changes = true;
  options.stream.link_bytes_s = 1'000'000'000;
  options.stream.copy_ns = 200;
  options.stream.gap_ns = 5'000;
  options.arena_bytes = minimum_of(backend, options) + 90'000;
  return options;
}

// What a link of `part` of the calibrated rate would have counted in a step.
// `opened` is the plan that the session opened with.
StepObservation observation_of(const Session& session,
                               const Plan& opened,
                               std::uint64_t bytes,
                               double part) {
  StepObservation seen;
  const double byte_ns =
      opened.predicted.link_ns / static_cast<double>(opened.predicted.streamed_bytes);
  const double link_ns = static_cast<double>(bytes) * byte_ns / part;
  seen.link_busy_ns = link_ns;
  seen.elapsed_ns = std::max(session.plan().predicted.step_ns, link_ns) * 1.1;
  return seen;
}

TEST(SessionPlacement, AConstantLoadComesToRestAndASlowerLinkIsAnswered) {
  StubRig rig;
  const SessionOptions options = observed_options(rig.backend());
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  ASSERT_EQ(session->plan().mode, PlanMode::streaming);
  const Plan first = session->plan();
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  Outputs outputs;
  ASSERT_TRUE(engine.prefill(sequence, 7, 0, kFull, 16, &outputs).has_value());
  const std::uint64_t at = kFull;
  StepObservation prompt;
  prompt.elapsed_ns = 1e6;
  ASSERT_TRUE(session->observe(prompt).has_value()) << "its groups are none of the steps'";
  const auto steps = [&](int count, double part, double gap_ns) {
    std::uint64_t last = 0;
    for (int step = 1; step <= count; ++step) {
      const std::uint64_t before = session->counters().streamed_bytes;
      ASSERT_TRUE(engine.decode(sequence, 7, at, at + 1, &outputs).has_value());
      ASSERT_TRUE(session->truncate(sequence, at).has_value());
      StepObservation seen =
          observation_of(*session, first, session->counters().streamed_bytes - before, part);
      seen.gap_ns = gap_ns;
      const std::uint64_t changes = session->counters().placement_changes;
      const auto decision = session->observe(seen);
      ASSERT_TRUE(decision.has_value()) << decision.error().message;
      ASSERT_EQ(decision->changed, session->counters().placement_changes != changes);
      ASSERT_EQ(decision->placement.ring_slots, session->plan().ring_slots);
      last = decision->changed ? static_cast<std::uint64_t>(step) : last;
    }
    EXPECT_LT(last, 200U) << "a constant load does not come to rest";
  };
  steps(300, 1.0, 5'000.0);
  EXPECT_EQ(session->counters().placement_changes, 0U) << "the plan's placement is the best";
  EXPECT_EQ(session->plan().ring_slots, first.ring_slots);
  steps(400, 1.0, 40'000.0);  // a longer gap wants more ring
  const std::uint64_t changes = session->counters().placement_changes;
  EXPECT_GE(changes, 1U);
  EXPECT_GT(session->plan().ring_slots, first.ring_slots);
  steps(400, 1.0 / 16, 40'000.0);  // a slower link brings less in it
  EXPECT_GT(session->counters().placement_changes, changes);
  EXPECT_GT(session->counters().moved_bytes, 0U);
  // The bits of a session that never changed.
  SessionOptions keeps = options;
  keeps.placement.changes = false;
  keeps.arena_bytes = kResidentArena;
  StubRig other;
  auto full = Session::open(other.backend(), keeps);
  ASSERT_TRUE(full.has_value());
  const SequenceId same = *full->add_sequence();
  Engine oracle(other.backend(), *full, keeps, 16);
  Outputs expected;
  ASSERT_TRUE(oracle.prefill(same, 7, 0, kFull, 16, &expected).has_value());
  for (int step = 0; step < 1100; ++step) {
    ASSERT_TRUE(oracle.decode(same, 7, kFull, kFull + 1, &expected).has_value());
    ASSERT_TRUE(full->truncate(same, kFull).has_value());
  }
  EXPECT_TRUE(same_bits(outputs, expected));
}

// Steps at the context that there is, on a link of which nothing is learnt.
Decision observed_step(Session& session, Engine& engine, SequenceId sequence) {
  const std::uint64_t at = *session.tokens(sequence);
  EXPECT_TRUE(engine.decode(sequence, 7, at, at + 1, nullptr).has_value());
  StepObservation seen;
  seen.elapsed_ns = 1e6;
  auto decision = session.observe(seen);
  EXPECT_TRUE(decision.has_value()) << decision.error().message;
  return std::move(*decision);
}

// The plan's ring is for histories that stream much. One that fits without it streams nothing once
// it was looked at.
TEST(SessionPlacement, AShortContextIsNotPricedAsAFullOne) {
  StubRig rig;
  SessionOptions options = observed_options(rig.backend());
  options.stream.gap_ns = 40'000;
  options.stream.wave_ns = 1'000;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const std::uint64_t layers = session->plan().pages.size();
  const std::uint64_t tokens = 160;
  std::uint64_t pages = session->plan().ring_slots - 4;
  for (const std::uint32_t resident : session->plan().resident_pages) {
    pages += resident;
    ASSERT_LT(resident, tokens / 8 - 1) << "the plan streams what would fit";
  }
  ASSERT_GT(pages / layers, tokens / 8 + 1);
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  ASSERT_TRUE(engine.prefill(sequence, 7, 0, tokens, 16, nullptr).has_value());
  for (int step = 0; step < 20; ++step) {
    (void)observed_step(*session, engine, sequence);
    ASSERT_TRUE(session->truncate(sequence, tokens).has_value());
  }
  EXPECT_EQ(session->counters().placement_changes, 1U);
  const std::uint64_t before = session->counters().streamed_pages;
  ASSERT_TRUE(engine.decode(sequence, 7, tokens, tokens + 1, nullptr).has_value());
  EXPECT_EQ(session->counters().streamed_pages, before);
}

// Histories that grow, fall back, come and go. What is advised is never predicted slower than
// staying, by the test's own sum of the load; advice comes a cooldown apart, and only when it was
// asked for often enough.
TEST(SessionPlacement, AdviceIsNeverPredictedSlowerThanStaying) {
  int changes = 0;
  for (int seed = 1; seed <= seeds(20); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    StubRig rig;
    SessionOptions options = observed_options(rig.backend());
    options.sequences = 1 + static_cast<std::uint32_t>(seed % 3);
    options.placement.phases_take_turns = seed % 2 == 0;
    options.stream.wave_ns = seed % 3 == 0 ? 0 : 20'000;
    options.placement.limits.cooldown_steps = 8 + static_cast<std::uint32_t>(random() % 30);
    options.arena_bytes = minimum_of(rig.backend(), options) + 40'000 + random() % 150'000;
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    if (session->plan().mode == PlanMode::resident) {
      continue;
    }
    const PlanRequest request = plan_request(rig.backend(), options);
    Engine engine(rig.backend(), *session, options, 16);
    std::vector<SequenceId> ids;
    std::vector<std::uint64_t> seen(options.sequences);  // tokens when it was looked at last
    std::uint64_t last = 0;
    for (std::uint64_t step = 1; step <= 150; ++step) {
      if (ids.empty() || (ids.size() < options.sequences && random() % 20 == 0)) {
        ids.push_back(*session->add_sequence());
        const std::uint64_t prompt = 16 + random() % 300;
        ASSERT_TRUE(engine.prefill(ids.back(), 7, 0, prompt, 16, nullptr).has_value());
        seen[ids.back()] = prompt;
      }
      const SequenceId id = ids[random() % ids.size()];
      const std::uint64_t tokens = *session->tokens(id);
      if (tokens + 2 > options.context_tokens || random() % 40 == 0) {
        ASSERT_TRUE(session->truncate(id, random() % tokens).has_value());
      }
      const Placement placed = placement_of(entered(session->plan(), Phase::decode));
      const Decision decision = observed_step(*session, engine, id);
      ASSERT_LE(decision.predicted.step_ns, decision.stayed.step_ns);
      StepLoad load = step_load(request, session->plan());
      load.sequence_pages.clear();
      for (const SequenceId each : ids) {
        const std::uint64_t now = *session->tokens(each);
        const double grown = now > seen[each] ? 1.0 : 0.0;
        const double then = static_cast<double>(now) + grown * 128.0;
        seen[each] = now;
        const double tokens_then = std::min(static_cast<double>(options.context_tokens), then);
        load.sequence_pages.push_back((static_cast<std::uint64_t>(tokens_then) + 7) / 8);
      }
      if (decision.changed) {
        ++changes;
        ASSERT_GE(step, last + (last == 0 ? 3 : options.placement.limits.cooldown_steps));
        last = step;
        const double stays = predict(load, placed).step_ns;
        ASSERT_LE(predict(load, decision.placement).step_ns, stays);
        ASSERT_NEAR(decision.stayed.step_ns, stays, 1e-6 * stays);
      }
      ASSERT_EQ(decision.placement, placement_of(session->plan()));
    }
  }
  EXPECT_GT(changes, seeds(20) / 2);
}

// The stub measures copies in its own ticks: the session reads each once.
TEST(SessionPlacement, MeasuredCopiesTeachThePolicy) {
  StubRig rig;
  SessionOptions options = observed_options(rig.backend());
  options.placement.measures_copies = true;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  ASSERT_TRUE(engine.prefill(sequence, 7, 0, 240, 16, nullptr).has_value());
  const Plan first = session->plan();
  StepTime predicted;
  for (std::uint64_t at = 240; at < 390; ++at) {
    ASSERT_TRUE(engine.decode(sequence, 7, at, at + 1, nullptr).has_value());
    StepObservation seen;
    seen.elapsed_ns = 1e9;
    const auto decision = session->observe(seen);
    ASSERT_TRUE(decision.has_value()) << decision.error().message;
    predicted = decision->predicted;
    ASSERT_GT(predicted.step_ns, 0.0);
  }
  // Its ticks are no nanoseconds: to the policy they are a link of another rate than was said.
  EXPECT_NE(predicted.link_ns / static_cast<double>(predicted.streamed_bytes),
            first.predicted.link_ns / static_cast<double>(first.predicted.streamed_bytes));
}

}  // namespace
}  // namespace kvspan::test
