// SPDX-License-Identifier: Apache-2.0
// The printable alphabet that gpt2-style vocabularies spell bytes in: each of the 256 bytes is one
// Unicode character.
// Source: GPT-2's encoder.py, bytes_to_unicode(): printable Latin-1 stands for itself, the others
// for U+0100 onwards.
// Read next: tokenizer.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvspan::model {

// Both directions of the map. Immutable; any thread.
class ByteAlphabet {
 public:
  ByteAlphabet();

  // The bytes that `spelled` stands for; nullopt when it holds a character outside the alphabet or
  // broken UTF-8.
  [[nodiscard]] std::optional<std::string> bytes_of(std::string_view spelled) const;

 private:
  static constexpr std::uint32_t kCharacters = 0x144;  // the largest character in use is U+0143
  std::array<std::int16_t, kCharacters> byte_of_{};    // -1 outside the alphabet
};

}  // namespace kvspan::model
