// SPDX-License-Identifier: Apache-2.0
// Failures as values: the nth allocation, the nth submit, cancellation at any call. Afterwards
// every sequence is at a commit, nothing leaked, and the run that goes on has the bits of the run
// in which nothing happened.
#include "kvspan/core/session/session.hpp"

#include "cancel_rig.hpp"
#include "engine_rig.hpp"
#include "stub_rig.hpp"
#include "watched_rig.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvspan::test {
namespace {

constexpr std::uint32_t kChunk = 11;
constexpr std::uint64_t kTokens = 77;

SessionOptions streaming_options(const Backend& backend) {
  SessionOptions options = small_options();
  options.prefill_rows_fixed = kChunk;
  options.arena_bytes = plan(plan_request(backend, options))->minimum_arena_bytes + 3000;
  return options;
}

// Appends from the committed tokens to kTokens, then attends one decode token and truncates it away
// again: what the sequence is, in bits.
Outputs finish(Session& session, Engine& engine, SequenceId sequence) {
  std::uint64_t token = *session.tokens(sequence);
  while (token < kTokens) {
    const auto rows = static_cast<std::uint32_t>(std::min<std::uint64_t>(kChunk, kTokens - token));
    const auto done = engine.step({{sequence, 7, token, rows}}, Phase::prefill, nullptr);
    EXPECT_TRUE(done.has_value()) << done.error().message;
    if (!done) {
      return {};
    }
    token += rows;
  }
  Outputs outputs;
  EXPECT_TRUE(engine.step({{sequence, 7, token, 1}}, Phase::decode, &outputs).has_value());
  return outputs;
}

Outputs undisturbed() {
  StubRig rig;
  SessionOptions options = streaming_options(rig.backend());
  auto session = Session::open(rig.backend(), options);
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 64);
  return finish(*session, engine, sequence);
}

constexpr std::uint64_t kGrownTokens = 950;
constexpr std::uint64_t kAllocations = 20;

// Four windows, each with chunks of its own of 16 pages: histories grow some twenty times.
SessionOptions growing_options(const Backend& backend) {
  SessionOptions options;
  for (const std::uint64_t window : {0U, 100U, 200U, 300U}) {
    options.geometry.layers.push_back({KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 8, 8, 1, 1, window});
  }
  options.geometry.page_tokens = 8;
  options.context_tokens = kGrownTokens + 1;
  options.prefill_rows_fixed = options.prefill_rows_max = 50;
  options.arena_bytes = plan(plan_request(backend, options))->minimum_arena_bytes + 3000;
  return options;
}

// Where a step cannot begin for want of memory, the sequence stays as it is; with enough memory it
// goes on there. Returns the outputs behind the last row.
Outputs grow(const WatchedRig& rig, Session& session, const SessionOptions& options) {
  const SequenceId sequence = *session.add_sequence();
  Engine engine(rig.unwatched(), session, options, 50);
  std::uint64_t token = 0;
  while (token < kGrownTokens) {
    const auto done = engine.step({{sequence, 7, token, 50}}, Phase::prefill, nullptr);
    token += done ? 50U : 0U;
    EXPECT_EQ(*session.tokens(sequence), token);
    if (!done) {
      EXPECT_EQ(done.error().code, Errc::host_memory) << done.error().message;
      EXPECT_NE(WatchedRig::refused_left(), 0U) << "one that is refused is tried again";
      if (WatchedRig::refused_left() == 0) {
        return {};
      }
      WatchedRig::refuse(0);
    }
  }
  Outputs outputs;
  EXPECT_TRUE(engine.step({{sequence, 7, token, 1}}, Phase::decode, &outputs).has_value());
  return outputs;
}

