// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE: a word starts as one token per byte; again and again the neighbours with the
// lowest rank merge, the leftmost first. A queue of candidates over a linked list keeps long words
// at N log N.
// Source: Sennrich et al., arXiv:1508.07909, and GPT-2's encoder.py; key names from the GGUF
// specification.
// Read next: tokenizer.hpp for the contract.
#include "model/tokenizer.hpp"

#include "model/byte_alphabet.hpp"
#include "model/fail.hpp"
#include "model/gguf_parser.hpp"

#include <array>
#include <limits>
#include <new>
#include <queue>
#include <tuple>
#include <utility>

namespace kvspan::model {

namespace {

constexpr std::int64_t kNormalToken =
    1;  // tokenizer.ggml.token_type: 1 normal, 3 control, 4 user-defined, 6 byte

std::uint64_t pair_key(std::uint32_t left, std::uint32_t right) noexcept {
  return (std::uint64_t{left} << 32) | right;
}

}  // namespace

Result<void> Tokenizer::load_tokens(const GgufFile& file) {
  auto spelled = file.text_array("tokenizer.ggml.tokens");
  if (!spelled) {
    return pass_on(spelled);
  }
  if (spelled->size() < 2 || spelled->size() > std::numeric_limits<std::int32_t>::max()) {
    return fail(Errc::bad_file, "'{}' has a vocabulary of {} tokens", file.name(), spelled->size());
  }
  std::vector<std::int64_t> types(spelled->size(), kNormalToken);
  if (file.has_value("tokenizer.ggml.token_type")) {
    auto stated = file.integer_array("tokenizer.ggml.token_type");
    if (!stated) {
      return pass_on(stated);
    }
    if (stated->size() != types.size()) {
      return fail(Errc::bad_file,
                  "'{}' has {} tokens and {} token types",
                  file.name(),
                  types.size(),
                  stated->size());
    }
    types = std::move(*stated);
  }
  const ByteAlphabet alphabet;
  tokens_.reserve(types.size());
  special_.reserve(types.size());
  for (std::size_t id = 0; id < types.size(); ++id) {
    auto bytes = alphabet.bytes_of((*spelled)[id]);
    const bool special = types[id] != kNormalToken || !bytes || bytes->empty();
    tokens_.push_back(special ? std::string((*spelled)[id]) : std::move(*bytes));
    special_.push_back(special ? 1 : 0);
  }
  return {};
}

Result<void> Tokenizer::load_special_ids(const GgufFile& file) {
  struct Wanted {
    const char* key;
    std::optional<std::uint32_t>* to;
  };

  for (const Wanted& wanted : {Wanted{"tokenizer.ggml.bos_token_id", &bos_},
                               Wanted{"tokenizer.ggml.eos_token_id", &eos_}}) {
    if (!file.has_value(wanted.key)) {
      continue;
    }
    auto id = file.count_value(wanted.key);
    if (!id) {
      return pass_on(id);
    }
    if (*id >= tokens_.size()) {
      return fail(Errc::bad_file,
                  "'{}': {} is {} in a vocabulary of {}",
                  file.name(),
                  wanted.key,
                  *id,
                  tokens_.size());
    }
    *wanted.to = static_cast<std::uint32_t>(*id);
    special_[static_cast<std::size_t>(*id)] = 1;
  }
  // Ordinary tokens become findable only now: bos and eos may lack a control type in old files.
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (special_[id] == 0) {
      id_of_.emplace(tokens_[id], static_cast<std::uint32_t>(id));  // the lowest id among equals
    }
  }
  return {};
}

Result<void> Tokenizer::load_merges(const GgufFile& file) {
  if (!file.has_value("tokenizer.ggml.merges")) {
    return {};
  }
  auto merges = file.text_array("tokenizer.ggml.merges");
  if (!merges) {
    return pass_on(merges);
  }
  const ByteAlphabet alphabet;
  for (std::size_t rank = 0; rank < merges->size(); ++rank) {
    const std::string_view line = (*merges)[rank];
    const std::size_t space = line.find(' ');  // the alphabet spells a space otherwise
    if (space == std::string_view::npos || space == 0 || space + 1 == line.size()) {
      return fail(Errc::bad_file,
                  "'{}': merge {} is '{}', not two parts with a space between",
                  file.name(),
                  rank,
                  printable(line));
    }
    const auto left = alphabet.bytes_of(line.substr(0, space));
    const auto right = alphabet.bytes_of(line.substr(space + 1));
    if (!left || !right) {
      continue;
    }
    const auto left_id = id_of_.find(*left);
    const auto right_id = id_of_.find(*right);
    const auto product = id_of_.find(*left + *right);
    if (left_id == id_of_.end() || right_id == id_of_.end() || product == id_of_.end()) {
      continue;  // a merge that could never be written down as ids
    }
    merges_.emplace(pair_key(left_id->second, right_id->second),
                    Merge{static_cast<std::uint32_t>(rank), product->second});
  }
  return {};
}

