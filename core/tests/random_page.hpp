// SPDX-License-Identifier: Apache-2.0
// Encoded pages of a history that nobody wrote: a PageSource for Session::load.
#pragma once

#include "kvspan/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>

namespace kvspan::test {

// Random words that are small numbers in f16, so that scales are numbers too. The same page is the
// same bytes. No errors.
inline Result<void> random_page(std::uint32_t layer,
                                std::uint64_t page,
                                std::span<std::byte> bytes) {
  std::mt19937_64 random(1000 * layer + page);
  for (std::size_t at = 0; at + 1 < bytes.size(); at += 2) {
    const auto word = static_cast<std::uint16_t>(random());
    const auto small = static_cast<std::uint16_t>((word & 0x83ffU) | (8U + word % 6) << 10);
    std::memcpy(bytes.data() + at, &small, sizeof small);
  }
  return {};
}

}  // namespace kvspan::test
