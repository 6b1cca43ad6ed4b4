// SPDX-License-Identifier: Apache-2.0
// The real model reads the whole recall prompt on the cpu backend, alone and as one of three texts
// that take turns in one session, and answers: each step's logits have the bits that the text
// alone, all of it resident, gives; at ten arenas that all stream, and when another thread cancels
// the session at any moment and each text goes on from where its history is then.
#include "kvspan/core/session/session.hpp"

#include "core/tests/stub_rig.hpp"
#include "model/matmul.hpp"
#include "model/sampler.hpp"
#include "model/tokenizer.hpp"
#include "model/transformer.hpp"
#include "streamed_attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvspan::host {
namespace {

using test::StubRig;

constexpr std::uint64_t kSeed = 4711;
constexpr std::uint32_t kChunk = 128;
constexpr std::size_t kTexts = 3;
constexpr std::uint64_t kAnswer = 7;  // tokens: five digits, a full stop, the line's end
// A sanitizer is shown the paths: the prompt's beginning, which tells, and its end, which asks.
constexpr bool kShort = KVSPAN_TEST_SANITIZED != 0;
constexpr std::uint64_t kPrompt = kShort ? 5 * kChunk : 2048;
constexpr std::uint64_t kTotal = kPrompt + kAnswer - 1;  // the last is not read any more
constexpr std::uint64_t kArenas = kShort ? 2 : 10;
constexpr int kCancels = kShort ? 5 : 50;
constexpr std::uint64_t kEverything = 1ULL << 30;  // an arena

// The numbers that the texts plant and answer with: whoever reads a neighbour's page answers with
// the neighbour's.
constexpr const char* kNumbers[kTexts] = {"48213", "90572", "31846"};

// Cancels a session at drawn counts of its attentions, and then some way into one. It waits for no
// answer, and nobody waits for it.
class Canceller {
 public:
  explicit Canceller(Session& session) : session_(session), thread_([this] { work(); }) {}

  Canceller(const Canceller&) = delete;
  Canceller& operator=(const Canceller&) = delete;
  Canceller(Canceller&&) = delete;
  Canceller& operator=(Canceller&&) = delete;

  ~Canceller() {
    over_.store(true);
    thread_.join();
  }

  // The session is about to attend.
  void count() { attentions_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void work() {
    constexpr std::uint64_t kApart = 40;  // seven steps of six layers
    constexpr std::uint64_t kIntoOne = 20'000;
    while (!over_.load(std::memory_order_relaxed)) {
      const std::uint64_t at = attentions_.load(std::memory_order_relaxed) + 1 + random_() % kApart;
      while (attentions_.load(std::memory_order_relaxed) < at &&
             !over_.load(std::memory_order_relaxed)) {
        std::this_thread::yield();
      }
      for (std::uint64_t turns = random_() % kIntoOne; turns != 0; --turns) {
        (void)over_.load(std::memory_order_relaxed);
      }
      session_.cancel();
    }
  }

  Session& session_;
  std::mt19937_64 random_{kSeed};
  std::atomic<std::uint64_t> attentions_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// Tells the canceller, if there is one, of every attention.
class Counting final : public model::KvAttention {
 public:
  Counting(StreamedAttention& inner, Canceller* canceller) : inner_(inner), canceller_(canceller) {}

  Result<void> attend(std::uint32_t layer, const model::AttentionRows& rows) override {
    if (canceller_ != nullptr) {
      canceller_->count();
    }
    return inner_.attend(layer, rows);
  }

 private:
  StreamedAttention& inner_;
  Canceller* canceller_;
};

// A text's logits behind every step, by the last token that the step read.
using Logits = std::vector<std::vector<float>>;

// How texts are read.
struct Way {
  std::uint64_t arena_bytes = kEverything;
  std::size_t first = 0;  // text
  std::size_t count = 1;  // of texts, in turns
  bool turns = false;     // prompts and answers have the arena in turns
  int cancels = 0;        // so many are told at least
};

// What reading gave.
struct Read {
  std::vector<Logits> logits;  // [text]
  std::uint64_t streamed_pages = 0;
  std::uint64_t phase_changes = 0;
  int running = 0;  // cancelled steps that had begun
  int between = 0;  // and those that were told of it as they began
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), sizeof(float) * a.size()) == 0);
}

// The number that a text's logits answer with, and what ends the answer.
std::string answer_of(const Logits& logits) {
  std::string answer;
  for (std::uint64_t at = kPrompt - 1; at < kTotal; ++at) {
    answer.push_back(static_cast<char>(model::greedy_token(logits[at]).value()));
  }
  return answer;
}

