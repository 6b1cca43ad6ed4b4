// SPDX-License-Identifier: Apache-2.0
// The real model, three texts taking turns in one session on the cpu backend: each step's logits
// have the bits that the text alone, all of it resident, gives; at ten arenas, and when the session
// is cancelled at random moments and each text goes on from where its history is then.
#include "kvspan/core/session/session.hpp"

#include "core/tests/stub_rig.hpp"
#include "model/matmul.hpp"
#include "model/sampler.hpp"
#include "model/tokenizer.hpp"
#include "model/transformer.hpp"
#include "streamed_attention.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace kvspan::host {
namespace {

using test::StubRig;

constexpr std::uint32_t kSeed = 4711;
constexpr std::uint32_t kChunk = 96;
constexpr std::uint64_t kPrompt = 480;  // tokens of each text
constexpr std::uint64_t kTotal = 496;   // and those that it goes on with
constexpr std::size_t kTexts = 3;
// A sanitizer is shown the paths, not every arena.
constexpr std::uint64_t kArenas = KVSPAN_TEST_SANITIZED != 0 ? 1 : 10;
constexpr std::uint32_t kCancels = KVSPAN_TEST_SANITIZED != 0 ? 5 : 50;

// Cancels before the n-th attention from now on.
class Interrupting final : public model::KvAttention {
 public:
  Interrupting(StreamedAttention& inner, Session& session, std::uint64_t& left)
      : inner_(inner), session_(session), left_(left) {}

  Result<void> attend(std::uint32_t layer, const model::AttentionRows& rows) override {
    if (left_ != 0 && --left_ == 0) {
      session_.cancel();
    }
    return inner_.attend(layer, rows);
  }

 private:
  StreamedAttention& inner_;
  Session& session_;
  std::uint64_t& left_;
};

// What a text's steps gave: its logits behind every step, by the token that they follow.
using Logits = std::vector<std::vector<float>>;

class Reader {
 public:
  Reader() {
    const char* const folder = std::getenv("KVSPAN_TEST_DATA");
    const std::string data = folder == nullptr ? "." : folder;
    auto file = model::GgufFile::open(data + "/models/bytelm.gguf").value();
    model_ = std::make_unique<model::Model>(model::Model::load(file).value());
    const auto tokenizer = model::Tokenizer::load(file).value();
    std::ifstream stream(data + "/prompts/recall-2048.txt", std::ios::binary);
    const auto all =
        tokenizer.encode(std::string((std::istreambuf_iterator<char>(stream)), {})).value();
    for (std::size_t text = 0; text < kTexts; ++text) {
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(700 * text);
      prompts_.emplace_back(from, from + kPrompt);
    }
    team_ = std::make_unique<model::ThreadTeam>(model::ThreadTeam::create(2).value());
  }

  // Texts [first, first + count) in turns. `cancels`: how often the session is cancelled.
  std::vector<Logits> read(std::uint64_t arena_bytes,
                           std::size_t first,
                           std::size_t count,
                           std::uint32_t cancels) {
    const StubRig rig(StubRig::Plugin{"cpu"});
    SessionOptions options = options_of(count);
    options.arena_bytes = arena_bytes;
    auto session = Session::open(rig.backend(), options);
    EXPECT_TRUE(session.has_value()) << session.error().message;
    auto evaluator =
        model::Evaluator::create(*model_, *team_, {kChunk, model::matmul_isa_best()}).value();
    std::vector<std::unique_ptr<StreamedAttention>> attentions;
    for (std::size_t text = 0; text < count; ++text) {
      attentions.push_back(
          StreamedAttention::create(rig.backend(), *session, model_->geometry(), kChunk).value());
    }
    std::vector<std::vector<std::uint32_t>> tokens(
        prompts_.begin() + static_cast<std::ptrdiff_t>(first),
        prompts_.begin() + static_cast<std::ptrdiff_t>(first + count));
    std::vector<Logits> out(count, Logits(kTotal));
    std::mt19937_64 random(kSeed + arena_bytes);
    cancelled_ = 0;
    std::uint64_t until_cancel = 0;
    bool done = false;
    while (!done) {
      done = true;
      for (std::size_t text = 0; text < count; ++text) {
        const std::uint64_t at = session->tokens(static_cast<SequenceId>(text)).value();
        if (at == kTotal) {
          continue;
        }
        done = false;
        if (until_cancel == 0 && cancelled_ < cancels) {
          until_cancel = 1 + random() % (2 * options.geometry.layers.size());
        }
        Interrupting attention(*attentions[text], *session, until_cancel);
        step(*session, *attentions[text], attention, evaluator, tokens[text], at, out[text]);
      }
    }
    streamed_pages_ = session->counters().streamed_pages;
    phase_changes_ = session->counters().phase_changes;
    return out;
  }

  // Whether prompts and answers have the arena in turns, from now on.
  void take_turns(bool turns) { turns_ = turns; }

  // How often the last read() gave the arena to the other phase.
  [[nodiscard]] std::uint64_t phase_changes() const { return phase_changes_; }

  // Of the last read().
  [[nodiscard]] std::uint64_t streamed_pages() const { return streamed_pages_; }

