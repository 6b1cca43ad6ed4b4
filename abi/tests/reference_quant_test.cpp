// SPDX-License-Identifier: Apache-2.0
// The codec of the C reference: golden bytes, geometry, error bounds of random rows, and the same
// bits from a build with fused multiply-add.
// Read next: reference_golden.py, where the golden bytes come from.
#include "kvspan/sdk/reference/quant.h"

#include "reference_fused.h"
#include "reference_golden.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace kvspan::test {
namespace {

struct TypeCase {
  const char* name;
  kvspan_type_t type;
  const char* GoldenRow::*golden;
};

constexpr TypeCase kQuantised[] = {{"q8_0", KVSPAN_TYPE_Q8_0, &GoldenRow::q8_0},
                                   {"q4_0", KVSPAN_TYPE_Q4_0, &GoldenRow::q4_0},
                                   {"q4_1", KVSPAN_TYPE_Q4_1, &GoldenRow::q4_1},
                                   {"q5_0", KVSPAN_TYPE_Q5_0, &GoldenRow::q5_0},
                                   {"q5_1", KVSPAN_TYPE_Q5_1, &GoldenRow::q5_1}};

std::vector<float> floats_of(const std::string& digits) {
  std::vector<float> row;
  for (std::size_t i = 0; i < digits.size(); i += 8) {
    const auto bits = static_cast<std::uint32_t>(std::stoul(digits.substr(i, 8), nullptr, 16));
    row.push_back(kvspan_ref_float_of(bits));
  }
  return row;
}

std::string digits_of(const std::vector<std::uint8_t>& bytes) {
  std::string digits;
  for (const std::uint8_t byte : bytes) {
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15u];
  }
  return digits;
}

std::vector<std::uint8_t> encode(kvspan_type_t type, const std::vector<float>& row) {
  std::vector<std::uint8_t> bytes(kvspan_ref_row_bytes(type, row.size()));
  EXPECT_EQ(kvspan_ref_encode_row(type, row.data(), row.size(), bytes.data()), bytes.size());
  return bytes;
}

std::vector<float> decode(kvspan_type_t type,
                          const std::vector<std::uint8_t>& bytes,
                          std::size_t elements) {
  std::vector<float> row(elements);
  EXPECT_EQ(kvspan_ref_decode_row(type, bytes.data(), elements, row.data()), bytes.size());
  return row;
}

bool cpu_fuses() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
#else
  return true;
#endif
}

TEST(Quant, EncodesGoldenRowsToGoldenBytes) {
  for (const GoldenRow& row : kGoldenRows) {
    const std::vector<float> x = floats_of(row.x);
    ASSERT_EQ(x.size(), 32u);
    for (const TypeCase& each : kQuantised) {
      EXPECT_EQ(digits_of(encode(each.type, x)), row.*each.golden) << row.name << " " << each.name;
    }
  }
}

// A few of the golden bytes once more by hand, so that a mistake in the generator would show.
TEST(Quant, EncodesRowsWorkedOutByHand) {
  std::vector<float> row(32, 0.0f);
  row[0] = -8.0f;  // q4_0: d = -8 / -8 = 1 = 0x3C00, numbers x + 8: 0 for -8, 8 for 0, 11 for 3
  row[17] = 3.0f;
  EXPECT_EQ(digits_of(encode(KVSPAN_TYPE_Q4_0, row)), "003c80b8" + std::string(28, '8'));
  row[0] = 127.0f;  // q8_0: d = 1; 2.5 is a tie and goes away from zero, to 3, and -2.5 to -3
  row[1] = 2.5f;
  row[2] = -2.5f;
  row[17] = 0.0f;
  EXPECT_EQ(digits_of(encode(KVSPAN_TYPE_Q8_0, row)).substr(0, 12), "003c7f03fd00");
  row.assign(32, -1.0f);  // q4_1: lo = -1 (0xBC00), d = 15 / 15 = 1, numbers x + 1
  row[31] = 14.0f;
  EXPECT_EQ(digits_of(encode(KVSPAN_TYPE_Q4_1, row)), "003c00bc" + std::string(30, '0') + "f0");
}

