// SPDX-License-Identifier: Apache-2.0
// Read first: proof.hpp.
#include "kvspan/bench/spread.hpp"

#include "proof.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

namespace kvspan::cuda_proof {

namespace {

using bench::Clock;
using bench::seconds_since;
using cuda_bench::Failure;
using cuda_bench::take;

constexpr std::uint32_t kLayers = 4;
constexpr std::uint32_t kPrefillRows = 64;
constexpr std::uint64_t kSpan = 512;  // tokens behind the loaded ones that rows are known for
constexpr std::uint32_t kTries = 4;   // a cancellation that came late is told by the next calls

// Cancels a session once, some time after it was told to.
class Canceller {
 public:
  explicit Canceller(Session& session) : session_(session), thread_([this] { work(); }) {}

  Canceller(const Canceller&) = delete;
  Canceller& operator=(const Canceller&) = delete;
  Canceller(Canceller&&) = delete;
  Canceller& operator=(Canceller&&) = delete;

  ~Canceller() {
    ended_ = true;
    ++asked_;
    asked_.notify_one();
    thread_.join();
  }

  void after(double seconds) {
    seconds_ = seconds;
    ++asked_;
    asked_.notify_one();
  }

  void wait() {
    for (std::uint32_t done = done_; done != asked_; done = done_) {
      done_.wait(done);
    }
  }

 private:
  void work() {
    for (std::uint32_t round = 1;; ++round) {
      asked_.wait(round - 1);
      if (ended_) {
        return;
      }
      spin_for(seconds_);
      session_.cancel();
      done_ = round;
      done_.notify_one();
    }
  }

  Session& session_;
  double seconds_ = 0.0;  // written before asked_, read behind it
  std::atomic<bool> ended_ = false;
  std::atomic<std::uint32_t> asked_ = 0;
  std::atomic<std::uint32_t> done_ = 0;
  std::thread thread_;
};

struct Kind {
  const char* name;
  std::uint32_t rows;
  Phase phase;
};

constexpr std::array<Kind, 4> kKinds = {Kind{"w1", 1, Phase::decode},
                                        Kind{"w4", 4, Phase::decode},
                                        Kind{"w8", 8, Phase::decode},
                                        Kind{"prompt", kPrefillRows, Phase::prefill}};

// One session and what its rows must be.
class Round {
 public:
  Round(const Rig& rig,
        const Material& material,
        const EngineCase& with,
        const Text& text,
        const std::vector<std::uint64_t>& expected)
      : engine_(rig, material, with),
        text_(text),
        expected_(expected),
        sequence_(engine_.add(text)) {
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
      usual_seconds_[kind] = usual_seconds(kKinds[kind]);
    }
  }

  [[nodiscard]] Engine& engine() { return engine_; }

  // Cancels one step and goes on.
  void run(Dice& dice, Canceller& canceller, Counts& out) {
    const std::size_t index = dice.below(kKinds.size());
    const Kind& kind = kKinds[index];
    make_room(kind.rows);
    const std::uint64_t before = tokens();
    engine_.set_pace(dice.below(2) == 0 ? Pace::ahead : Pace::by_layer);
    const StepRows part{sequence_, kind.rows};
    engine_.prepare({&part, 1});
    canceller.after(dice.part() * usual_seconds_[index]);
    const auto done = engine_.run({&part, 1}, kind.phase);
    canceller.wait();
    count(out, "rounds");
    if (done) {
      count(out, "cancelled_behind_a_step");
    } else if (done.error().code != Errc::cancelled) {
      throw Failure("a cancelled step ended with " + done.error().message);
    } else {
      count(out, "cancelled_in_a_running_step");
      ++out["of_those_by_kind"][kind.name].get_ref<std::int64_t&>();
      ++out["of_those_by_layers_submitted"][engine_.layers_done()].get_ref<std::int64_t&>();
    }
    const std::uint64_t now = tokens();
    if (now < text_.loaded_tokens || now > before + kind.rows) {
      throw Failure(fmt::format(
          "{} tokens behind a cancelled step of {} rows on {}", now, kind.rows, before));
    }
    if (now < before) {
      count(out, "steps_before_given_up_with_it");
    }
    go_on(static_cast<std::uint32_t>(dice.between(1, kDecodeRows)), out);
  }

