// SPDX-License-Identifier: Apache-2.0
// f16 and bf16 conversions of the C reference: every 16-bit pattern, every rounding boundary
// between neighbours, and this CPU's own conversions where it has them. Read next:
// reference_quant_test.cpp.
#include "kvspan/sdk/reference/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr std::uint32_t kPatterns = 65536;
constexpr float kInf = std::numeric_limits<float>::infinity();

bool is_nan_f16(std::uint32_t bits) {
  return (bits & 0x7FFFu) > 0x7C00u;
}

// The definition of binary16, by ldexp.
double value_of_f16(std::uint32_t bits) {
  const int exponent = static_cast<int>((bits >> 10) & 31u);
  const int fraction = static_cast<int>(bits & 1023u);
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? static_cast<double>(kInf)
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000u) ? -magnitude : magnitude;
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) std::uint16_t hardware_f16(float value) {
  const __m128i narrow = _mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT);
  return static_cast<std::uint16_t>(_mm_extract_epi16(narrow, 0));
}

__attribute__((target("f16c"))) float hardware_f32(std::uint16_t bits) {
  return _cvtsh_ss(bits);
}
#endif

TEST(HalfF16, WidensEveryPatternExactly) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const float wide = kvspan_ref_f32_from_f16(static_cast<std::uint16_t>(bits));
    if (is_nan_f16(bits)) {
      const std::uint32_t expected =
          ((bits & 0x8000u) << 16) | 0x7FC00000u | ((bits & 0x3FFu) << 13);
      ASSERT_EQ(kvspan_ref_bits_of(wide), expected) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(wide), value_of_f16(bits)) << bits;
      ASSERT_EQ(std::signbit(wide), (bits & 0x8000u) != 0) << bits;
    }
  }
}

TEST(HalfF16, NarrowsEveryPatternBackToItself) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const float wide = kvspan_ref_f32_from_f16(static_cast<std::uint16_t>(bits));
    const std::uint32_t expected = is_nan_f16(bits) ? ((bits & 0x8000u) | 0x7E00u) : bits;
    ASSERT_EQ(kvspan_ref_f16_from_f32(wide), expected) << bits;
  }
}

// Between a pattern and the next lies one boundary, exact in f32: it goes to the even pattern, and
// the f32 on either side of it goes to that side. The last boundary is 65520, between 65504 and
// Inf.
TEST(HalfF16, RoundsToNearestEvenAtEveryBoundary) {
  for (std::uint32_t bits = 0; bits < 0x7C00u; ++bits) {
    const double below = value_of_f16(bits);
    const double above = bits + 1 == 0x7C00u ? 65536.0 : value_of_f16(bits + 1);
    const auto middle = static_cast<float>((below + above) / 2);
    ASSERT_EQ(static_cast<double>(middle), (below + above) / 2) << bits;
    const std::uint32_t even = (bits & 1u) ? bits + 1 : bits;
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      const float direction = sign ? -1.0f : 1.0f;
      ASSERT_EQ(kvspan_ref_f16_from_f32(direction * middle), sign | even) << bits;
      ASSERT_EQ(kvspan_ref_f16_from_f32(direction * std::nextafter(middle, 0.0f)), sign | bits);
      ASSERT_EQ(kvspan_ref_f16_from_f32(direction * std::nextafter(middle, kInf)),
                sign | (bits + 1));
    }
  }
}

TEST(HalfF16, KeepsSignsOfZeroInfinityAndNan) {
  EXPECT_EQ(kvspan_ref_f16_from_f32(0.0f), 0x0000u);
  EXPECT_EQ(kvspan_ref_f16_from_f32(-0.0f), 0x8000u);
  EXPECT_EQ(kvspan_ref_f16_from_f32(kInf), 0x7C00u);
  EXPECT_EQ(kvspan_ref_f16_from_f32(-kInf), 0xFC00u);
  EXPECT_EQ(kvspan_ref_f16_from_f32(std::numeric_limits<float>::max()), 0x7C00u);
  EXPECT_EQ(kvspan_ref_f16_from_f32(-std::numeric_limits<float>::denorm_min()), 0x8000u);
  EXPECT_EQ(kvspan_ref_f16_from_f32(kvspan_ref_float_of(0x7FC00000u)), 0x7E00u);
  EXPECT_EQ(kvspan_ref_f16_from_f32(kvspan_ref_float_of(0xFF812345u)), 0xFE00u);
}

