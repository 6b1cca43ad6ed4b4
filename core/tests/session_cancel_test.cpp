// SPDX-License-Identifier: Apache-2.0
// Cancelled in the middle of a call: in every submit of a step, and by a thread that nobody waits
// for. Nothing is submitted behind it, the running call or the next says so, the step after that
// works, and the outputs have the bits of the run that nobody cancelled.
#include "kvspan/core/session/session.hpp"

#include "cancel_rig.hpp"
#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvspan::test {
namespace {

// How much a plugin reads: a prompt in chunks, then token by token. A page is what its granule
// asks.
struct Text {
  std::uint32_t page_tokens;
  std::uint32_t chunk;
  std::uint64_t prompt;
  std::uint64_t end;

  // The step that begins at token `at`.
  [[nodiscard]] std::uint32_t rows(std::uint64_t at) const { return at < prompt ? chunk : 1; }

  [[nodiscard]] Phase phase(std::uint64_t at) const {
    return at < prompt ? Phase::prefill : Phase::decode;
  }
};

constexpr std::uint32_t kChunk = 11;
constexpr Text kStubText = {8, kChunk, 7 * kChunk, 110};
constexpr Text kCpuText = {32, 40, 280, 330};

// Waves of a page each, and few slots for them.
SessionOptions streaming_options(const Backend& backend, const Text& text) {
  SessionOptions options = small_options();
  options.geometry.page_tokens = text.page_tokens;
  options.context_tokens = text.end;
  options.prefill_rows_max = options.prefill_rows_fixed = text.chunk;
  options.stream.group_pages = 1;
  options.arena_bytes = plan(plan_request(backend, options))->minimum_arena_bytes + 3000;
  return options;
}

// What each step gives, by the token that it begins with.
using ByToken = std::vector<Outputs>;

// One sequence in a session of its own.
class Reading {
 public:
  Reading(const Backend& backend, const Text& text, const SessionOptions& options)
      : text_(text),
        session_(std::move(Session::open(backend, options).value())),
        sequence_(session_.add_sequence().value()),
        engine_(backend, session_, options, text.chunk) {}

  [[nodiscard]] Session& session() { return session_; }

  [[nodiscard]] Engine& engine() { return engine_; }

  [[nodiscard]] SequenceId sequence() const { return sequence_; }

  [[nodiscard]] std::uint64_t tokens() const { return session_.tokens(sequence_).value(); }

  Result<void> step(std::uint64_t at, Outputs* outputs) {
    return engine_.step({{sequence_, 7, at, text_.rows(at)}}, text_.phase(at), outputs);
  }

  // From where the sequence is to the text's end.
  void expect_the_rest(const ByToken& expected) {
    for (std::uint64_t at = tokens(); at < text_.end; at += text_.rows(at)) {
      Outputs outputs;
      const auto done = step(at, &outputs);
      ASSERT_TRUE(done.has_value()) << done.error().message;
      ASSERT_TRUE(same_bits(outputs, expected[at])) << "the step at token " << at;
    }
  }