// The prompt with another number; of a long one what tells and what asks.
std::string text_with(const std::string& prompt, const char* number) {
  constexpr std::size_t kTelling = 400;
  std::string text = prompt;
  text.replace(text.find(kNumbers[0]), std::strlen(number), number);
  return kShort ? text.substr(0, kTelling) + text.substr(text.size() - (kPrompt - kTelling)) : text;
}

// The model and its texts.
struct Library {
  Library() {
    const char* const folder = std::getenv("KVSPAN_TEST_DATA");
    const std::string data = folder == nullptr ? "." : folder;
    auto file = model::GgufFile::open(data + "/models/bytelm.gguf").value();
    model = std::make_unique<model::Model>(model::Model::load(file).value());
    const auto tokenizer = model::Tokenizer::load(file).value();
    std::ifstream stream(data + "/prompts/recall-2048.txt", std::ios::binary);
    const std::string prompt((std::istreambuf_iterator<char>(stream)), {});
    for (const char* const number : kNumbers) {
      prompts.push_back(tokenizer.encode(text_with(prompt, number)).value());
      EXPECT_EQ(prompts.back().size(), kPrompt);
    }
    team = std::make_unique<model::ThreadTeam>(model::ThreadTeam::create(2).value());
  }

  [[nodiscard]] SessionOptions options(const Way& way) const {
    const model::ModelGeometry& geometry = model->geometry();
    SessionOptions out;
    out.geometry.layers.assign(geometry.layers,
                               {KVSPAN_TYPE_Q8_0,
                                KVSPAN_TYPE_Q4_0,
                                geometry.head_size_k,
                                geometry.head_size_v,
                                geometry.kv_heads,
                                geometry.q_heads});
    out.geometry.page_tokens = 64;
    out.context_tokens = kTotal;
    out.sequences = static_cast<std::uint32_t>(way.count);
    out.prefill_rows_max = out.prefill_rows_fixed = kChunk;
    out.stream.group_pages = 2;
    out.placement.phases_take_turns = way.turns;
    out.arena_bytes = way.arena_bytes;
    return out;
  }

  // The arena that is `part` of ten parts of the way from the smallest one to one that holds
  // everything.
  [[nodiscard]] std::uint64_t arena(const Way& way, std::uint64_t part) const {
    const StubRig rig(StubRig::Plugin{"cpu"});
    PlanRequest request = plan_request(rig.backend(), options(way));
    const std::uint64_t least = plan(request).value().minimum_arena_bytes;
    request.arena_bytes = kEverything;
    return least + (plan(request).value().total_bytes() - least) * part / 10;
  }

  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::ThreadTeam> team;
  std::vector<std::vector<std::uint32_t>> prompts;  // [text]
};

// A session whose sequences read a text each.
class Reader {
 public:
  Reader(const Library& library, const Way& way)
      : library_(library),
        way_(way),
        rig_(StubRig::Plugin{"cpu"}),
        session_(std::move(Session::open(rig_.backend(), library.options(way)).value())),
        evaluator_(model::Evaluator::create(
                       *library.model, *library.team, {kChunk, model::matmul_isa_best()})
                       .value()),
        random_(kSeed) {
    for (std::size_t text = 0; text < way.count; ++text) {
      attentions_.push_back(
          StreamedAttention::create(rig_.backend(), session_, library.model->geometry(), kChunk)
              .value());
      tokens_.push_back(library.prompts[way.first + text]);
      out_.logits.emplace_back(kTotal);
    }
  }

  // A step of each text in turns, to the ends of all answers; where that gives too few occasions to
  // cancel, from some chunk of a text on again.
  Read read() {
    std::unique_ptr<Canceller> canceller;
    if (way_.cancels != 0) {
      canceller = std::make_unique<Canceller>(session_);
    }
    for (bool done = false; !done && !::testing::Test::HasFailure();) {
      if (out_.running + out_.between >= way_.cancels) {
        canceller.reset();
      }
      done = true;
      for (std::size_t text = 0; text < way_.count; ++text) {
        done = !step(text, canceller.get()) && done;
      }
    }
    out_.streamed_pages = session_.counters().streamed_pages;
    out_.phase_changes = session_.counters().phase_changes;
    return std::move(out_);
  }

