// SPDX-License-Identifier: Apache-2.0
// Splitting text into words before merging, as the three regular expressions of common vocabularies
// do, by hand.
// Limit: characters are classed for ASCII only. Every byte from 0x80 on counts as a letter, so text
// with non-ASCII punctuation, digits or spaces may split, and then tokenise, otherwise than the
// model's own tokenizer would.
// Read next: tokenizer.cpp.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace kvspan::model {

// Which expression; the alternatives are tried in this order.
// gpt2:   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// llama3: (?i:'s|'t|'re|'ve|'m|'ll|'d), then [^\r\n\p{L}\p{N}]?\p{L}+, then \p{N}{1,3},
//         then  ?[^\s\p{L}\p{N}]+[\r\n]*, then \s*[\r\n]+, then \s+(?!\S), then \s+
// qwen2:  as llama3, with single digits: \p{N}
// Source: GPT-2's encoder.py; the tokenizer.json of Llama 3 and of Qwen2.
enum class SplitRule { gpt2, llama3, qwen2 };

// The rule for a file's tokenizer.ggml.pre, nullopt for names that are not known here. [any-thread]
[[nodiscard]] std::optional<SplitRule> split_rule_of(std::string_view pre) noexcept;

// Length in bytes of the first word of `text`; at least 1 unless text is empty. [any-thread]
[[nodiscard]] std::size_t first_word_bytes(SplitRule rule, std::string_view text) noexcept;

}  // namespace kvspan::model