// The first allocations are those of the opening, the others come as the history grows: one is
// refused, or all from there on.
TEST(SessionFailure, NthAllocationIsAnErrorThatLeaksNothing) {
  Outputs expected;
  int opened = 0;
  for (std::uint64_t nth = 0; nth <= kAllocations; ++nth) {
    for (const std::uint64_t count : {1U, 1000U}) {
      SCOPED_TRACE("allocation " + std::to_string(nth) + ", " + std::to_string(count));
      WatchedRig rig("stub", [](auto) {});
      const SessionOptions options = growing_options(rig.backend());
      WatchedRig::refuse(nth == 0 ? 0 : count, nth == 0 ? 0 : nth - 1);
      {
        auto session = Session::open(rig.backend(), options);
        if (!session) {
          const Errc code = session.error().code;
          EXPECT_TRUE(code == Errc::device_memory || code == Errc::host_memory)
              << session.error().message;
          EXPECT_EQ(opened, 0) << "a later allocation is not the opening's";
          EXPECT_EQ(WatchedRig::refused_left(), count - 1);
          WatchedRig::refuse(0);
          session = Session::open(rig.backend(), options);
        } else {
          opened += nth == 0 ? 0 : 1;
        }
        ASSERT_TRUE(session.has_value()) << session.error().message;
        const Outputs outputs = grow(rig, *session, options);
        expected = nth == 0 ? outputs : expected;
        EXPECT_TRUE(same_bits(outputs, expected));
      }
      EXPECT_EQ(WatchedRig::refused_left(), 0U) << "nobody allocated so often";
      kvspan_error_t error = empty_error();
      ASSERT_EQ(rig.close(&error), KVSPAN_OK) << error.message;
    }
  }
  EXPECT_GT(opened, 30) << "most of them are the history's";
}

TEST(SessionFailure, NthSubmitFailsTheStepAndTheNextGoesOn) {
  const Outputs expected = undisturbed();
  for (const char* const queues : {"one", "shuffled"}) {
    for (std::uint64_t nth = 1; nth <= 160; nth += nth < 40 ? 1 : 7) {
      SCOPED_TRACE(std::string(queues) + ", submit " + std::to_string(nth));
      StubRig rig({{"queues", queues}, {"seed", std::to_string(nth)}});
      const SessionOptions options = streaming_options(rig.backend());
      {
        auto session = Session::open(rig.backend(), options);
        ASSERT_TRUE(session.has_value());
        const SequenceId sequence = *session->add_sequence();
        Engine engine(rig.backend(), *session, options, 64);
        rig.plant(KVSPAN_FAULT_SUBMIT, nth, KVSPAN_E_FAILED);
        std::uint64_t token = 0;
        while (token < kTokens) {
          const auto rows =
              static_cast<std::uint32_t>(std::min<std::uint64_t>(kChunk, kTokens - token));
          const auto done = engine.step({{sequence, 7, token, rows}}, Phase::prefill, nullptr);
          if (!done) {
            break;
          }
          token += rows;
        }
        rig.plant(0, 0, KVSPAN_OK);
        // A failure after the last step shows at the next begin; recover by asking once more.
        std::uint64_t at = *session->tokens(sequence);
        EXPECT_LE(at, kTokens);
        Outputs outputs;
        for (int attempt = 0; attempt < 3 && outputs.empty(); ++attempt) {
          at = *session->tokens(sequence);
          bool complete = true;
          while (at < kTokens) {
            const auto rows =
                static_cast<std::uint32_t>(std::min<std::uint64_t>(kChunk, kTokens - at));
            if (!engine.step({{sequence, 7, at, rows}}, Phase::prefill, nullptr)) {
              complete = false;
              break;
            }
            at = *session->tokens(sequence);
          }
          if (complete && !engine.step({{sequence, 7, at, 1}}, Phase::decode, &outputs)) {
            outputs.clear();
          }
        }
        EXPECT_TRUE(same_bits(outputs, expected));
      }
      kvspan_error_t error = empty_error();
      ASSERT_EQ(rig.close(&error), KVSPAN_OK) << error.message;
    }
  }
}