  // How often the last read() was cancelled.
  [[nodiscard]] std::uint32_t cancelled() const { return cancelled_; }

  [[nodiscard]] std::uint64_t least_arena(std::size_t sequences) const {
    const StubRig rig(StubRig::Plugin{"cpu"});
    SessionOptions options = options_of(sequences);
    options.arena_bytes = 1;
    return Session::open(rig.backend(), options).error().required;
  }

 private:
  [[nodiscard]] SessionOptions options_of(std::size_t sequences) const {
    const model::ModelGeometry& geometry = model_->geometry();
    SessionOptions options;
    options.geometry.layers.assign(geometry.layers,
                                   {KVSPAN_TYPE_Q8_0,
                                    KVSPAN_TYPE_Q4_0,
                                    geometry.head_size_k,
                                    geometry.head_size_v,
                                    geometry.kv_heads,
                                    geometry.q_heads});
    options.geometry.page_tokens = 64;
    options.context_tokens = kTotal;
    options.sequences = static_cast<std::uint32_t>(sequences);
    options.prefill_rows_max = kChunk;
    options.prefill_rows_fixed = kChunk;
    options.stream.group_pages = 2;
    options.placement.phases_take_turns = turns_;
    return options;
  }

  // A chunk of the prompt, or a token that the text goes on with.
  void step(Session& session,
            StreamedAttention& streamed,
            Interrupting& attention,
            model::Evaluator& evaluator,
            std::vector<std::uint32_t>& tokens,
            std::uint64_t at,
            Logits& out) {
    const bool prompt = at < kPrompt;
    const auto rows =
        prompt ? static_cast<std::uint32_t>(std::min<std::uint64_t>(kChunk, kPrompt - at)) : 1U;
    if (!prompt) {
      tokens.resize(at);
      tokens.push_back(model::greedy_token(out[at - 1]).value());
    }
    auto done = streamed.begin(rows, prompt ? Phase::prefill : Phase::decode);
    std::vector<float> logits(model_->geometry().vocabulary);
    if (done) {
      const std::uint32_t last = rows - 1;
      done = evaluator.forward({{tokens.data() + at, rows}, at, {&last, 1}}, attention, logits);
      if (!done) {
        session.cancel_step();
      }
    }
    done = done ? streamed.commit() : done;
    if (done) {
      out[at + rows - 1] = std::move(logits);
      return;
    }
    ASSERT_EQ(done.error().code, Errc::cancelled) << done.error().message;
    ++cancelled_;
  }

  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::ThreadTeam> team_;
  std::vector<std::vector<std::uint32_t>> prompts_;
  std::uint32_t cancelled_ = 0;
  std::uint64_t streamed_pages_ = 0;
  std::uint64_t phase_changes_ = 0;
  bool turns_ = false;
};

// Compares behind every step that the resident run has.
void expect_same(const Logits& seen, const Logits& resident) {
  std::size_t compared = 0;
  for (std::size_t at = 0; at < resident.size(); ++at) {
    ASSERT_EQ(seen[at].size(), resident[at].size()) << "behind token " << at;
    if (resident[at].empty()) {
      continue;
    }
    ASSERT_EQ(std::memcmp(seen[at].data(), resident[at].data(), sizeof(float) * seen[at].size()), 0)
        << "behind token " << at;
    ++compared;
  }
  EXPECT_EQ(compared, kPrompt / kChunk + kTotal - kPrompt);
}

constexpr std::uint64_t kEverything = 1ULL << 30;

TEST(Sessions, ThreeTextsInTurnsAreEachTheTextAlone) {
  Reader reader;
  std::vector<Logits> alone;
  for (std::size_t text = 0; text < kTexts; ++text) {
    alone.push_back(reader.read(kEverything, text, 1, 0).front());
  }
  const std::uint64_t least = reader.least_arena(kTexts);
  for (std::uint64_t arena = 0; arena < kArenas; ++arena) {
    SCOPED_TRACE("arena " + std::to_string(arena) + " of 10");
    reader.take_turns(arena % 2 == 1);  // which takes less than the least of the others
    const auto seen = reader.read(least + arena * least / 5, 0, kTexts, 0);
    EXPECT_EQ(reader.phase_changes(), arena % 2 == 1 ? 2U : 0U);
    EXPECT_TRUE(arena != 0 || reader.streamed_pages() != 0);
    for (std::size_t text = 0; text < kTexts; ++text) {
      expect_same(seen[text], alone[text]);
    }
  }
}

TEST(Sessions, FiftyCancellationsMoveNoBit) {
  SCOPED_TRACE("seed 4711");
  Reader reader;
  const std::uint64_t least = reader.least_arena(kTexts);
  const auto straight = reader.read(kEverything, 0, kTexts, 0);
  reader.take_turns(true);
  const auto seen = reader.read(least + least / 3, 0, kTexts, kCancels);
  EXPECT_EQ(reader.cancelled(), kCancels);
  EXPECT_GT(reader.streamed_pages(), 0U);
  for (std::size_t text = 0; text < kTexts; ++text) {
    expect_same(seen[text], straight[text]);
  }
}

}  // namespace
}  // namespace kvspan::host