 private:
  // A chunk of a text's prompt or a token of its answer; false: it is at its end.
  bool step(std::size_t text, Canceller* canceller) {
    const auto sequence = static_cast<SequenceId>(text);
    std::uint64_t at = session_.tokens(sequence).value();
    if (at == kTotal && canceller == nullptr) {
      return false;
    }
    if (at == kTotal) {
      at = kChunk * (random_() % (kPrompt / kChunk));
      EXPECT_TRUE(session_.truncate(sequence, at).has_value());
    }
    const bool prompt = at < kPrompt;
    const std::uint32_t rows = prompt ? kChunk : 1U;
    std::vector<std::uint32_t>& tokens = tokens_[text];
    if (!prompt) {
      tokens.resize(at);
      tokens.push_back(model::greedy_token(out_.logits[text][at - 1]).value());
    }
    StreamedAttention& streamed = *attentions_[text];
    Counting attention(streamed, canceller);
    std::vector<float> logits(library_.model->geometry().vocabulary);
    auto done = streamed.begin(rows, prompt ? Phase::prefill : Phase::decode);
    int& cancelled = done ? out_.running : out_.between;
    if (done) {
      const std::uint32_t last = rows - 1;
      done = evaluator_.forward({{tokens.data() + at, rows}, at, {&last, 1}}, attention, logits);
      done = done ? streamed.commit() : done;
    }
    if (!done) {
      EXPECT_EQ(done.error().code, Errc::cancelled) << done.error().message;
      EXPECT_LE(session_.tokens(sequence).value(), at);
      ++cancelled;
      return true;
    }
    std::vector<float>& before = out_.logits[text][at + rows - 1];
    EXPECT_TRUE(before.empty() || same_bits(before, logits)) << "behind token " << at + rows - 1;
    before = std::move(logits);
    return true;
  }

  const Library& library_;
  Way way_;
  StubRig rig_;
  Session session_;
  model::Evaluator evaluator_;
  std::vector<std::unique_ptr<StreamedAttention>> attentions_;
  std::vector<std::vector<std::uint32_t>> tokens_;
  std::mt19937_64 random_;
  Read out_;
};

class Sessions : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    library_ = std::make_unique<Library>();
    for (std::size_t text = 0; text < kTexts; ++text) {
      Way way;
      way.first = text;
      alone_.push_back(read(way).logits.front());
      EXPECT_EQ(answer_of(alone_.back()), std::string(kNumbers[text]) + ".\n");
    }
  }

  static void TearDownTestSuite() {
    alone_.clear();
    library_.reset();
  }

  static Read read(const Way& way) { return Reader(*library_, way).read(); }

  // Every text of `way` has the bits of the text alone, and so its answer.
  static void expect_alike(const Read& read, const Way& way) {
    EXPECT_GT(read.streamed_pages, 0U);
    for (std::size_t text = 0; text < way.count; ++text) {
      SCOPED_TRACE("text " + std::to_string(text));
      const Logits& expected = alone_[way.first + text];
      for (std::size_t at = 0; at < kTotal; ++at) {
        ASSERT_TRUE(same_bits(read.logits[text][at], expected[at])) << "behind token " << at;
      }
      EXPECT_EQ(answer_of(read.logits[text]), std::string(kNumbers[way.first + text]) + ".\n");
    }
  }

  // Arenas that stream, from the smallest on; in every second one phases take turns.
  static void expect_alike_at_every_arena(std::size_t count) {
    for (std::uint64_t part = 0; part < kArenas; ++part) {
      Way way;
      way.count = count;
      way.turns = part % 2 == 1;
      way.arena_bytes = library_->arena(way, part);
      SCOPED_TRACE("arena of " + std::to_string(way.arena_bytes) + " bytes, part " +
                   std::to_string(part) + " of 10");
      const Read seen = read(way);
      expect_alike(seen, way);
      EXPECT_EQ(seen.phase_changes != 0, way.turns);
    }
  }

  inline static std::unique_ptr<Library> library_;
  inline static std::vector<Logits> alone_;  // [text], resident
};

TEST_F(Sessions, TheWholePromptAloneAtEveryArena) {
  expect_alike_at_every_arena(1);
}

TEST_F(Sessions, ThreeTextsInTurnsAreEachTheTextAlone) {
  expect_alike_at_every_arena(kTexts);
}

TEST_F(Sessions, AThreadThatCancelsAtAnyMomentMovesNoBit) {
  for (const std::size_t count : {std::size_t{1}, kTexts}) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", " + std::to_string(count) + " texts");
    Way way;
    way.count = count;
    way.turns = true;
    way.cancels = kCancels;
    way.arena_bytes = library_->arena(way, 3);
    const Read seen = read(way);
    expect_alike(seen, way);
    EXPECT_GE(seen.running + seen.between, kCancels);
    EXPECT_GT(seen.running, kCancels / 2) << "most come in running steps";
    std::printf("cancelled: %d running steps, %d between steps\n", seen.running, seen.between);
  }
}

}  // namespace
}  // namespace kvspan::host