TEST(Quant, KnowsTheBytesOfEveryType) {
  EXPECT_EQ(kvspan_ref_row_bytes(KVSPAN_TYPE_F32, 80), 320u);
  EXPECT_EQ(kvspan_ref_row_bytes(KVSPAN_TYPE_F16, 80), 160u);
  EXPECT_EQ(kvspan_ref_row_bytes(KVSPAN_TYPE_BF16, 80), 160u);
  EXPECT_EQ(kvspan_ref_row_bytes(KVSPAN_TYPE_Q8_0, 128), 136u);
  EXPECT_EQ(kvspan_ref_row_bytes(KVSPAN_TYPE_Q5_1, 128), 96u);
  EXPECT_EQ(kvspan_ref_row_bytes(KVSPAN_TYPE_Q5_0, 128), 88u);
  EXPECT_EQ(kvspan_ref_row_bytes(KVSPAN_TYPE_Q4_1, 128), 80u);
  EXPECT_EQ(kvspan_ref_row_bytes(KVSPAN_TYPE_Q4_0, 128), 72u);
}

TEST(Quant, RefusesRowsThatCannotBeAndWritesNothing) {
  std::array<float, 96> row = {};
  std::array<std::uint8_t, 512> bytes = {};
  bytes.fill(0xA5);
  for (const TypeCase& each : kQuantised) {
    EXPECT_EQ(kvspan_ref_row_bytes(each.type, 80), 0u) << each.name;
    EXPECT_EQ(kvspan_ref_encode_row(each.type, row.data(), 80, bytes.data()), 0u) << each.name;
    EXPECT_EQ(kvspan_ref_decode_row(each.type, bytes.data(), 80, row.data()), 0u) << each.name;
  }
  EXPECT_EQ(kvspan_ref_row_bytes(4u, 32), 0u);  // a number that GGML has retired
  EXPECT_EQ(kvspan_ref_row_bytes(KVSPAN_TYPE_VENDOR, 32), 0u);
  EXPECT_EQ(kvspan_ref_row_bytes(KVSPAN_TYPE_F32, 0), 0u);
  EXPECT_EQ(kvspan_ref_row_bytes(KVSPAN_TYPE_F32, UINT64_MAX / 2), 0u);
  EXPECT_EQ(kvspan_ref_encode_row(4u, row.data(), 32, bytes.data()), 0u);
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0xA5), 512);
  EXPECT_EQ(std::count(row.begin(), row.end(), 0.0f), 96);
}

TEST(Quant, WritesBlocksInOrderAtAnyAddressAndNothingElse) {
  const std::vector<float> first = floats_of(kGoldenRows[4].x);
  std::vector<float> both = floats_of(kGoldenRows[6].x);
  both.insert(both.begin(), first.begin(), first.end());
  for (const TypeCase& each : kQuantised) {
    const std::string expected =
        std::string(kGoldenRows[4].*each.golden) + kGoldenRows[6].*each.golden;
    std::vector<std::uint8_t> bytes(expected.size() / 2 + 2, 0x5A);
    kvspan_ref_encode_row(each.type, both.data(), both.size(), bytes.data() + 1);
    EXPECT_EQ(digits_of(bytes), "5a" + expected + "5a") << each.name;
  }
}

