// SPDX-License-Identifier: Apache-2.0
// Host pages are made ready ahead of the steps that need them: a step takes host memory and makes
// it reachable behind what its last layer submitted only, for the step after it, as long as that is
// as wide; no more is taken than full sequences need; and what could not be taken ahead is taken,
// or refused, when the step begins.
#include "engine_rig.hpp"
#include "random_page.hpp"
#include "watched_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace kvspan::test {
namespace {

// Two classes of host pages: all of the context, and a window of which the two sequences hold a
// chunk of 16 pages at most.
SessionOptions ahead_options(const std::string& plugin) {
  SessionOptions options;
  options.geometry.layers = {
      {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 32, 32, 2, 4},
      {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 32, 32, 2, 4},
  };
  options.geometry.page_tokens = plugin == "cpu" ? 32 : 8;
  options.geometry.layers.back().window_tokens = 4ULL * options.geometry.page_tokens;
  options.rewind_tokens = 0;
  options.context_tokens = 40ULL * options.geometry.page_tokens;
  options.prefill_rows_fixed = options.prefill_rows_max = options.geometry.page_tokens * 3 / 2;
  options.sequences = 2;
  return options;
}

Result<Session> open(const Backend& backend, SessionOptions& options) {
  options.arena_bytes = plan(plan_request(backend, options))->minimum_arena_bytes + 20000;
  return Session::open(backend, options);
}

class SessionAhead : public ::testing::TestWithParam<const char*> {};

// The step's first calls find everything there, and so does its commit.
TEST_P(SessionAhead, AStepTakesHostMemoryBehindItsLastSubmitOnly) {
  const WatchedRig rig(GetParam(), [](auto) {});
  SessionOptions options = ahead_options(GetParam());
  auto session = open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  EXPECT_EQ(session->counters().host_bytes, 0U) << "nobody needs any";
  const std::uint32_t chunk = session->plan().prefill_rows;
  Engine engine(rig.backend(), *session, options, 2 * chunk);
  std::vector<EngineRows> parts;
  for (std::uint32_t index = 0; index < options.sequences; ++index) {
    parts.push_back({*session->add_sequence(), index, 0, chunk});
  }
  const std::uint64_t first = session->counters().host_bytes;
  std::vector<std::uint64_t> taken;  // before each call
  engine.before_call([&] { taken.push_back(WatchedRig::taken()); });
  const auto step = [&](Phase phase) {
    taken.assign(1, WatchedRig::taken());
    const auto done = engine.step(parts, phase, nullptr);
    ASSERT_TRUE(done.has_value()) << done.error().message;
    // Behind the last attend come a wait and the commit.
    const auto attended = taken.end() - 2;
    EXPECT_EQ(std::count(taken.begin(), attended, taken.front()), attended - taken.begin());
    EXPECT_EQ(taken.back(), *attended);
    EXPECT_EQ(WatchedRig::taken(), taken.back()) << "in the commit";
    for (EngineRows& part : parts) {
      part.first_token += part.rows;
    }
  };
  while (parts.front().first_token < options.context_tokens / 2) {
    ASSERT_NO_FATAL_FAILURE(step(Phase::prefill));
  }
  for (EngineRows& part : parts) {
    part.rows = 1;
  }
  while (parts.front().first_token < options.context_tokens) {
    ASSERT_NO_FATAL_FAILURE(step(Phase::decode));
  }
  EXPECT_GT(session->counters().host_bytes, first) << "history grew over several chunks";
  EXPECT_EQ(session->counters().host_bytes, session->plan().pinned_bytes);
}

TEST_P(SessionAhead, NoStepBehindALoadTakesHostMemory) {
  const WatchedRig rig(GetParam(), [](auto) {});
  SessionOptions options = ahead_options(GetParam());
  options.sequences = 1;
  auto session = open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const SequenceId sequence = *session->add_sequence();
  const std::uint64_t tokens = 16ULL * options.geometry.page_tokens;  // chunks that are full
  ASSERT_TRUE(session->load(sequence, tokens, random_page).has_value());
  Engine engine(rig.backend(), *session, options, 64);
  const std::uint64_t taken = WatchedRig::taken();
  engine.before_commit([&] { EXPECT_EQ(WatchedRig::taken(), taken); });
  ASSERT_TRUE(engine.decode(sequence, 7, tokens, tokens + 1, nullptr).has_value());
}

// Nobody waits, so that pages behind the window have copies under way when the next step's pages
// are due: those go back first, and nothing is taken beyond them.
TEST_P(SessionAhead, NoMoreIsTakenThanFullSequencesNeed) {
  const WatchedRig rig(GetParam(), [](auto) {});
  SessionOptions options = ahead_options(GetParam());
  auto session = open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const std::uint32_t chunk = session->plan().prefill_rows;
  Engine engine(rig.backend(), *session, options, 2 * chunk);
  engine.never_wait(rig.backend(), 2 * chunk);
  std::vector<EngineRows> parts;
  for (std::uint32_t index = 0; index < options.sequences; ++index) {
    parts.push_back({*session->add_sequence(), index, 0, chunk});
  }
  while (parts.front().first_token + chunk <= options.context_tokens) {
    ASSERT_TRUE(engine.step(parts, Phase::prefill, nullptr).has_value());
    ASSERT_LE(session->counters().host_bytes, session->plan().pinned_bytes);
    for (EngineRows& part : parts) {
      part.first_token += chunk;
    }
  }
  Outputs outputs;
  EXPECT_TRUE(engine.settle(&outputs).has_value());
}

INSTANTIATE_TEST_SUITE_P(Plugins, SessionAhead, ::testing::Values("stub", "cpu"));

// What is refused ahead costs nothing: the next step asks again, and says why if that is refused
// too.
TEST(SessionAheadRefused, IsTriedAgainWhenTheStepBegins) {
  for (const bool again : {false, true}) {
    SCOPED_TRACE(again ? "refused twice" : "refused once");
    const WatchedRig rig("stub", [](auto) {});
    SessionOptions options = ahead_options("stub");
    options.sequences = 1;
    auto session = open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    const SequenceId sequence = *session->add_sequence();
    Engine engine(rig.backend(), *session, options, 64);
    constexpr std::uint64_t kFull = 16 * 8;  // a chunk of every class
    ASSERT_TRUE(engine.prefill(sequence, 7, 0, kFull - 1, 1, nullptr).has_value());
    WatchedRig::refuse(again ? 100 : 1);  // the first class of two; or all
    const std::uint64_t before = WatchedRig::taken();
    ASSERT_TRUE(engine.decode(sequence, 7, kFull - 1, kFull, nullptr).has_value())
        << "what comes ahead is no part of the step";
    EXPECT_LT(WatchedRig::refused_left(), again ? 100U : 1U);
    EXPECT_GE(WatchedRig::taken(), before);
    const StepRows one{sequence, 1};
    const auto begun = session->begin_step({&one, 1}, Phase::decode);
    EXPECT_EQ(begun.has_value(), !again);
    if (again) {
      EXPECT_EQ(begun.error().code, Errc::host_memory) << begun.error().message;
      EXPECT_EQ(*session->tokens(sequence), kFull);
    }
    session->cancel_step();
    WatchedRig::refuse(0);
    EXPECT_TRUE(engine.decode(sequence, 7, kFull, kFull + 40, nullptr).has_value());
  }
}

}  // namespace
}  // namespace kvspan::test
