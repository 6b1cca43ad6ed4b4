// SPDX-License-Identifier: Apache-2.0
// Host memory that runs out in any call of a session, at any allocation, for a moment or until the
// call returns: it is answered with a value, every sequence is at a commit, all of a step or none
// of it; and what follows has the bits of a run in which there was enough. Changes of phase and
// placement: session_memory_test.cpp.
#include "two_sequences_rig.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::test {
namespace {

class SessionCallMemory : public ::testing::TestWithParam<std::pair<Phase, int>> {};

TEST_P(SessionCallMemory, AnyAllocationOfAStepMayFail) {
  const auto [phase, at] = GetParam();
  TwoSequences two;
  const Outputs expected = two.go_on(phase);
  std::uint64_t fired = 0;
  for_each_allocation([&, phase = phase, at = at](std::uint64_t nth, NewFails how) {
    const Answer answer = two.step(phase, {at, nth, how});
    two.check_at_a_commit(phase, answer.result && at != TwoSequences::kBegin);
    EXPECT_TRUE(answer.result || at != TwoSequences::kCommit) << "a commit takes nothing";
    fired += answer.fired ? 1U : 0U;
    EXPECT_TRUE(same_bits(two.go_on(phase), expected));
    return answer.fired && !HasFailure();
  });
  EXPECT_GT(fired, 3U) << "the call allocates";
  EXPECT_GT(two.session().counters().retired_pages, 0U);
  two.close();
}

INSTANTIATE_TEST_SUITE_P(Steps, SessionCallMemory, ::testing::ValuesIn([] {
                           std::vector<std::pair<Phase, int>> calls;
                           for (const Phase phase : {Phase::prefill, Phase::decode}) {
                             for (int at = TwoSequences::kBegin; at <= TwoSequences::kCommit;
                                  ++at) {
                               calls.emplace_back(phase, at);
                             }
                           }
                           return calls;
                         }()));

// A sequence of bytes that are no NaN in any type of the geometry.
Result<void> pattern(std::uint32_t layer, std::uint64_t page, std::span<std::byte> bytes) {
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] = static_cast<std::byte>((at * 7 + page * 3 + layer) % 48);
  }
  return {};
}

// A third sequence comes, is loaded, cut and goes: where the nth allocation of a call failed, once
// more. Behind each call, what the others attend.
TEST(SessionCallMemoryBetweenSteps, AnyAllocationOfACallMayFail) {
  TwoSequences two;
  Session& session = two.session();
  const Outputs expected = two.go_on(Phase::decode);
  constexpr std::uint64_t kLoaded = 61;
  SequenceId third = 0;
  const auto attended = [&] {
    Outputs outputs;
    const auto done =
        two.engine().step({{third, 3, *session.tokens(third), 1}}, Phase::decode, &outputs);
    EXPECT_TRUE(done.has_value()) << done.error().message;
    return outputs;
  };
  const auto add = [&]() -> Result<void> {
    auto added = session.add_sequence();
    third = added.value_or(0);
    return added ? Result<void>() : tl::unexpected(std::move(added).error());
  };
  const auto load = [&] { return session.load(third, kLoaded, pattern); };
  const auto cut = [&] { return session.truncate(third, kLoaded - 9); };
  const auto remove = [&] { return session.remove_sequence(third); };
  // Whatever of a call went wrong, it left the sequence as it was.
  const auto call = [&](const Fault& fault,
                        int at,
                        std::optional<std::uint64_t> tokens,
                        const std::function<Result<void>()>& does) {
    bool fired = false;
    if (fault.at == at) {
      const Answer answer = answer_of(fault.nth, fault.how, does);
      fired = answer.fired;
      if (answer.result) {
        return fired;
      }
      if (tokens) {
        EXPECT_EQ(session.tokens(third).value_or(UINT64_MAX), *tokens);
      }
      if (at == 1) {  // empty in earnest: rows may go where what was to be loaded has no pages
        EXPECT_FALSE(attended().empty());
        EXPECT_TRUE(session.truncate(third, 0).has_value());
      }
    }
    const auto done = does();
    EXPECT_TRUE(done.has_value()) << done.error().message;
    return fired;
  };
  Outputs loaded;
  for (int at = 0; at < 4; ++at) {
    SCOPED_TRACE("call " + std::to_string(at));
    for_each_allocation([&](std::uint64_t nth, NewFails how) {
      const Fault fault{at, nth, how};
      bool fired = call(fault, 0, std::nullopt, add);
      fired |= call(fault, 1, 0, load);
      Outputs outputs = attended();
      fired |= call(fault, 2, kLoaded + 1, cut);
      for (std::vector<float>& more : attended()) {
        outputs.push_back(std::move(more));
      }
      fired |= call(fault, 3, kLoaded - 8, remove);
      loaded = loaded.empty() ? outputs : loaded;
      EXPECT_TRUE(same_bits(outputs, loaded));
      EXPECT_TRUE(same_bits(two.go_on(Phase::decode), expected));
      return fired && !::testing::Test::HasFailure();
    });
  }
  two.close();
}

