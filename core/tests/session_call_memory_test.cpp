// SPDX-License-Identifier: Apache-2.0
// Host memory that runs out in any call of a session, at any allocation, for a moment or until the
// call returns: it is answered with a value, every sequence is at a commit, all of a step or none
// of it; and what follows has the bits of a run in which there was enough. Changes of phase and
// placement: session_memory_test.cpp.
#include "failing_new.hpp"
#include "moving_rig.hpp"

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <optional>
#include <string>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kLong = 69;   // committed tokens of the first sequence
constexpr std::uint64_t kShort = 22;  // and of the second
constexpr int kLayers = 3;

// Three sequences, pages of three layers through a small ring, one layer behind a window.
SessionOptions tight_options(const Backend& backend) {
  SessionOptions options = moving_options();
  options.sequences = 3;
  options.context_tokens = 120;
  options.placement = {};
  options.arena_bytes = minimum_of(backend, options) + 4000;
  return options;
}

// Which allocation fails: the nth of call `at`.
struct Fault {
  int at = 0;
  std::uint64_t nth = 0;
  NewFails how = NewFails::once;
};

struct Answer {
  Result<void> result;
  bool fired = false;  // the allocation was reached
};

// `call` with its nth allocation failing. What is thrown is what must not be.
Answer answer_of(std::uint64_t nth, NewFails how, const std::function<Result<void>()>& call) {
  Answer answer;
  fail_new(nth, how);
  try {
    answer.result = call();
  } catch (const std::exception& thrown) {
    fail_new(0);
    ADD_FAILURE() << "thrown: " << thrown.what();
    answer.result = tl::unexpected(Error{Errc::internal, "thrown"});
  }
  answer.fired = new_has_failed();
  fail_new(0);
  EXPECT_TRUE(answer.result || answer.result.error().code == Errc::host_memory)
      << answer.result.error().message;
  return answer;
}

// nth = 1, 2, ... until `run` says that the call was over before its nth allocation. Behind the
// first dozens not each: the ways are the same there, only longer.
void for_each_allocation(const std::function<bool(std::uint64_t, NewFails)>& run) {
  for (const NewFails how : {NewFails::once, NewFails::from_then_on}) {
    const std::uint64_t dense = how == NewFails::once ? static_cast<std::uint64_t>(seeds(80)) : 4;
    const std::uint64_t stride = static_cast<std::uint64_t>(how == NewFails::once ? 9 : 17) *
                                 (KVSPAN_TEST_SANITIZED != 0 ? 10 : 1);
    for (std::uint64_t nth = 1;; nth += nth < dense ? 1 : stride) {
      SCOPED_TRACE((how == NewFails::once ? "allocation " : "from allocation ") +
                   std::to_string(nth));
      const bool fired = run(nth, how);
      if (!fired || ::testing::Test::HasFatalFailure()) {
        break;
      }
    }
  }
}

// Two sequences of a session at commits, whose steps may run out of memory.
class TwoSequences {
 public:
  static constexpr int kBegin = -1;  // a fault's call; else a layer: its write, attend and wait
  static constexpr int kCommit = kLayers;

  explicit TwoSequences(const std::function<void(SessionOptions&)>& changed = {})
      : options_(tight_options(rig_.backend())) {
    if (changed) {
      changed(options_);
      options_.arena_bytes = minimum_of(rig_.backend(), options_) + 8000;
    }
    auto opened = Session::open(rig_.backend(), options_);
    EXPECT_TRUE(opened.has_value());
    session_.emplace(std::move(*opened));
    engine_.emplace(rig_.backend(), *session_, options_, 48);
    engine_->set_content([this](std::uint64_t what,
                                std::uint64_t tag,
                                std::uint64_t layer,
                                std::uint64_t token,
                                std::uint64_t element) {
      arrive(static_cast<int>(layer));
      return noise(what, tag, layer, token, element);
    });
    engine_->before_commit([this] { arrive(kCommit); });
    for (const std::uint64_t tokens : {kLong, kShort}) {
      const SequenceId sequence = *session_->add_sequence();
      EXPECT_TRUE(engine_->prefill(sequence, sequence, 0, tokens, 16, nullptr).has_value());
    }
  }