// Every stored number at every position, with d = 1 and m = 0.5 where there is one.
TEST(Quant, DecodesEveryNumberAtEveryPosition) {
  for (const TypeCase& each : kQuantised) {
    const bool eight = each.type == KVSPAN_TYPE_Q8_0;
    const bool five = each.type == KVSPAN_TYPE_Q5_0 || each.type == KVSPAN_TYPE_Q5_1;
    const bool offset = each.type == KVSPAN_TYPE_Q4_1 || each.type == KVSPAN_TYPE_Q5_1;
    const int numbers = eight ? 256 : (five ? 32 : 16);
    const float middle = offset ? -0.5f : static_cast<float>(numbers) / 2.0f;
    for (int number = 0; number < numbers; ++number) {
      for (std::size_t j = 0; j < 32; ++j) {
        std::vector<std::uint8_t> bytes(kvspan_ref_row_bytes(each.type, 32), 0);
        bytes[1] = 0x3C;
        if (offset) {
          bytes[3] = 0x38;
        }
        const std::size_t head = offset ? 4 : 2;
        if (eight) {
          bytes[head + j] = static_cast<std::uint8_t>(number - 128);
        } else {
          const int low = number % 16;
          bytes[head + (five ? 4 : 0) + j % 16] =
              static_cast<std::uint8_t>(j < 16 ? low : 16 * low);
        }
        if (five && number >= 16) {
          bytes[head + j / 8] = static_cast<std::uint8_t>(1u << (j % 8));
        }
        const std::vector<float> row = decode(each.type, bytes, 32);
        ASSERT_EQ(row[j], static_cast<float>(number) - middle) << each.name << " " << j;
        ASSERT_EQ(row[(j + 1) % 32], eight ? 0.0f : -middle) << each.name << " " << j;
      }
    }
  }
}

TEST(Quant, KeepsUnquantisedRowsAsTheyAre) {
  std::vector<float> row;
  for (const GoldenRow& each : kGoldenRows) {
    const std::vector<float> more = floats_of(each.x);
    row.insert(row.end(), more.begin(), more.end());
  }
  const std::vector<float> same = decode(KVSPAN_TYPE_F32, encode(KVSPAN_TYPE_F32, row), row.size());
  const std::vector<float> f16 = decode(KVSPAN_TYPE_F16, encode(KVSPAN_TYPE_F16, row), row.size());
  const std::vector<float> bf16 =
      decode(KVSPAN_TYPE_BF16, encode(KVSPAN_TYPE_BF16, row), row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    ASSERT_EQ(kvspan_ref_bits_of(same[i]), kvspan_ref_bits_of(row[i])) << i;
    ASSERT_EQ(kvspan_ref_bits_of(f16[i]),
              kvspan_ref_bits_of(kvspan_ref_f32_from_f16(kvspan_ref_f16_from_f32(row[i]))));
    ASSERT_EQ(kvspan_ref_bits_of(bf16[i]),
              kvspan_ref_bits_of(kvspan_ref_f32_from_bf16(kvspan_ref_bf16_from_f32(row[i]))));
  }
}

// |x - value| in steps of d: half a step of rounding, the rounding of d and m to f16 (2^-11 of the
// product), and in q4_0 and q5_0 a whole step more for what the top number cuts off: the side
// opposite to `big` reaches number 16 or 32, which is stored as 15 or 31.
double bound_of(kvspan_type_t type, const std::vector<float>& row) {
  const auto [low, high] = std::minmax_element(row.begin(), row.end());
  const double greatest = std::max(std::fabs(*low), std::fabs(*high));
  const double width = static_cast<double>(*high) - *low;
  constexpr double kF16 = 1.0 / 2048;
  switch (type) {
    case KVSPAN_TYPE_Q8_0:
      return greatest / 127 * 0.5001 + greatest * kF16;
    case KVSPAN_TYPE_Q4_0:
      return greatest / 8 * 1.0001 + greatest * kF16;
    case KVSPAN_TYPE_Q5_0:
      return greatest / 16 * 1.0001 + greatest * kF16;
    case KVSPAN_TYPE_Q4_1:
      return width / 15 * 0.5001 + (width + greatest) * kF16;
    default:
      return width / 31 * 0.5001 + (width + greatest) * kF16;
  }
}