// Copies of a commit fail late, and memory runs out in the step behind it: where rows fell with
// that step the answer says so, whatever else went wrong.
TEST(SessionCallMemoryBetweenSteps, AFallIsToldWithoutMemory) {
  int falls = 0;
  for (int seed = 1; seed <= seeds(60); ++seed) {
    TwoSequences two({}, {{"queues", "shuffled"}, {"seed", std::to_string(seed)}});
    const Outputs expected = two.go_on(Phase::decode);
    for (std::uint64_t submit = 44; submit <= 50; ++submit) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", submit " + std::to_string(submit));
      if (two.rewrite(submit)) {
        const Answer answer = two.step(Phase::decode, {0, 1, NewFails::once}, Errc::wait_failed);
        const bool fell = *two.session().tokens(0) != kLong;
        ASSERT_FALSE(answer.result.has_value());
        if (answer.fired) {
          EXPECT_EQ(answer.result.error().code, fell ? Errc::wait_failed : Errc::host_memory);
          falls += fell ? 1 : 0;
        }
      }
      two.catch_up();
      ASSERT_TRUE(same_bits(two.go_on(Phase::decode), expected));
    }
    two.close();
  }
  EXPECT_TRUE(falls > 0 || KVSPAN_TEST_SANITIZED != 0) << "rare: the last copy of a step is late";
}

// Calls that are refused, without memory for the words of the refusal: the code is another, and
// nothing is changed.
TEST(SessionCallMemoryBetweenSteps, ARefusalNeedsNoMemory) {
  TwoSequences two;
  Session& session = two.session();
  const Outputs expected = two.go_on(Phase::decode);
  const StepRows unknown{9, 1};
  const StepRows wide{0, 99};
  const auto void_of = [](auto answer) {
    return answer ? Result<void>() : tl::unexpected(std::move(answer).error());
  };
  const std::vector<std::function<Result<void>()>> refused = {
      [&] { return session.remove_sequence(9); },
      [&] { return session.truncate(0, 99); },
      [&] { return session.truncate(0, 1); },
      [&] { return session.load(9, 1, pattern); },
      [&] { return session.load(0, 1, pattern); },
      [&] { return session.place({}); },
      [&] { return void_of(session.observe({})); },
      [&] {
        return session.begin_step({&unknown, 1}, Phase::decode);
      },
      [&] {
        return session.begin_step({&wide, 1}, Phase::decode);
      },
      [&] { return session.write(0, {}); },
      [&] { return void_of(session.attend(0, {})); },
      [&] { return session.commit({}); },
      [&] { return void_of(session.tokens(9)); },
      [&] { return void_of(session.truncation_limit(9)); }};
  for (std::size_t index = 0; index < refused.size(); ++index) {
    SCOPED_TRACE("call " + std::to_string(index));
    const Errc code = refused[index]().error().code;
    for (std::uint64_t nth = 1; nth < 4; ++nth) {
      fail_new(nth, NewFails::from_then_on);
      const auto answer = refused[index]();
      const bool fired = new_has_failed();
      fail_new(0);
      EXPECT_EQ(answer.error().code, fired ? Errc::host_memory : code);
    }
    EXPECT_TRUE(same_bits(two.go_on(Phase::decode), expected));
  }
  two.close();
}

