// SPDX-License-Identifier: Apache-2.0
// The regular expressions as code: alternatives are tried in order and each is as greedy as its
// pattern.
// Read next: pre_tokenizer.hpp for the patterns and the limit.
#include "model/pre_tokenizer.hpp"

#include <array>

namespace kvspan::model {

namespace {

bool is_letter(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
}

bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}

bool is_space(char c) noexcept {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool is_newline(char c) noexcept {
  return c == '\n' || c == '\r';
}

bool is_other(char c) noexcept {
  return !is_letter(c) && !is_digit(c) && !is_space(c);
}

// The end of the run of characters that satisfy `kind`, from `begin`.
template <class Kind>
std::size_t run_end(std::string_view text, std::size_t begin, Kind kind) noexcept {
  while (begin < text.size() && kind(text[begin])) {
    ++begin;
  }
  return begin;
}

char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

enum class LetterCase { exact, any };

// 's|'t|'re|'ve|'m|'ll|'d; 0 when none is there.
std::size_t contraction(std::string_view text, LetterCase letter_case) noexcept {
  static constexpr std::array<std::string_view, 7> kEndings = {
      "s", "t", "re", "ve", "m", "ll", "d"};
  if (text.front() != '\'') {
    return 0;
  }
  for (const std::string_view ending : kEndings) {
    bool same = text.size() > ending.size();
    for (std::size_t i = 0; same && i < ending.size(); ++i) {
      const char c = text[i + 1];
      same = (letter_case == LetterCase::any ? lower(c) : c) == ending[i];
    }
    if (same) {
      return ending.size() + 1;
    }
  }
  return 0;
}

// \s+(?!\S)|\s+ : white space up to the last one before a word, which is left to that word unless
// it stands alone.
std::size_t spaces(std::string_view text) noexcept {
  const std::size_t end = run_end(text, 0, is_space);
  return end == text.size() || end == 1 ? end : end - 1;
}

std::size_t gpt2_word(std::string_view text) noexcept {
  const std::size_t ending = contraction(text, LetterCase::exact);
  if (ending != 0) {
    return ending;
  }
  const std::size_t begin = text.front() == ' ' && text.size() > 1 ? 1 : 0;
  if (is_letter(text[begin])) {
    return run_end(text, begin, is_letter);
  }
  if (is_digit(text[begin])) {
    return run_end(text, begin, is_digit);
  }
  if (is_other(text[begin])) {
    return run_end(text, begin, is_other);
  }
  return spaces(text);
}

std::size_t llama3_word(std::string_view text, std::size_t digits_max) noexcept {
  const std::size_t ending = contraction(text, LetterCase::any);
  if (ending != 0) {
    return ending;
  }
  const char first = text.front();
  const bool leads = !is_newline(first) && !is_letter(first) && !is_digit(first);
  const std::size_t letters = leads && text.size() > 1 ? 1 : 0;
  if (is_letter(text[letters])) {
    return run_end(text, letters, is_letter);
  }
  if (is_digit(first)) {
    const std::size_t end = run_end(text, 0, is_digit);
    return end < digits_max ? end : digits_max;
  }
  const std::size_t begin = first == ' ' && text.size() > 1 ? 1 : 0;
  if (is_other(text[begin])) {
    return run_end(text, run_end(text, begin, is_other), is_newline);
  }
  // \s*[\r\n]+ : through the last line end of the white space.
  std::size_t end = run_end(text, 0, is_space);
  while (end > 0 && !is_newline(text[end - 1])) {
    --end;
  }
  return end != 0 ? end : spaces(text);
}

}  // namespace

std::optional<SplitRule> split_rule_of(std::string_view pre) noexcept {
  struct Named {
    std::string_view pre;
    SplitRule rule;
  };

  static constexpr std::array<Named, 6> kNamed = {{{"gpt-2", SplitRule::gpt2},
                                                   {"gpt2", SplitRule::gpt2},
                                                   {"default", SplitRule::gpt2},
                                                   {"llama-bpe", SplitRule::llama3},
                                                   {"llama3", SplitRule::llama3},
                                                   {"qwen2", SplitRule::qwen2}}};
  for (const Named& named : kNamed) {
    if (named.pre == pre) {
      return named.rule;
    }
  }
  return std::nullopt;
}

std::size_t first_word_bytes(SplitRule rule, std::string_view text) noexcept {
  if (text.empty()) {
    return 0;
  }
  switch (rule) {
    case SplitRule::gpt2:
      return gpt2_word(text);
    case SplitRule::llama3:
      return llama3_word(text, 3);
    case SplitRule::qwen2:
      return llama3_word(text, 1);
  }
  return 1;
}

}  // namespace kvspan::model
