// SPDX-License-Identifier: Apache-2.0
// Byte amounts as people write them, and as they are shown.
#include "amount.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

namespace kvspan::host {
namespace {

constexpr std::uint64_t kWholeBytes = 6'313'000;

std::uint64_t bytes_of(std::string_view text) {
  const auto bytes = parse_bytes(text, kWholeBytes);
  EXPECT_TRUE(bytes) << text;
  return bytes.value_or(UINT64_MAX);
}

TEST(Amount, HasDecimalAndBinaryUnits) {
  EXPECT_EQ(bytes_of("6300000"), 6'300'000U);
  EXPECT_EQ(bytes_of("7B"), 7U);
  EXPECT_EQ(bytes_of("6.3MB"), 6'300'000U);
  EXPECT_EQ(bytes_of("6MiB"), 6U << 20);
  EXPECT_EQ(bytes_of("2kB"), 2'000U);
  EXPECT_EQ(bytes_of("2KiB"), 2'048U);
  EXPECT_EQ(bytes_of("1.5GB"), 1'500'000'000U);
  EXPECT_EQ(bytes_of("1.5GiB"), 3ULL << 29);
  EXPECT_EQ(bytes_of("1e6"), 1'000'000U);
  EXPECT_EQ(bytes_of("0"), 0U);
}

TEST(Amount, SharesAreOfTheWholeRoundedDown) {
  EXPECT_EQ(bytes_of("25%"), 1'578'250U);
  EXPECT_EQ(bytes_of("100%"), kWholeBytes);
  EXPECT_EQ(bytes_of("0%"), 0U);
  EXPECT_EQ(bytes_of("0.00001%"), 0U);
  EXPECT_EQ(parse_bytes("50%", 3).value(), 1U);
}

TEST(Amount, RoundsDownToWholeBytes) {
  EXPECT_EQ(bytes_of("1.999B"), 1U);
  EXPECT_EQ(bytes_of("0.0019kB"), 1U);
}

// A double has 53 bits: an arena one byte below a large minimum must stay one byte below.
TEST(Amount, PlainBytesAreExact) {
  constexpr std::uint64_t kSeed = 7;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 chance(kSeed);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t bytes = chance() >> (2U + chance() % 60U);
    EXPECT_EQ(bytes_of(std::to_string(bytes)), bytes);
  }
  EXPECT_EQ(bytes_of("9007199254740993"), (1ULL << 53) + 1);
}

TEST(Amount, RefusesEverythingElseAndQuotesIt) {
  for (const std::string text : {"",
                                 " ",
                                 "MB",
                                 "%",
                                 "-1",
                                 "-0.5MB",
                                 "+5",
                                 "nan",
                                 "inf",
                                 "1e400",
                                 "1e30",
                                 "6.3 MB",
                                 "6.3mb",
                                 "6.3XB",
                                 "25%%",
                                 "25 %",
                                 "0x10",
                                 "1,5MB",
                                 "12MBs",
                                 "18446744073709551616",
                                 "4611686018427387904",
                                 "9999999999GiB"}) {
    const auto bytes = parse_bytes(text, kWholeBytes);
    ASSERT_FALSE(bytes) << text;
    EXPECT_EQ(bytes.error().code, Errc::invalid_argument) << text;
    EXPECT_NE(bytes.error().message.find("'" + text + "'"), std::string::npos);
    EXPECT_NE(bytes.error().message.find("6MiB"), std::string::npos);
  }
}

TEST(Amount, IsShownInDecimalUnits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1.0 kB");
  EXPECT_EQ(bytes_text(6'300'000), "6.30 MB");
  EXPECT_EQ(bytes_text(6'979'321'856), "6.98 GB");
}

}  // namespace
}  // namespace kvspan::host
