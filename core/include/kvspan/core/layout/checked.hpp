// SPDX-License-Identifier: Apache-2.0
// Sums and products of sizes that say when they do not fit 64 bits, instead of wrapping into a
// small, valid-looking size. Not for floating point and not for counters that only ever grow by
// one.
// Read next: geometry.hpp, which is written in these words.
#pragma once

#include <cstdint>
#include <optional>

namespace kvspan {

// a + b, or nothing when the sum does not fit.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    return std::nullopt;
  }
  return sum;
}

// a * b, or nothing when the product does not fit.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    return std::nullopt;
  }
  return product;
}

[[nodiscard]] constexpr bool is_power_of_two(std::uint64_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

// The smallest multiple of `alignment` that is not below `value`, or nothing when it does not fit.
// `alignment` is a power of two; anything else gives nothing.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_align_up(std::uint64_t value,
                                                                      std::uint64_t alignment) {
  if (!is_power_of_two(alignment)) {
    return std::nullopt;
  }
  const auto padded = checked_add(value, alignment - 1);
  if (!padded) {
    return std::nullopt;
  }
  return *padded & ~(alignment - 1);
}

// The same where the caller knows that it fits, for any alignment but 0.
[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// ceil(value / divisor), without the overflow of (value + divisor - 1); nothing for a divisor of 0.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_ceil_div(std::uint64_t value,
                                                                      std::uint64_t divisor) {
  if (divisor == 0) {
    return std::nullopt;
  }
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

}  // namespace kvspan