 private:
  const Text& text_;
  Session session_;
  SequenceId sequence_;
  Engine engine_;
};

// Nobody cancels, nothing streams.
ByToken undisturbed(const Backend& backend, const Text& text) {
  SessionOptions options = streaming_options(backend, text);
  options.arena_bytes = kResidentArena;
  Reading reading(backend, text, options);
  ByToken out(text.end);
  for (std::uint64_t at = 0; at < text.end; at += text.rows(at)) {
    EXPECT_TRUE(reading.step(at, &out[at]).has_value());
  }
  return out;
}

constexpr std::uint64_t kCommitted = 5 * kChunk;

// Cancels in the nth submit of a step, of commit's priming too. False: it has fewer.
bool cancel_in_submit(CancelRig& rig, int nth, const ByToken& expected) {
  Reading reading(rig.backend(), kStubText, streaming_options(rig.backend(), kStubText));
  Session& session = reading.session();
  const SequenceId sequence = reading.sequence();
  for (std::uint64_t at = 0; at < kCommitted; at += kChunk) {
    EXPECT_TRUE(reading.step(at, nullptr).has_value());
  }
  AstrayStep step(rig.backend(), session, {sequence, kChunk});
  int submits = 0;
  int behind = 0;
  int running = 0;
  int came = -1;
  rig.on_submit([&] {
    behind += came >= 0 ? 1 : 0;
    if (++submits == nth) {
      came = running;
      session.cancel();
    }
  });
  // Behind the commit another step begins, which tells what came during the commit.
  int told = -1;
  for (; running <= kCallsOfAStep && told < 0; ++running) {
    const auto done = step.call(running % kCallsOfAStep);
    if (!done) {
      EXPECT_EQ(done.error().code, Errc::cancelled) << done.error().message;
      told = running;
    }
  }
  rig.on_submit({});
  if (came < 0) {
    EXPECT_EQ(told, -1);
    return false;
  }
  EXPECT_EQ(behind, 0) << "submits behind cancel()";
  EXPECT_TRUE(told == came || told == came + 1) << "call " << told << " tells of call " << came;
  EXPECT_EQ(reading.tokens() % kChunk, 0U);
  EXPECT_LE(reading.tokens(), kCommitted + (told == kCallsOfAStep ? kChunk : 0));
  EXPECT_TRUE(session.truncate(sequence, std::min(reading.tokens(), kCommitted)).has_value());
  reading.expect_the_rest(expected);
  return true;
}

TEST(SessionCancel, NothingIsSubmittedBehindIt) {
  StubRig calm;
  const ByToken expected = undisturbed(calm.backend(), kStubText);
  for (const bool deaf : {false, true}) {
    int nth = 1;
    for (bool more = true; more && !HasFailure(); nth += KVSPAN_TEST_SANITIZED != 0 ? 7 : 1) {
      SCOPED_TRACE("submit " + std::to_string(nth) + (deaf ? ", cancel words unseen" : ""));
      CancelRig rig({{"queues", "shuffled"}, {"seed", std::to_string(nth)}});
      rig.set_deaf(deaf);
      more = cancel_in_submit(rig, nth, expected);
    }
    EXPECT_GT(nth, 20) << "a step of waves has more submits";
  }
}

// Whoever loads a long history need not fill the rest of it.
TEST(SessionCancel, ALoadEndsAtThePageThatIsBeingFilled) {
  StubRig rig;
  Reading reading(rig.backend(), kStubText, streaming_options(rig.backend(), kStubText));
  Session& session = reading.session();
  int pages = 0;
  const PageSource zeros = [&](std::uint32_t, std::uint64_t, std::span<std::byte> bytes) {
    std::fill(bytes.begin(), bytes.end(), std::byte{});
    if (++pages == 4) {
      session.cancel();
    }
    return Result<void>();
  };
  const auto loaded = session.load(reading.sequence(), kStubText.end, zeros);
  ASSERT_FALSE(loaded.has_value());
  EXPECT_EQ(loaded.error().code, Errc::cancelled);
  EXPECT_LE(pages, 5) << "a page of each of two layers";
  EXPECT_EQ(reading.tokens(), 0U);
  EXPECT_TRUE(session.load(reading.sequence(), kStubText.end, zeros).has_value());
  EXPECT_TRUE(session.truncate(reading.sequence(), 0).has_value());
  reading.expect_the_rest(undisturbed(rig.backend(), kStubText));
}

constexpr std::uint64_t kSeed = 20;

// Cancels a session at drawn counts of its calls, and then some way into the call. It never waits
// for an answer, and nobody waits for it.
class Canceller {
 public:
  Canceller(Session& session, std::uint64_t seed)
      : session_(session), random_(seed), thread_([this] { work(); }) {}