 private:
  static void count(Counts& out, const char* what) {
    out[what] = out.value(what, std::int64_t{0}) + 1;
  }

  [[nodiscard]] std::uint64_t tokens() {
    return take(engine_.session().tokens(sequence_), "asking for tokens");
  }

  void make_room(std::uint32_t rows) {
    if (tokens() + rows + kDecodeRows > text_.loaded_tokens + kSpan) {
      take(engine_.session().truncate(sequence_, text_.loaded_tokens), "truncating");
    }
  }

  [[nodiscard]] double usual_seconds(const Kind& kind) {
    std::vector<double> seconds;
    for (int run = 0; run < 5; ++run) {
      make_room(kind.rows);
      const StepRows part{sequence_, kind.rows};
      engine_.prepare({&part, 1});
      const auto begin = Clock::now();
      take(engine_.run({&part, 1}, kind.phase), "a step that nobody cancels");
      seconds.push_back(seconds_since(begin));
    }
    return bench::spread_of(std::move(seconds)).median;
  }

  // The step behind a cancellation; the first tries may still be told of it.
  void go_on(std::uint32_t rows, Counts& out) {
    for (std::uint32_t attempt = 0;; ++attempt) {
      const std::uint64_t at = tokens() - text_.loaded_tokens;
      const auto done = engine_.step(sequence_, rows, Phase::decode);
      if (!done && done.error().code == Errc::cancelled && attempt + 1 < kTries) {
        count(out, "told_by_the_next_step");
        continue;
      }
      take(Result<void>(done), "the step behind a cancellation");
      const std::vector<std::uint64_t> hashes = engine_.row_hashes();
      if (!std::equal(hashes.begin(), hashes.end(), expected_.begin() + static_cast<long>(at))) {
        throw Failure(fmt::format("other bits behind a cancellation, {} rows at token {}",
                                  rows,
                                  at + text_.loaded_tokens));
      }
      out["rows_compared"] = out.value("rows_compared", std::int64_t{0}) + rows;
      return;
    }
  }

  Engine engine_;
  Text text_;
  const std::vector<std::uint64_t>& expected_;
  SequenceId sequence_;
  std::array<double, kKinds.size()> usual_seconds_{};
};

}  // namespace

void spin_for(double seconds) {
  for (const auto begin = Clock::now(); seconds_since(begin) < seconds;) {
    std::this_thread::yield();
  }
}

void prove_cancellation(const Asked& asked, Counts& out) {
  const Rig rig(asked.plugin);
  const Material material = Material::make(asked.small);
  const Text text{1, 32 * material.page_tokens() + material.page_tokens() / 2};
  const auto expected = undisturbed(rig, material, kLayers, text, kSpan);
  Dice dice(asked.seed);
  out["compared"] = "64-bit hashes of each row's bytes in all layers, with an undisturbed run";
  for (const Kind& kind : kKinds) {
    out["of_those_by_kind"][kind.name] = std::int64_t{0};
  }
  out["of_those_by_layers_submitted"] = std::vector<std::int64_t>(kLayers + 1, 0);

  // All of the history streams in two groups; half of it in many; most is resident.
  struct Way {
    std::uint32_t resident, group;
  };

  constexpr Way kWays[] = {{0, 16}, {16, 3}, {28, 1}};
  std::uint32_t left = asked.rounds;
  for (std::uint32_t way = 0; way < std::size(kWays); ++way) {
    EngineCase with;
    with.layers = kLayers;
    with.context_tokens = text.loaded_tokens + kSpan;
    with.prefill_rows = kPrefillRows;
    with.stream.group_pages = kWays[way].group;
    with.stream.resident_pages_max = kWays[way].resident;
    Round round(rig, material, with, text, expected);
    Canceller canceller(round.engine().session());
    const std::uint32_t share = left / static_cast<std::uint32_t>(std::size(kWays) - way);
    for (std::uint32_t index = 0; index < share; ++index) {
      round.run(dice, canceller, out);
    }
    left -= share;
    canceller.wait();
    out["streamed_pages"] = out.value("streamed_pages", std::uint64_t{0}) +
                            round.engine().session().counters().streamed_pages;
  }
  if (out.value("cancelled_in_a_running_step", std::int64_t{0}) * 4 < asked.rounds) {
    throw Failure("fewer than a quarter of the rounds hit a running step");
  }
}

}  // namespace kvspan::cuda_proof
