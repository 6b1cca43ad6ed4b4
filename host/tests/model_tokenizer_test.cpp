// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE: round trips, merge order against a slow restatement, special tokens, split rules,
// bad vocabularies.
// Read next: model/tokenizer.hpp.
#include "model/pre_tokenizer.hpp"
#include "model/tokenizer.hpp"
#include "tests/gguf_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::model {

namespace {

using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;

// UTF-8 of the character that stands for `byte` in a gpt2 vocabulary: the published rule once more.
std::string spelled(unsigned byte) {
  const auto itself = [](unsigned b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
  };
  unsigned character = byte;
  if (!itself(byte)) {
    character = 256;
    for (unsigned b = 0; b < byte; ++b) {
      character += itself(b) ? 0u : 1u;
    }
  }
  if (character < 0x80) {
    return {static_cast<char>(character)};
  }
  return {static_cast<char>(0xC0 | (character >> 6)), static_cast<char>(0x80 | (character & 63))};
}

std::string spelled_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result += spelled(static_cast<unsigned char>(c));
  }
  return result;
}

// A vocabulary of all bytes (id = byte), then `more`, then <bos> and <eos>.
struct Vocabulary {
  std::vector<std::string> more;
  std::vector<std::pair<std::string, std::string>> merges;
  std::string pre = "gpt-2";
};

GgufWriter write(const Vocabulary& vocabulary) {
  std::vector<std::string> tokens;
  for (unsigned byte = 0; byte < 256; ++byte) {
    tokens.push_back(spelled(byte));
  }
  for (const std::string& token : vocabulary.more) {
    tokens.push_back(spelled_text(token));
  }
  std::vector<std::int32_t> types(tokens.size(), 1);
  tokens.insert(tokens.end(), {"<bos>", "<eos>"});
  types.insert(types.end(), {3, 3});
  std::vector<std::string> merges;
  for (const auto& [left, right] : vocabulary.merges) {
    merges.push_back(spelled_text(left) + " " + spelled_text(right));
  }
  GgufWriter writer;
  writer.add_text("tokenizer.ggml.model", "gpt2");
  writer.add_text("tokenizer.ggml.pre", vocabulary.pre);
  writer.add_texts("tokenizer.ggml.tokens", tokens);
  writer.add_i32s("tokenizer.ggml.token_type", types);
  writer.add_texts("tokenizer.ggml.merges", merges);
  writer.add_u32("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(tokens.size() - 2));
  writer.add_u32("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(tokens.size() - 1));
  return writer;
}

Result<Tokenizer> load(const GgufWriter& writer) {
  const auto bytes = writer.file();
  auto file = GgufFile::from_bytes(bytes, "test.gguf");
  if (!file) {
    return tl::unexpected<Error>(file.error());
  }
  return Tokenizer::load(*file);
}

std::vector<std::string> words(SplitRule rule, std::string_view text) {
  std::vector<std::string> found;
  while (!text.empty()) {
    const std::size_t length = first_word_bytes(rule, text);
    if (length < 1 || length > text.size()) {
      ADD_FAILURE() << "a word of " << length << " bytes";
      break;
    }
    found.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return found;
}

// BPE as the paper says it: find the earliest merge that applies, apply its leftmost occurrence,
// repeat.
std::vector<std::string> slow_bpe(const std::string& word, const Vocabulary& vocabulary) {
  std::vector<std::string> parts;
  for (const char c : word) {
    parts.emplace_back(1, c);
  }
  for (;;) {
    std::size_t best = vocabulary.merges.size();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      for (std::size_t rank = 0; rank < best; ++rank) {
        if (vocabulary.merges[rank] == std::make_pair(parts[i], parts[i + 1])) {
          best = rank;
          at = i;
        }
      }
    }
    if (best == vocabulary.merges.size()) {
      return parts;
    }
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<long>(at) + 1);
  }
}

TEST(Tokenizer, GivesOneTokenPerByteWithoutUsableMerges) {
  Vocabulary vocabulary;
  vocabulary.merges = {{std::string(1, '\0'), std::string(1, '\0')}};  // its product is no token
  vocabulary.pre = "never heard of";  // does not matter without merges
  auto tokenizer = load(write(vocabulary));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->merges(), 0u);
  EXPECT_EQ(tokenizer->vocabulary(), 258u);
  EXPECT_EQ(tokenizer->bos(), 256u);
  EXPECT_EQ(tokenizer->eos(), 257u);
  EXPECT_FALSE(tokenizer->adds_bos());
  std::string text;
  for (int round = 0; round < 3; ++round) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      text.push_back(static_cast<char>(byte));
    }
  }
  auto ids = tokenizer->encode(text);
  ASSERT_TRUE(ids) << ids.error().message;
  ASSERT_EQ(ids->size(), text.size());
  for (std::size_t i = 0; i < ids->size(); ++i) {
    ASSERT_EQ((*ids)[i], i % 256);
  }
  EXPECT_EQ(tokenizer->decode(*ids).value(), text);
}