// The policy is told about a step: it may move pages or not.
TEST(SessionCallMemoryBetweenSteps, AnyAllocationOfAnObservationMayFail) {
  TwoSequences two([](SessionOptions& options) {
    options.placement.changes = true;
    options.stream.link_bytes_s = 1'000'000'000;
    options.stream.copy_ns = 200;
  });
  Session& session = two.session();
  const Outputs expected = two.go_on(Phase::decode);
  StepObservation seen;
  seen.elapsed_ns = 1e6;
  seen.link_busy_ns = 1e5;
  std::uint64_t fired = 0;
  for_each_allocation([&](std::uint64_t nth, NewFails how) {
    const Answer answer = answer_of(nth, how, [&]() -> Result<void> {
      auto decision = session.observe(seen);
      return decision ? Result<void>() : tl::unexpected(std::move(decision).error());
    });
    fired += answer.fired ? 1U : 0U;
    EXPECT_TRUE(same_bits(two.go_on(Phase::decode), expected));
    return answer.fired && !::testing::Test::HasFailure();
  });
  EXPECT_GT(fired, 10U);
  two.close();
}

// A session opens, and its first step takes the first chunks of every class of pages.
TEST(SessionCallMemoryBetweenSteps, AnyAllocationOfABeginningMayFail) {
  Outputs expected;
  for (int at = 0; at < 3; ++at) {
    SCOPED_TRACE("call " + std::to_string(at));
    for_each_allocation([&](std::uint64_t nth, NewFails how) {
      StubRig rig;
      const SessionOptions options = tight_options(rig.backend());
      std::optional<Session> session;
      std::vector<std::function<Result<void>()>> calls;
      calls.emplace_back([&]() -> Result<void> {
        auto opened = Session::open(rig.backend(), options);
        if (!opened) {
          return tl::unexpected(std::move(opened).error());
        }
        session.emplace(std::move(*opened));
        return {};
      });
      calls.emplace_back([&]() -> Result<void> {
        auto added = session->add_sequence();
        return added ? Result<void>() : tl::unexpected(std::move(added).error());
      });
      const StepRows rows{0, 16};
      calls.emplace_back([&] { return session->begin_step({&rows, 1}, Phase::prefill); });
      bool fired = false;
      for (int index = 0; index < 3; ++index) {
        const auto& each = calls[static_cast<std::size_t>(index)];
        const Answer answer = answer_of(index == at ? nth : 0, how, each);
        fired |= answer.fired;
        if (!answer.result) {
          const auto again = each();
          EXPECT_TRUE(again.has_value()) << again.error().message;
        }
      }
      session->cancel_step();
      Outputs outputs;
      {
        Engine engine(rig.backend(), *session, options, 16);
        EXPECT_TRUE(engine.prefill(0, 7, 0, 40, 16, nullptr).has_value());
        EXPECT_TRUE(engine.decode(0, 7, 40, 42, &outputs).has_value());
      }
      expected = expected.empty() ? outputs : expected;
      EXPECT_TRUE(same_bits(outputs, expected));
      EXPECT_TRUE(session->remove_sequence(0).has_value());
      EXPECT_EQ(session->counters().host_held_bytes, 0U);
      session.reset();
      kvspan_error_t error = empty_error();
      EXPECT_EQ(rig.close(&error), KVSPAN_OK) << error.message;
      return fired && !::testing::Test::HasFailure();
    });
  }
}

}  // namespace
}  // namespace kvspan::test