TEST(Quant, StaysWithinItsStepOnRandomRows) {
  constexpr std::uint32_t kSeed = 71;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  for (int round = 0; round < 2000; ++round) {
    // Scales stay well inside f16's normal range; outside it the golden rows speak.
    std::normal_distribution<float> normal(static_cast<float>(round % 5) - 2.0f,
                                           std::exp2(static_cast<float>(round % 17 - 8)));
    std::vector<float> row(32);
    std::generate(row.begin(), row.end(), [&] { return normal(random); });
    for (const TypeCase& each : kQuantised) {
      const std::vector<float> back = decode(each.type, encode(each.type, row), row.size());
      const double bound = bound_of(each.type, row);
      for (std::size_t j = 0; j < row.size(); ++j) {
        ASSERT_LE(std::fabs(static_cast<double>(row[j]) - back[j]), bound)
            << each.name << " round " << round << " element " << j;
      }
    }
  }
}

TEST(Quant, LowByteIsTheCastOfTheFormatWhereCHasNone) {
  EXPECT_EQ(kvspan_ref_low_byte(300.0f), 44u);
  EXPECT_EQ(kvspan_ref_low_byte(-1.5f), 255u);
  EXPECT_EQ(kvspan_ref_low_byte(-0.99f), 0u);
  EXPECT_EQ(kvspan_ref_low_byte(2147483520.0f), 128u);  // 2^31 - 128
  EXPECT_EQ(kvspan_ref_low_byte(2147483648.0f), 0u);
  EXPECT_EQ(kvspan_ref_low_byte(-2147483648.0f), 0u);
  EXPECT_EQ(kvspan_ref_low_byte(kvspan_ref_float_of(0x7FC00000u)), 0u);
  EXPECT_EQ(kvspan_ref_low_byte(kvspan_ref_float_of(0xFF800000u)), 0u);
}

// (1 + 2^-12)^2 - 1: the product rounds to 1 + 2^-11, so two roundings give 2^-11 and one gives
// 2^-11 + 2^-24. If the first expectation fails the test proves nothing: the build did not fuse.
TEST(Quant, BuildWithFusedMultiplyAddFusesOnlyWhereItMay) {
  if (!cpu_fuses()) {
    GTEST_SKIP() << "this CPU has no fused multiply-add";
  }
  const float x = 1.0f + std::exp2(-12.0f);
  EXPECT_EQ(kvspan_test_fused_sum(x, x, -1.0f), std::exp2(-11.0f) + std::exp2(-24.0f));
  EXPECT_EQ(kvspan_test_fused_separate(x, x, -1.0f), std::exp2(-11.0f));
}

TEST(Quant, BuildWithFusedMultiplyAddStoresTheSameBytes) {
  if (!cpu_fuses()) {
    GTEST_SKIP() << "this CPU has no fused multiply-add";
  }
  constexpr std::uint32_t kSeed = 72;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  for (int round = 0; round < 20000; ++round) {
    // Thirty-seconds of the largest: many scaled values lie within an ulp of a boundary between
    // numbers, where one rounding and two differ.
    const float largest = kvspan_ref_float_of(0x3F800000u + random() % 0x800000u);
    std::vector<float> row(32);
    std::generate(row.begin(), row.end(), [&] {
      return largest * static_cast<float>(static_cast<int>(random() % 65) - 32) / 32.0f;
    });
    row[random() % 32] = largest;
    for (const TypeCase& each : kQuantised) {
      const std::vector<std::uint8_t> bytes = encode(each.type, row);
      std::vector<std::uint8_t> fused(bytes.size());
      kvspan_test_fused_encode_row(each.type, row.data(), row.size(), fused.data());
      ASSERT_EQ(digits_of(fused), digits_of(bytes)) << each.name << " round " << round;
      const std::vector<float> back = decode(each.type, bytes, row.size());
      std::vector<float> fused_back(row.size());
      kvspan_test_fused_decode_row(each.type, bytes.data(), row.size(), fused_back.data());
      ASSERT_EQ(fused_back, back) << each.name << " round " << round;
    }
  }
}

}  // namespace
}  // namespace kvspan::test