TEST(Tokenizer, MergesLowestRankFirstAndLeftmostAmongEquals) {
  Vocabulary vocabulary;
  vocabulary.more = {"ab", "bc", "aa", "abc"};
  vocabulary.merges = {{"b", "c"}, {"a", "b"}, {"a", "a"}, {"a", "bc"}};
  auto tokenizer = load(write(vocabulary));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_THAT(tokenizer->encode("abc").value(), ElementsAre(259));  // bc first, then a bc
  EXPECT_THAT(tokenizer->encode("ab").value(), ElementsAre(256));
  EXPECT_THAT(tokenizer->encode("aaa").value(), ElementsAre(258, 'a'));       // the leftmost pair
  EXPECT_THAT(tokenizer->encode("a b").value(), ElementsAre('a', ' ', 'b'));  // words do not merge
}

TEST(Tokenizer, AgreesWithSlowBpeOnRandomWords) {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Vocabulary vocabulary;
    std::vector<std::string> known = {"a", "b", "c"};
    while (vocabulary.merges.size() < 12) {
      const std::string left = known[random() % known.size()];
      const std::string right = known[random() % known.size()];
      if (std::find(known.begin(), known.end(), left + right) == known.end()) {
        known.push_back(left + right);
        vocabulary.more.push_back(left + right);
        vocabulary.merges.emplace_back(left, right);
      }
    }
    auto tokenizer = load(write(vocabulary));
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    for (int trial = 0; trial < 20; ++trial) {
      std::string word;
      for (std::size_t i = random() % 40; i > 0; --i) {
        word.push_back("abc"[random() % 3]);
      }
      const auto ids = tokenizer->encode(word).value();
      std::vector<std::string> parts;
      for (const std::uint32_t id : ids) {
        parts.push_back(tokenizer->decode({&id, 1}).value());
      }
      ASSERT_EQ(parts, slow_bpe(word, vocabulary)) << word;
      ASSERT_EQ(tokenizer->decode(ids).value(), word);
    }
  }
}

TEST(Tokenizer, EncodesAMegabyteWordAtOnce) {
  Vocabulary vocabulary;
  vocabulary.more = {"aa", "aaaa"};
  vocabulary.merges = {{"a", "a"}, {"aa", "aa"}};
  auto tokenizer = load(write(vocabulary));
  ASSERT_TRUE(tokenizer);
  const std::string text(std::size_t{1} << 20, 'a');  // a quadratic merge would need hours
  EXPECT_EQ(tokenizer->encode(text).value().size(), text.size() / 4);
}

TEST(Tokenizer, NeverMakesSpecialTokensFromText) {
  auto tokenizer = load(write({}));
  ASSERT_TRUE(tokenizer);
  const auto ids = tokenizer->encode("<bos>").value();
  EXPECT_THAT(ids, ElementsAre('<', 'b', 'o', 's', '>'));
  EXPECT_TRUE(tokenizer->is_special(256));
  EXPECT_FALSE(tokenizer->is_special('b'));
  const std::vector<std::uint32_t> bos = {256};
  EXPECT_EQ(tokenizer->decode(bos).value(), "<bos>");
}

TEST(Tokenizer, PutsBosFirstWhenTheFileAsks) {
  GgufWriter writer = write({});
  writer.add_flag("tokenizer.ggml.add_bos_token", 1);
  auto tokenizer = load(writer);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_THAT(tokenizer->encode("x").value(), ElementsAre(256, 'x'));
  EXPECT_THAT(tokenizer->encode("").value(), ElementsAre(256));
}

TEST(Tokenizer, TakesWholeWordsFirstUnderTheLlama3Rule) {
  Vocabulary vocabulary;
  vocabulary.more = {"xyz", "ab"};  // no merge leads to xyz
  vocabulary.merges = {{"a", "b"}};
  vocabulary.pre = "llama-bpe";
  auto tokenizer = load(write(vocabulary));
  ASSERT_TRUE(tokenizer);
  EXPECT_THAT(tokenizer->encode("xyz").value(), ElementsAre(258, 256));
  vocabulary.pre = "qwen2";
  tokenizer = load(write(vocabulary));
  ASSERT_TRUE(tokenizer);
  EXPECT_THAT(tokenizer->encode("xyz").value(), ElementsAre('x', 'y', 'z'));
}

