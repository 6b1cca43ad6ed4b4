// SPDX-License-Identifier: Apache-2.0
// The real model reads a real prompt of 2,048 bytes and answers with the number planted near its
// start. No plugin: the history is plain f32, so this holds the transformer, the loader and the
// tokenizer to account, and nothing else.
// Read next: model/transformer.hpp.
#include "model/sampler.hpp"
#include "model/tokenizer.hpp"
#include "model/transformer.hpp"
#include "tests/f32_attention.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace kvspan::model {

namespace {

using ::testing::ElementsAre;
using testing::F32Attention;

// The folder with the model and the prompts; ctest sets it.
std::string data_folder() {
  const char* const folder = std::getenv("KVSPAN_TEST_DATA");
  return folder == nullptr ? std::string() : std::string(folder);
}

TEST(Recall, AnswersThePromptOf2048Bytes) {
  const std::string folder = data_folder();
  ASSERT_FALSE(folder.empty()) << "KVSPAN_TEST_DATA must name the repository's data folder";
  auto file = GgufFile::open(folder + "/models/bytelm.gguf");
  ASSERT_TRUE(file) << file.error().message;
  auto model = Model::load(*file);
  ASSERT_TRUE(model) << model.error().message;
  auto tokenizer = Tokenizer::load(*file);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->merges(), 0u);
  std::ifstream stream(folder + "/prompts/recall-2048.txt", std::ios::binary);
  const std::string prompt((std::istreambuf_iterator<char>(stream)), {});
  auto tokens = tokenizer->encode(prompt);
  ASSERT_TRUE(tokens) << tokens.error().message;
  ASSERT_EQ(tokens->size(), 2048u);

  auto team = ThreadTeam::create(2).value();
  auto evaluator = Evaluator::create(*model, team, {256, matmul_isa_best()});
  ASSERT_TRUE(evaluator) << evaluator.error().message;
  F32Attention attention(model->geometry(), &team);
  std::vector<float> logits(model->geometry().vocabulary);
  std::vector<std::uint32_t> answer;
  std::size_t begin = 0;
  while (answer.size() < 7) {
    const std::size_t rows = std::min<std::size_t>(256, tokens->size() - begin);
    const bool last = begin + rows == tokens->size();
    const std::vector<std::uint32_t> wanted(last ? 1 : 0, static_cast<std::uint32_t>(rows - 1));
    auto done = evaluator->forward({{tokens->data() + begin, rows}, begin, wanted},
                                   attention,
                                   {logits.data(), wanted.size() * logits.size()});
    ASSERT_TRUE(done) << done.error().message;
    begin += rows;
    if (last) {
      answer.push_back(greedy_token(logits).value());
      tokens->push_back(answer.back());
    }
  }
  EXPECT_THAT(answer, ElementsAre(52, 56, 50, 49, 51, 46, 10));  // "48213.\n"
  EXPECT_EQ(tokenizer->decode(answer).value(), "48213.\n");
}

}  // namespace

}  // namespace kvspan::model
