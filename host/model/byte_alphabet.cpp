// SPDX-License-Identifier: Apache-2.0
// Building and reading the byte alphabet. All its characters take one or two bytes of UTF-8.
// Read next: byte_alphabet.hpp for the source.
#include "model/byte_alphabet.hpp"

#include <cstddef>

namespace kvspan::model {

namespace {

bool stands_for_itself(std::uint32_t byte) noexcept {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

}  // namespace

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  std::uint32_t next = 0x100;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const std::uint32_t character = stands_for_itself(byte) ? byte : next++;
    byte_of_[character] = static_cast<std::int16_t>(byte);
  }
}

std::optional<std::string> ByteAlphabet::bytes_of(std::string_view spelled) const {
  std::string bytes;
  bytes.reserve(spelled.size());
  for (std::size_t i = 0; i < spelled.size(); ++i) {
    const auto first = static_cast<unsigned char>(spelled[i]);
    std::uint32_t character = first;
    if (first >= 0x80) {  // a two-byte sequence 110xxxxx 10xxxxxx, or nothing of ours
      const auto second = i + 1 < spelled.size() ? static_cast<unsigned char>(spelled[i + 1]) : 0u;
      if ((first & 0xE0u) != 0xC0u || (second & 0xC0u) != 0x80u) {
        return std::nullopt;
      }
      character = ((first & 0x1Fu) << 6) | (second & 0x3Fu);
      i += 1;
    }
    if (character >= kCharacters || byte_of_[character] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(byte_of_[character]));
  }
  return bytes;
}

}  // namespace kvspan::model
