// SPDX-License-Identifier: Apache-2.0
// What rows hold in a simulation without arithmetic: whose row this is. Sixteen bytes, then a
// checksum at the end of longer rows, so that half a row is seen. Private to core/sim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace kvspan::sim {

inline constexpr std::uint8_t kPlaneK = 1;
inline constexpr std::uint8_t kPlaneV = 2;
inline constexpr std::uint8_t kPlaneQ = 3;
inline constexpr std::uint8_t kPlaneOut = 4;
inline constexpr std::uint8_t kPlaneState = 5;

// Bytes of what nobody wrote, or of what was being written.
inline constexpr unsigned char kPoison = 0xEE;

struct Tag {
  std::uint32_t stream = 0;  // of a sequence's life: never used again; of states: expectation
  std::uint32_t token = 0;
  std::uint32_t generation = 0;  // of the row at this token; of Q and outputs: expectation
  std::uint16_t layer = 0;
  std::uint8_t plane = 0;
  std::uint8_t head = 0;

  [[nodiscard]] bool operator==(const Tag&) const = default;
};

static_assert(sizeof(Tag) == 16);

[[nodiscard]] inline std::uint64_t checksum(const Tag& tag) {
  std::uint64_t words[2];
  std::memcpy(words, &tag, sizeof words);
  return (words[0] * 0x9e3779b97f4a7c15ULL ^ words[1]) * 0xbf58476d1ce4e5b9ULL;
}

// A row of at least 16 bytes.
inline void write_tag(std::byte* row, std::uint64_t row_bytes, const Tag& tag) {
  std::memcpy(row, &tag, sizeof tag);
  if (row_bytes >= sizeof tag + sizeof(std::uint64_t)) {
    const std::uint64_t sum = checksum(tag);
    std::memcpy(row + row_bytes - sizeof sum, &sum, sizeof sum);
  }
}

[[nodiscard]] inline Tag read_tag(const std::byte* row) {
  Tag tag;
  std::memcpy(&tag, row, sizeof tag);
  return tag;
}

// Whether the row is whole.
[[nodiscard]] inline bool holds_tag(const std::byte* row, std::uint64_t row_bytes, const Tag& tag) {
  if (std::memcmp(row, &tag, sizeof tag) != 0) {
    return false;
  }
  if (row_bytes < sizeof tag + sizeof(std::uint64_t)) {
    return true;
  }
  const std::uint64_t sum = checksum(tag);
  return std::memcmp(row + row_bytes - sizeof sum, &sum, sizeof sum) == 0;
}

[[nodiscard]] std::string text(const Tag& tag);

}  // namespace kvspan::sim