  Session& session() { return *session_; }

  Engine& engine() { return *engine_; }

  // A step of both sequences with that fault, and what it answers.
  Answer step(Phase phase, const Fault& fault) {
    fault_ = fault;
    fault_.nth = fault.at == kBegin ? 0 : fault.nth;
    at_ = kBegin;
    const std::uint64_t nth = fault.nth - fault_.nth;
    const std::vector<EngineRows> parts = rows(phase);
    // What the engine itself allocates comes before.
    const std::vector<StepRows> begun = {{0, parts[0].rows}, {1, parts[1].rows}};
    return answer_of(nth, fault.how, [&]() -> Result<void> {
      if (fault.at == kBegin) {
        auto outcome = session_->begin_step(begun, phase);
        if (outcome) {
          session_->cancel_step();
        }
        return outcome;
      }
      return engine_->step(parts, phase, nullptr);
    });
  }

  // Both sequences have all rows of the step, where it was answered so, or none.
  void check_at_a_commit(Phase phase, bool done) {
    const std::vector<EngineRows> parts = rows(phase);
    EXPECT_EQ(*session_->tokens(0), kLong + (done ? parts[0].rows : 0));
    EXPECT_EQ(*session_->tokens(1), kShort + (done ? parts[1].rows : 0));
  }

  // The step, if it is to be done again; what a step behind it gives; and back.
  Outputs go_on(Phase phase) {
    fault_ = {};
    Outputs outputs;
    const std::vector<EngineRows> parts = rows(phase);
    if (*session_->tokens(0) == kLong) {
      const auto done = engine_->step(parts, phase, nullptr);
      EXPECT_TRUE(done.has_value()) << done.error().message;
    }
    const auto behind =
        engine_->step({{0, 0, kLong + parts[0].rows, 1}, {1, 1, kShort + parts[1].rows, 1}},
                      Phase::decode,
                      &outputs);
    EXPECT_TRUE(behind.has_value()) << behind.error().message;
    EXPECT_TRUE(session_->truncate(0, kLong).has_value());
    EXPECT_TRUE(session_->truncate(1, kShort).has_value());
    return outputs;
  }

  // Nothing is left: no block of a sequence, no memory, queue or fence of the device.
  void close() {
    for (SequenceId sequence = 0; sequence < 3; ++sequence) {
      (void)session_->remove_sequence(sequence);
    }
    EXPECT_EQ(session_->counters().host_held_bytes, 0U);
    EXPECT_EQ(session_->counters().slots_free, session_->counters().slots_total);
    engine_.reset();
    session_.reset();
    kvspan_error_t error = empty_error();
    EXPECT_EQ(rig_.close(&error), KVSPAN_OK) << error.message;
  }

 private:
  // Pages begin in both, and one ends in the second.
  static std::vector<EngineRows> rows(Phase phase) {
    const std::uint32_t rows = phase == Phase::prefill ? 16 : 1;
    return {{0, 0, kLong, rows}, {1, 1, kShort, phase == Phase::prefill ? 11U : 1U}};
  }

  // The engine is at a call: from here on it allocates nothing itself.
  void arrive(int at) {
    if (at != at_ && fault_.nth != 0) {
      if (at == fault_.at) {
        fail_new(fault_.nth, fault_.how);
      } else if (at_ == fault_.at && !new_has_failed()) {
        fail_new(0);
      }
    }
    at_ = at;
  }

  StubRig rig_;
  SessionOptions options_;
  std::optional<Session> session_;
  std::optional<Engine> engine_;
  Fault fault_;
  int at_ = kBegin;
};

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
