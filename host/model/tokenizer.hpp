// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, by the gpt2-style byte-level BPE vocabulary of a GGUF file. Special
// tokens (bos, eos and other control tokens) are never produced from text: a text that spells one
// is encoded as the characters it consists of. User-defined tokens are treated the same. eos is not
// appended.
// Not here: SentencePiece, WordPiece and other vocabularies; such files are refused.
// Read next: pre_tokenizer.hpp for the limit on non-ASCII text, bpe in tokenizer.cpp.
#pragma once

#include "kvspan/core/error.hpp"

#include "model/gguf.hpp"
#include "model/pre_tokenizer.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvspan::model {

// Independent of the file after load().
// Thread rule: const members from any thread.
class Tokenizer {
 public:
  // Reads tokenizer.ggml.* of `file`.
  // Errors: not_found (the file has no vocabulary), bad_file (damaged or contradicting entries),
  // unsupported (another kind of vocabulary, or a split rule that is not known here where merges
  // make it matter), host_memory.
  [[nodiscard]] static Result<Tokenizer> load(const GgufFile& file);

  // The ids of `text`, after bos when the file asks for it. N bytes cost about N log N, however
  // long a word is.
  // Errors: unsupported (a byte has no token; the message names it).
  [[nodiscard]] Result<std::vector<std::uint32_t>> encode(std::string_view text) const;

  // The bytes of `ids`; special tokens give their names. The result need not be UTF-8 when ids end
  // inside a character.
  // Errors: invalid_argument (an id is not in the vocabulary).
  [[nodiscard]] Result<std::string> decode(std::span<const std::uint32_t> ids) const;

  [[nodiscard]] std::uint32_t vocabulary() const noexcept {
    return static_cast<std::uint32_t>(tokens_.size());
  }

  [[nodiscard]] std::optional<std::uint32_t> bos() const noexcept { return bos_; }

  [[nodiscard]] std::optional<std::uint32_t> eos() const noexcept { return eos_; }

  [[nodiscard]] bool adds_bos() const noexcept { return adds_bos_; }

  // True for tokens that text never gives.
  // Pre: id < vocabulary().
  [[nodiscard]] bool is_special(std::uint32_t id) const noexcept { return special_[id] != 0; }

  // Merges that can happen: those whose two parts and whose product are all in the vocabulary.
  [[nodiscard]] std::size_t merges() const noexcept { return merges_.size(); }

 private:
  // What two neighbours become, and how early: lower ranks go first.
  struct Merge {
    std::uint32_t rank;
    std::uint32_t product;
  };

  Tokenizer() = default;

  [[nodiscard]] Result<void> load_tokens(const GgufFile& file);
  [[nodiscard]] Result<void> load_special_ids(const GgufFile& file);
  [[nodiscard]] Result<void> load_merges(const GgufFile& file);
  [[nodiscard]] Result<void> load_split_rule(const GgufFile& file);
  [[nodiscard]] Result<void> encode_word(std::string_view word,
                                         std::vector<std::uint32_t>& ids) const;
  [[nodiscard]] std::vector<std::uint32_t> merge_word(std::vector<std::uint32_t> symbols) const;

  std::vector<std::string> tokens_;                       // [id], bytes
  std::vector<std::uint8_t> special_;                     // [id], 1 for special tokens
  std::unordered_map<std::string, std::uint32_t> id_of_;  // ordinary tokens by their bytes
  std::unordered_map<std::uint64_t, Merge> merges_;       // by left id * 2^32 + right id
  SplitRule split_rule_ = SplitRule::gpt2;
  bool whole_words_first_ =
      false;  // llama3 takes a word that is a token as that token, whatever the merges say
  std::optional<std::uint32_t> bos_;
  std::optional<std::uint32_t> eos_;
  bool adds_bos_ = false;
};

}  // namespace kvspan::model