  Canceller(const Canceller&) = delete;
  Canceller& operator=(const Canceller&) = delete;
  Canceller(Canceller&&) = delete;
  Canceller& operator=(Canceller&&) = delete;

  ~Canceller() { stop(); }

  void stop() {
    over_.store(true);
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  // The session's thread is about to make a call.
  void count() { calls_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void work() {
    constexpr std::uint64_t kApart = 24;  // calls: three steps of two layers
    std::uint64_t at = 0;
    while (!over_.load(std::memory_order_relaxed)) {
      at = calls_.load(std::memory_order_relaxed) + 1 + random_() % kApart;
      while (calls_.load(std::memory_order_relaxed) < at &&
             !over_.load(std::memory_order_relaxed)) {
        std::this_thread::yield();
      }
      for (std::uint64_t turns = random_() % 2000; turns != 0; --turns) {
        (void)over_.load(std::memory_order_relaxed);
      }
      session_.cancel();
    }
  }

  Session& session_;
  std::mt19937_64 random_;
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// Reads the text again and again until running steps were cancelled `wanted` times. Returns how
// often the beginning of a step told of one that came between two.
int read_cancelled(Reading& reading, const Text& text, const ByToken& expected, int wanted) {
  constexpr int kStepsMax = 200'000;
  std::mt19937_64 random(kSeed);
  Canceller canceller(reading.session(), kSeed);
  reading.engine().before_call([&] { canceller.count(); });
  int running = 0;
  int between = 0;
  for (int steps = 0; running < wanted && steps < kStepsMax; ++steps) {
    std::uint64_t at = reading.tokens();
    if (at >= text.end) {
      at = text.chunk * (random() % (text.prompt / text.chunk + 1));
      EXPECT_TRUE(reading.session().truncate(reading.sequence(), at).has_value());
    }
    Outputs outputs;
    const auto done = reading.step(at, &outputs);
    if (!done) {
      EXPECT_EQ(done.error().code, Errc::cancelled) << done.error().message;
      EXPECT_LE(reading.tokens(), at);
      ++(reading.engine().began() ? running : between);
    } else if (!same_bits(outputs, expected[at])) {
      ADD_FAILURE() << "other bits in the step at token " << at << ", behind " << running
                    << " cancellations";
      break;
    }
  }
  EXPECT_EQ(running, wanted);
  canceller.stop();
  reading.engine().before_call({});
  return between;
}

void expect_bits_beside_a_cancelling_thread(const std::string& plugin, const Text& text) {
  SCOPED_TRACE("seed " + std::to_string(kSeed) + ", plugin " + plugin);
  const StubRig rig(StubRig::Plugin{plugin});
  const ByToken expected = undisturbed(rig.backend(), text);
  Reading reading(rig.backend(), text, streaming_options(rig.backend(), text));
  const int wanted = KVSPAN_TEST_SANITIZED != 0 ? 60 : 300;
  const int between = read_cancelled(reading, text, expected, wanted);
  std::printf(
      "%s: %d running steps cancelled, %d between steps\n", plugin.c_str(), wanted, between);
  EXPECT_GT(reading.session().counters().streamed_pages, 0U);
  // The whole text once more; one that came last may still be told.
  EXPECT_TRUE(reading.session().truncate(reading.sequence(), 0).has_value());
  if (const auto first = reading.step(0, nullptr); !first) {
    EXPECT_EQ(first.error().code, Errc::cancelled) << first.error().message;
  }
  reading.expect_the_rest(expected);
}

TEST(SessionCancel, AnotherThreadCancelsTheStubAtAnyMoment) {
  expect_bits_beside_a_cancelling_thread("stub", kStubText);
}

TEST(SessionCancel, AnotherThreadCancelsCpuAtAnyMoment) {
  expect_bits_beside_a_cancelling_thread("cpu", kCpuText);
}

}  // namespace
}  // namespace kvspan::test