TEST(Tokenizer, RefusesBadVocabularies) {
  GgufWriter none;
  EXPECT_EQ(load(none).error().code, Errc::not_found);
  GgufWriter spm;
  spm.add_text("tokenizer.ggml.model", "llama");
  EXPECT_EQ(load(spm).error().code, Errc::unsupported);
  Vocabulary strange;
  strange.more = {"ab"};
  strange.merges = {{"a", "b"}};
  strange.pre = "tekken";
  EXPECT_THAT(load(write(strange)).error().message, HasSubstr("'tekken'"));
  GgufWriter types;
  types.add_text("tokenizer.ggml.model", "gpt2");
  types.add_texts("tokenizer.ggml.tokens", {"a", "b", "c"});
  types.add_i32s("tokenizer.ggml.token_type", {1, 1});
  EXPECT_THAT(load(types).error().message, HasSubstr("3 tokens and 2 token types"));
  GgufWriter bos;
  bos.add_text("tokenizer.ggml.model", "gpt2");
  bos.add_texts("tokenizer.ggml.tokens", {"a", "b"});
  bos.add_u32("tokenizer.ggml.bos_token_id", 2);
  EXPECT_THAT(load(bos).error().message, HasSubstr("bos_token_id is 2"));
  for (const char* const merge : {"ab", " ab", "ab "}) {
    GgufWriter merges;
    merges.add_text("tokenizer.ggml.model", "gpt2");
    merges.add_texts("tokenizer.ggml.tokens", {"a", "b"});
    merges.add_texts("tokenizer.ggml.merges", {merge});
    EXPECT_THAT(load(merges).error().message, HasSubstr("merge 0")) << merge;
  }
}

TEST(Tokenizer, NamesTheByteWithoutToken) {
  GgufWriter writer;
  writer.add_text("tokenizer.ggml.model", "gpt2");
  writer.add_texts("tokenizer.ggml.tokens", {"a", "b"});
  auto tokenizer = load(writer);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_TRUE(tokenizer->encode("abba"));
  EXPECT_THAT(tokenizer->encode("abz").error().message, HasSubstr("byte 122"));
  const std::vector<std::uint32_t> beyond = {2};
  EXPECT_EQ(tokenizer->decode(beyond).error().code, Errc::invalid_argument);
}

TEST(PreTokenizer, SplitsAsGpt2Does) {
  const auto split = [](std::string_view text) { return words(SplitRule::gpt2, text); };
  EXPECT_THAT(split("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(split("it's we'll I'D"), ElementsAre("it", "'s", " we", "'ll", " I", "'", "D"));
  EXPECT_THAT(split("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(split("a\n\nb  "), ElementsAre("a", "\n", "\n", "b", "  "));
  EXPECT_THAT(split("x1234 56"), ElementsAre("x", "1234", " 56"));
  EXPECT_THAT(split("(a), 'b'"), ElementsAre("(", "a", "),", " '", "b", "'"));
  EXPECT_THAT(split("caf\xC3\xA9 ok"), ElementsAre("caf\xC3\xA9", " ok"));
  EXPECT_THAT(split(" "), ElementsAre(" "));
}

TEST(PreTokenizer, SplitsAsLlama3AndQwen2Do) {
  const auto split = [](std::string_view text) { return words(SplitRule::llama3, text); };
  EXPECT_THAT(split("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(split("It'S"), ElementsAre("It", "'S"));
  EXPECT_THAT(split("x12345"), ElementsAre("x", "123", "45"));
  EXPECT_THAT(split("(a) \n\n  b"), ElementsAre("(a", ")", " \n\n", " ", " b"));
  EXPECT_THAT(split("a;\n\nb"), ElementsAre("a", ";\n\n", "b"));
  EXPECT_THAT(split("a 12"), ElementsAre("a", " ", "12"));
  EXPECT_THAT(split("a   "), ElementsAre("a", "   "));
  EXPECT_THAT(words(SplitRule::qwen2, "x12"), ElementsAre("x", "1", "2"));
}

TEST(PreTokenizer, LosesNoByteOfRandomText) {
  for (const SplitRule rule : {SplitRule::gpt2, SplitRule::llama3, SplitRule::qwen2}) {
    SCOPED_TRACE("seed 31");
    std::mt19937 random(31);
    for (int trial = 0; trial < 500; ++trial) {
      std::string text;
      for (std::size_t i = random() % 30; i > 0; --i) {
        text.push_back(" \n\r\ta'sB1,.\xC3\x00"[random() % 13]);
      }
      std::string joined;
      for (const std::string& word : words(rule, text)) {
        joined += word;
      }
      ASSERT_EQ(joined, text);
    }
  }
}

}  // namespace

}  // namespace kvspan::model