#if defined(__x86_64__)
TEST(HalfF16, AgreesWithThisProcessor) {
  if (!__builtin_cpu_supports("avx2")) {  // clang 14 knows no "f16c"; no CPU has AVX2 without it
    GTEST_SKIP() << "this CPU has no F16C";
  }
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    ASSERT_EQ(kvspan_ref_bits_of(kvspan_ref_f32_from_f16(narrow)),
              kvspan_ref_bits_of(hardware_f32(narrow)))
        << bits;
  }
  constexpr std::uint32_t kStride = 1021;  // prime: 4.2 million f32 patterns, every exponent
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += kStride) {
    const float value = kvspan_ref_float_of(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) {
      continue;  // hardware keeps payloads, see half.h
    }
    ASSERT_EQ(kvspan_ref_f16_from_f32(value), hardware_f16(value)) << bits;
  }
}
#endif

#if defined(__FLT16_MAX__) && defined(__GNUC__) && !defined(__clang__)
TEST(HalfF16, AgreesWithTheCompilersType) {
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 65521) {
    const float value = kvspan_ref_float_of(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) {
      continue;
    }
    const auto narrow = static_cast<_Float16>(value);
    std::uint16_t expected = 0;
    std::memcpy(&expected, &narrow, sizeof expected);
    ASSERT_EQ(kvspan_ref_f16_from_f32(value), expected) << bits;
  }
}
#endif

TEST(HalfBf16, PassesEveryPatternThrough) {
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const float wide = kvspan_ref_f32_from_bf16(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(kvspan_ref_bits_of(wide), bits << 16);
    const std::uint32_t expected = (bits & 0x7FFFu) > 0x7F80u ? (bits | 0x40u) : bits;
    ASSERT_EQ(kvspan_ref_bf16_from_f32(wide), expected) << bits;
  }
}

TEST(HalfBf16, RoundsToNearestEvenAtEveryBoundary) {
  for (std::uint32_t bits = 0; bits < 0x7F80u; ++bits) {
    const std::uint32_t even = (bits & 1u) ? bits + 1 : bits;
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      const std::uint32_t middle = ((sign | bits) << 16) | 0x8000u;
      ASSERT_EQ(kvspan_ref_bf16_from_f32(kvspan_ref_float_of(middle)), sign | even) << bits;
      ASSERT_EQ(kvspan_ref_bf16_from_f32(kvspan_ref_float_of(middle - 1)), sign | bits);
      ASSERT_EQ(kvspan_ref_bf16_from_f32(kvspan_ref_float_of(middle + 1)), sign | (bits + 1));
    }
  }
}

TEST(HalfBf16, KeepsInfinitySubnormalsAndQuietNan) {
  EXPECT_EQ(kvspan_ref_bf16_from_f32(kInf), 0x7F80u);
  EXPECT_EQ(kvspan_ref_bf16_from_f32(std::numeric_limits<float>::max()), 0x7F80u);
  EXPECT_EQ(kvspan_ref_bf16_from_f32(kvspan_ref_float_of(0x00010000u)), 0x0001u);
  EXPECT_EQ(kvspan_ref_bf16_from_f32(kvspan_ref_float_of(0xFF800001u)), 0xFFC0u);
  EXPECT_EQ(kvspan_ref_bf16_from_f32(kvspan_ref_float_of(0x7F812345u)), 0x7FC1u);
}

}  // namespace
