// SPDX-License-Identifier: Apache-2.0
// Two sequences of a session on the stub whose calls run out of host memory, at an allocation that
// is counted. Read first: failing_new.hpp.
#pragma once

#include "failing_new.hpp"
#include "moving_rig.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::test {

inline constexpr std::uint64_t kLong = 69;   // committed tokens of the first sequence
inline constexpr std::uint64_t kShort = 22;  // and of the second
inline constexpr int kLayers = 3;

// Three sequences, pages of three layers through a small ring, one layer behind a window.
inline SessionOptions tight_options(const Backend& backend) {
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

// `call` with its nth allocation failing. What is thrown is what must not be; `or_else` may be told
// as well.
inline Answer answer_of(std::uint64_t nth,
                        NewFails how,
                        const std::function<Result<void>()>& call,
                        Errc or_else = Errc::host_memory) {
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
  EXPECT_TRUE(answer.result || answer.result.error().code == Errc::host_memory ||
              answer.result.error().code == or_else)
      << answer.result.error().message;
  return answer;
}

// nth = 1, 2, ... until `run` says that the call was over before its nth allocation. Behind the
// first dozens not each: the ways are the same there, only longer.
inline void for_each_allocation(const std::function<bool(std::uint64_t, NewFails)>& run) {
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

  explicit TwoSequences(const std::function<void(SessionOptions&)>& changed = {},
                        const std::map<std::string, std::string>& stub = {})
      : rig_(stub), options_(tight_options(rig_.backend())) {
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
  Answer step(Phase phase, const Fault& fault, Errc or_else = Errc::host_memory) {
    fault_ = fault;
    fault_.nth = fault.at == kBegin ? 0 : fault.nth;
    at_ = kBegin;
    const std::uint64_t nth = fault.nth - fault_.nth;
    const std::vector<EngineRows> parts = rows(phase);
    // What the engine itself allocates comes before.
    const std::vector<StepRows> begun = {{0, parts[0].rows}, {1, parts[1].rows}};
    const auto call = [&]() -> Result<void> {
      if (fault.at == kBegin) {
        auto outcome = session_->begin_step(begun, phase);
        if (outcome) {
          session_->cancel_step();
        }
        return outcome;
      }
      return engine_->step(parts, phase, nullptr);
    };
    return answer_of(nth, fault.how, call, or_else);
  }

  // The last rows of the first sequence anew, with the nth submit failing. False: that was told
  // before the end of the step. True: they are committed, and their copies may fail.
  bool rewrite(std::uint64_t nth) {
    fault_ = {};
    EXPECT_TRUE(session_->truncate(0, kLong - 5).has_value());
    rig_.plant(KVSPAN_FAULT_SUBMIT, nth, KVSPAN_E_FAILED);
    const bool done = engine_->prefill(0, 0, kLong - 5, kLong, 5, nullptr).has_value();
    rig_.plant(0, 0, KVSPAN_OK);
    return done;
  }

  // Rows that fell, once more.
  void catch_up() {
    fault_ = {};
    const auto done = engine_->prefill(0, 0, *session_->tokens(0), kLong, 16, nullptr);
    EXPECT_TRUE(done.has_value()) << done.error().message;
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

}  // namespace kvspan::test