Result<void> Tokenizer::load_split_rule(const GgufFile& file) {
  std::string_view pre = "default";
  if (file.has_value("tokenizer.ggml.pre")) {
    auto stated = file.text_value("tokenizer.ggml.pre");
    if (!stated) {
      return pass_on(stated);
    }
    pre = *stated;
  }
  const auto rule = split_rule_of(pre);
  if (!rule && !merges_.empty()) {
    return fail(
        Errc::unsupported,
        "'{}' splits text by the rule '{}'; this program knows gpt-2, default, llama-bpe and "
        "qwen2",
        file.name(),
        printable(pre));
  }
  split_rule_ = rule.value_or(SplitRule::gpt2);  // without merges a split changes nothing
  whole_words_first_ = split_rule_ == SplitRule::llama3;
  adds_bos_ = split_rule_ == SplitRule::llama3;
  if (file.has_value("tokenizer.ggml.add_bos_token")) {
    auto adds = file.flag_value("tokenizer.ggml.add_bos_token");
    if (!adds) {
      return pass_on(adds);
    }
    adds_bos_ = *adds;
    if (adds_bos_ && !bos_) {
      return fail(
          Errc::bad_file, "'{}' asks for a bos token before each text and names none", file.name());
    }
  }
  adds_bos_ = adds_bos_ && bos_.has_value();
  return {};
}

Result<Tokenizer> Tokenizer::load(const GgufFile& file) {
  auto kind = file.text_value("tokenizer.ggml.model");
  if (!kind) {
    return pass_on(kind);
  }
  if (*kind != "gpt2") {
    return fail(Errc::unsupported,
                "'{}' has a vocabulary of the kind '{}'; this program knows gpt2",
                file.name(),
                printable(*kind));
  }
  try {
    Tokenizer tokenizer;
    for (const auto part : {&Tokenizer::load_tokens,
                            &Tokenizer::load_special_ids,
                            &Tokenizer::load_merges,
                            &Tokenizer::load_split_rule}) {
      auto loaded = (tokenizer.*part)(file);
      if (!loaded) {
        return pass_on(loaded);
      }
    }
    return tokenizer;
  } catch (const std::bad_alloc&) {
    return fail(Errc::host_memory, "not enough memory for the vocabulary of '{}'", file.name());
  }
}

// Neighbours that may merge wait in a queue by (rank, place). A merge leaves stale entries behind;
// an entry counts only while both of its symbols are still the ones it was made for.
std::vector<std::uint32_t> Tokenizer::merge_word(std::vector<std::uint32_t> symbols) const {
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  struct Candidate {
    std::uint32_t rank;
    std::size_t left;
    std::size_t right;
    std::uint64_t pair;
    std::uint32_t product;

    bool operator>(const Candidate& other) const noexcept {
      return std::tie(rank, left) > std::tie(other.rank, other.left);
    }
  };

  const std::size_t count = symbols.size();
  std::vector<std::size_t> next(count, kNone);
  std::vector<std::size_t> previous(count, kNone);
  std::vector<std::uint8_t> gone(count, 0);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](std::size_t left, std::size_t right) {
    if (left == kNone || right == kNone) {
      return;
    }
    const std::uint64_t pair = pair_key(symbols[left], symbols[right]);
    const auto merge = merges_.find(pair);
    if (merge != merges_.end()) {
      queue.push({merge->second.rank, left, right, pair, merge->second.product});
    }
  };
  for (std::size_t i = 0; i + 1 < count; ++i) {
    next[i] = i + 1;
    previous[i + 1] = i;
    offer(i, i + 1);
  }
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    if (gone[best.left] != 0 || next[best.left] != best.right ||
        pair_key(symbols[best.left], symbols[best.right]) != best.pair) {
      continue;
    }
    symbols[best.left] = best.product;
    gone[best.right] = 1;
    next[best.left] = next[best.right];
    if (next[best.left] != kNone) {
      previous[next[best.left]] = best.left;
    }
    offer(previous[best.left], best.left);
    offer(best.left, next[best.left]);
  }
  std::vector<std::uint32_t> merged;
  for (std::size_t i = 0; i < count; ++i) {
    if (gone[i] == 0) {
      merged.push_back(symbols[i]);
    }
  }
  return merged;
}

Result<void> Tokenizer::encode_word(std::string_view word, std::vector<std::uint32_t>& ids) const {
  if (whole_words_first_) {
    const auto whole = id_of_.find(std::string(word));
    if (whole != id_of_.end()) {
      ids.push_back(whole->second);
      return {};
    }
  }
  std::vector<std::uint32_t> symbols;
  symbols.reserve(word.size());
  for (const char byte : word) {
    const auto found = id_of_.find(std::string(1, byte));
    if (found == id_of_.end()) {
      return fail(Errc::unsupported,
                  "the vocabulary has no token for byte {}, which the text contains",
                  static_cast<unsigned>(static_cast<unsigned char>(byte)));
    }
    symbols.push_back(found->second);
  }
  if (!merges_.empty()) {
    symbols = merge_word(std::move(symbols));
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  return {};
}

Result<std::vector<std::uint32_t>> Tokenizer::encode(std::string_view text) const {
  std::vector<std::uint32_t> ids;
  if (adds_bos_) {
    ids.push_back(*bos_);
  }
  while (!text.empty()) {
    const std::size_t length =
        merges_.empty() && !whole_words_first_ ? text.size() : first_word_bytes(split_rule_, text);
    auto encoded = encode_word(text.substr(0, length), ids);
    if (!encoded) {
      return pass_on(encoded);
    }
    text.remove_prefix(length);
  }
  return ids;
}

Result<std::string> Tokenizer::decode(std::span<const std::uint32_t> ids) const {
  std::string text;
  for (const std::uint32_t id : ids) {
    if (id >= tokens_.size()) {
      return fail(
          Errc::invalid_argument, "token {} is not in the vocabulary of {}", id, tokens_.size());
    }
    text += tokens_[id];
  }
  return text;
}

}  // namespace kvspan::model