// Cancels before the nth call of a step: begin, write, attend and wait of both layers, commit. That
// call says so, on a device that sees cancel words and on one that never does, and the step after
// it begins.
TEST(SessionFailure, CancelAtAnyCallLeavesTheLastCommit) {
  const Outputs expected = undisturbed();
  for (const bool deaf : {false, true}) {
    for (int call = 0; call < kCallsOfAStep; ++call) {
      SCOPED_TRACE("call " + std::to_string(call) + (deaf ? ", cancel words unseen" : ""));
      CancelRig rig({{"queues", "shuffled"}, {"seed", std::to_string(call + 1)}});
      rig.set_deaf(deaf);
      const SessionOptions options = streaming_options(rig.backend());
      auto session = Session::open(rig.backend(), options);
      ASSERT_TRUE(session.has_value());
      const SequenceId sequence = *session->add_sequence();
      Engine engine(rig.backend(), *session, options, 64);
      ASSERT_TRUE(engine.prefill(sequence, 7, 0, 4 * kChunk, kChunk, nullptr).has_value());
      AstrayStep step(rig.backend(), *session, {sequence, kChunk});
      for (int at = 0; at < call; ++at) {
        ASSERT_TRUE(step.call(at).has_value());
      }
      session->cancel();
      const auto stopped = step.call(call);
      ASSERT_FALSE(stopped.has_value());
      EXPECT_EQ(stopped.error().code, Errc::cancelled) << stopped.error().message;
      EXPECT_EQ(*session->tokens(sequence), 4 * kChunk);
      EXPECT_TRUE(step.call(0).has_value()) << "it was told once";
      session->cancel_step();
      EXPECT_TRUE(same_bits(finish(*session, engine, sequence), expected));
    }
  }
}

TEST(SessionFailure, WrongCallsAreRefusedAndNothingIsLost) {
  StubRig rig;
  const SessionOptions options = streaming_options(rig.backend());
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value());
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 64);
  const StepRows none{sequence, 0};
  const StepRows wide{sequence, kChunk + 1};
  const StepRows unknown{sequence + 1, 1};
  const StepRows twice[] = {{sequence, 1}, {sequence, 1}};
  EXPECT_EQ(session->begin_step({&none, 1}, Phase::prefill).error().code, Errc::invalid_argument);
  EXPECT_EQ(session->begin_step({&wide, 1}, Phase::prefill).error().code, Errc::invalid_argument);
  EXPECT_EQ(session->begin_step({&unknown, 1}, Phase::prefill).error().code, Errc::not_found);
  EXPECT_EQ(session->begin_step(twice, Phase::prefill).error().code, Errc::invalid_argument);
  EXPECT_EQ(session->begin_step({}, Phase::prefill).error().code, Errc::invalid_argument);
  EXPECT_FALSE(session->write(0, {}).has_value());
  EXPECT_FALSE(session->attend(0, {}).has_value());
  EXPECT_FALSE(session->commit({}).has_value());
  const StepRows one{sequence, 1};
  ASSERT_TRUE(session->begin_step({&one, 1}, Phase::decode).has_value());
  EXPECT_EQ(session->begin_step({&one, 1}, Phase::decode).error().code, Errc::busy);
  EXPECT_EQ(session->truncate(sequence, 0).error().code, Errc::busy);
  EXPECT_FALSE(session->write(1, {}).has_value());
  session->cancel_step();
  EXPECT_EQ(*session->tokens(sequence), 0U);
  const Outputs outputs = finish(*session, engine, sequence);
  EXPECT_TRUE(same_bits(outputs, undisturbed()));
  // Past the context: refused with the amounts, the sequence as before.
  std::uint64_t token = *session->tokens(sequence);
  for (; token < options.context_tokens; ++token) {
    ASSERT_TRUE(engine.step({{sequence, 7, token, 1}}, Phase::decode, nullptr).has_value());
  }
  const auto full = session->begin_step({&one, 1}, Phase::decode);
  EXPECT_EQ(full.error().code, Errc::too_large);
  EXPECT_EQ(full.error().missing, 1U);
}

}  // namespace
}  // namespace kvspan::test
