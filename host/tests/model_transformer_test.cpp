// SPDX-License-Identifier: Apache-2.0
// Random tiny models of both families and all weight types against the double-precision oracle, and
// the promise that chunks and threads leave no trace in the bits.
// Read next: tests/oracle_transformer.hpp, model/transformer.hpp.
#include "model/transformer.hpp"
#include "tests/f32_attention.hpp"
#include "tests/oracle_transformer.hpp"
#include "tests/tiny_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace kvspan::model {

namespace {

using testing::Biases;
using testing::F32Attention;
using ::testing::HasSubstr;
using testing::make_tiny_model;
using testing::OutputTable;
using testing::TinyModel;
using testing::TinyOptions;

Model load(const TinyModel& tiny) {
  const auto bytes = tiny.writer.file();
  auto file = GgufFile::from_bytes(bytes, "tiny.gguf");
  EXPECT_TRUE(file) << file.error().message;
  auto model = Model::load(*file);
  EXPECT_TRUE(model) << model.error().message;
  return std::move(*model);
}

std::vector<std::uint32_t> random_tokens(std::size_t count, std::uint32_t most, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint32_t> tokens(count);
  for (std::uint32_t& token : tokens) {
    token = static_cast<std::uint32_t>(random()) % most;
  }
  return tokens;
}

struct RunOptions {
  std::vector<std::size_t> chunks;
  std::size_t members = 1;
  MatmulIsa isa = matmul_isa_best();
};

// Logits of every row, [row, vocabulary].
std::vector<float> run(const Model& model,
                       const std::vector<std::uint32_t>& tokens,
                       const RunOptions& options) {
  auto team = ThreadTeam::create(options.members).value();
  const auto rows_max = *std::max_element(options.chunks.begin(), options.chunks.end());
  auto evaluator =
      Evaluator::create(model, team, {static_cast<std::uint32_t>(rows_max), options.isa});
  EXPECT_TRUE(evaluator) << evaluator.error().message;
  F32Attention attention(model.geometry(), nullptr);
  std::vector<float> logits;
  std::size_t begin = 0;
  for (std::size_t i = 0; begin < tokens.size(); ++i) {
    const std::size_t rows =
        std::min(options.chunks[i % options.chunks.size()], tokens.size() - begin);
    std::vector<std::uint32_t> all(rows);
    std::iota(all.begin(), all.end(), 0u);
    std::vector<float> part(rows * model.geometry().vocabulary);
    auto done = evaluator->forward({{tokens.data() + begin, rows}, begin, all}, attention, part);
    EXPECT_TRUE(done) << done.error().message;
    logits.insert(logits.end(), part.begin(), part.end());
    begin += rows;
  }
  return logits;
}

void expect_close(const std::vector<float>& logits,
                  const std::vector<std::vector<double>>& expected) {
  double peak = 0.0;
  for (const auto& row : expected) {
    for (const double value : row) {
      peak = std::max(peak, std::fabs(value));
    }
  }
  ASSERT_GT(peak, 0.1);
  std::size_t i = 0;
  for (const auto& row : expected) {
    for (const double value : row) {
      ASSERT_NEAR(static_cast<double>(logits[i]), value, 2e-5 * peak) << "logit " << i;
      ++i;
    }
  }
}

std::string describe(const TinyOptions& options) {
  return options.family + " " + std::string(tensor_type_name(options.type)) + " heads " +
         std::to_string(options.q_heads) + "/" + std::to_string(options.kv_heads) + " sizes " +
         std::to_string(options.head_size_k) + "/" + std::to_string(options.head_size_v) +
         " rotated " + std::to_string(options.rotated) + " seed " + std::to_string(options.seed);
}

// Every combination that the families allow, kept small.
std::vector<TinyOptions> all_options() {
  std::vector<TinyOptions> found;
  std::uint32_t seed = 100;
  for (const char* const family : {"llama", "qwen3"}) {
    for (const TensorType type :
         {TensorType::f32, TensorType::f16, TensorType::bf16, TensorType::q8_0, TensorType::q4_0}) {
      for (const std::uint32_t kv_heads : {1u, 2u, 4u}) {
        TinyOptions options;
        options.family = family;
        options.type = type;
        options.kv_heads = kv_heads;
        options.seed = seed++;
        options.head_size_v = seed % 2 == 0 ? 16 : 24;
        options.rotated = seed % 3 == 0 ? 8 : 16;
        options.biases = seed % 2 == 0 ? Biases::present : Biases::absent;
        options.output = seed % 3 == 1 ? OutputTable::own : OutputTable::tied;
        found.push_back(options);
      }
    }
  }
  TinyOptions wide;  // heads that together are wider than the residual stream, K larger than V
  wide.head_size_k = 48;
  wide.rotated = 48;
  wide.head_size_v = 8;
  wide.rope_base = 1e6f;
  found.push_back(wide);
  wide.family = "qwen3";
  wide.layers = 1;
  found.push_back(wide);
  return found;
}

TEST(Transformer, AgreesWithTheDoubleOracle) {
  for (const TinyOptions& options : all_options()) {
    SCOPED_TRACE(describe(options));
    const TinyModel tiny = make_tiny_model(options);
    const Model model = load(tiny);
    const auto tokens = random_tokens(21, options.vocabulary, options.seed);
    expect_close(run(model, tokens, {{21}}), testing::oracle_logits(tiny, tokens));
    if (HasFatalFailure()) {
      return;
    }
  }
}

TEST(Transformer, AgreesWithTheOracleOnEveryInstructionSet) {
  TinyOptions options;
  options.type = TensorType::bf16;
  SCOPED_TRACE(describe(options));
  const TinyModel tiny = make_tiny_model(options);
  const Model model = load(tiny);
  const auto tokens = random_tokens(40, options.vocabulary, 5);
  const auto expected = testing::oracle_logits(tiny, tokens);
  for (const MatmulIsa isa : {MatmulIsa::v2, MatmulIsa::avx2, MatmulIsa::avx512}) {
    if (matmul_isa_available(isa)) {
      SCOPED_TRACE(std::string(matmul_isa_name(isa)));
      expect_close(run(model, tokens, {{40}, 1, isa}), expected);
    }
  }
}

// The stronger form of "chunked equals one-shot": not close, equal.
TEST(Transformer, GivesTheSameBitsForAnyChunksAndThreads) {
  for (const char* const family : {"llama", "qwen3"}) {
    TinyOptions options;
    options.family = family;
    options.width = 96;
    options.context = 256;
    options.vocabulary = 101;
    SCOPED_TRACE(describe(options));
    const TinyModel tiny = make_tiny_model(options);
    const Model model = load(tiny);
    const auto tokens = random_tokens(150, options.vocabulary, 6);
    const auto whole = run(model, tokens, {{150}});
    const std::vector<RunOptions> others = {
        {{1}}, {{64, 1, 3}}, {{150}, 3}, {{37, 5}, 2}, {{130, 20}, 2}};
    for (const RunOptions& other : others) {
      ASSERT_EQ(run(model, tokens, other), whole)
          << "first chunk " << other.chunks[0] << ", threads " << other.members;
    }
  }
}

TEST(Transformer, GivesOnlyTheLogitsThatAreAskedFor) {
  const TinyModel tiny = make_tiny_model({});
  const Model model = load(tiny);
  const auto tokens = random_tokens(30, 50, 7);
  const auto all = run(model, tokens, {{30}});
  auto team = ThreadTeam::create(2).value();
  auto evaluator = Evaluator::create(model, team, {30, matmul_isa_best()}).value();
  const std::vector<std::vector<std::uint32_t>> wishes = {{}, {29}, {0}, {3, 4, 17}, {0, 29}};
  for (const auto& wish : wishes) {
    F32Attention attention(model.geometry(), nullptr);
    std::vector<float> logits(wish.size() * 50);
    ASSERT_TRUE(evaluator.forward({tokens, 0, wish}, attention, logits));
    for (std::size_t i = 0; i < wish.size(); ++i) {
      const auto expected = all.begin() + static_cast<long>(wish[i] * 50);
      EXPECT_TRUE(std::equal(expected, expected + 50, logits.begin() + static_cast<long>(i * 50)));
    }
  }
}

TEST(Transformer, RefusesChunksThatBreakTheRules) {
  TinyOptions options;
  options.context = 20;
  const Model model = load(make_tiny_model(options));
  auto team = ThreadTeam::create(1).value();
  EXPECT_EQ(Evaluator::create(model, team, {0}).error().code, Errc::invalid_argument);
  EXPECT_EQ(Evaluator::create(model, team, {21}).error().code, Errc::invalid_argument);
  auto evaluator = Evaluator::create(model, team, {8, matmul_isa_best()}).value();
  F32Attention attention(model.geometry(), nullptr);
  std::vector<float> logits(50);
  const std::vector<std::uint32_t> first = {0};
  const std::vector<std::uint32_t> descending = {1, 0};
  const std::vector<std::uint32_t> none;
  const auto tokens = random_tokens(8, 50, 8);
  const auto refusal = [&](const Chunk& chunk, std::size_t floats) {
    auto done = evaluator.forward(chunk, attention, {logits.data(), floats});
    return done ? Error{Errc::internal, "accepted", 0, 0, 0, ""} : done.error();
  };
  const auto nine = random_tokens(9, 50, 8);
  const std::vector<std::uint32_t> foreign = {3, 50};
  EXPECT_THAT(refusal({none, 0, none}, 0).message, HasSubstr("a chunk of 0 rows"));
  EXPECT_THAT(refusal({nine, 0, none}, 0).message, HasSubstr("a chunk of 9 rows"));
  EXPECT_THAT(refusal({foreign, 0, none}, 0).message, HasSubstr("token 50"));
  EXPECT_EQ(refusal({tokens, 13, none}, 0).code, Errc::too_large);
  EXPECT_EQ(refusal({tokens, ~std::uint64_t{0}, none}, 0).code, Errc::too_large);
  EXPECT_THAT(refusal({tokens, 0, descending}, 50).message, HasSubstr("ascending"));
  EXPECT_THAT(refusal({tokens, 0, first}, 49).message, HasSubstr("49 floats"));
  EXPECT_TRUE(evaluator.forward({tokens, 0, none}, attention, {}));
  EXPECT_TRUE(evaluator.forward({tokens, 8, first}, attention, logits));
}

class FailingAttention final : public KvAttention {
 public:
  Result<void> attend(std::uint32_t layer, const AttentionRows&) override {
    calls += 1;
    if (layer == 1) {
      return tl::unexpected<Error>(Error{Errc::cancelled, "stop", 0, 0, 0, "x"});
    }
    return {};
  }

  int calls = 0;
};

TEST(Transformer, ReturnsTheAttentionsErrorUnchanged) {
  TinyOptions options;
  options.layers = 3;
  const Model model = load(make_tiny_model(options));
  auto team = ThreadTeam::create(1).value();
  auto evaluator = Evaluator::create(model, team, {8, matmul_isa_best()}).value();
  FailingAttention attention;
  const auto tokens = random_tokens(8, 50, 9);
  auto done = evaluator.forward({tokens, 0, {}}, attention, {});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Errc::cancelled);
  EXPECT_EQ(done.error().message, "stop");
  EXPECT_EQ(attention.calls, 2);
}

}  // namespace

}  // namespace kvspan::model
