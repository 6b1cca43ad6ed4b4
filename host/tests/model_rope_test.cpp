// SPDX-License-Identifier: Apache-2.0
// Rotation, norm and gate of single rows against double precision, and the greedy choice.
// Read next: model/rope.hpp, model/row_math.hpp, model/sampler.hpp.
#include "model/rope.hpp"
#include "model/row_math.hpp"
#include "model/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace kvspan::model {

namespace {

std::vector<float> random_floats(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& value : values) {
    value = distribution(random);
  }
  return values;
}

TEST(Rope, TurnsPairsOfBothStylesLikeComplexNumbers) {
  for (const RopeStyle style : {RopeStyle::interleaved, RopeStyle::halves}) {
    for (const std::uint32_t dimensions : {2u, 10u, 64u}) {
      for (const std::uint64_t position : {0u, 1u, 777u, 131000u}) {
        SCOPED_TRACE("seed 41, dimensions " + std::to_string(dimensions) + ", position " +
                     std::to_string(position));
        auto table = RopeTable::create({style, dimensions, 1e6}, 4);
        ASSERT_TRUE(table) << table.error().message;
        table->fill(position, 4);
        const auto before = random_floats(dimensions + 6, 41);
        auto after = before;
        table->rotate(3, after.data());
        const std::size_t pairs = dimensions / 2;
        for (std::size_t i = 0; i < pairs; ++i) {
          const std::size_t a = style == RopeStyle::interleaved ? 2 * i : i;
          const std::size_t b = style == RopeStyle::interleaved ? 2 * i + 1 : i + pairs;
          const double angle = static_cast<double>(position + 3) *
                               std::pow(1e6, -2.0 * static_cast<double>(i) / dimensions);
          const std::complex<double> turned =
              std::complex<double>(before[a], before[b]) * std::polar(1.0, angle);
          EXPECT_NEAR(after[a], turned.real(), 1e-6);
          EXPECT_NEAR(after[b], turned.imag(), 1e-6);
        }
        for (std::size_t i = dimensions; i < before.size(); ++i) {
          EXPECT_EQ(after[i], before[i]) << "beyond the rotated part";
        }
      }
    }
  }
}

TEST(RowMath, NormsLikeDoublePrecision) {
  for (const std::size_t size : {1u, 7u, 8u, 64u, 387u}) {
    SCOPED_TRACE("seeds 42 and 43, size " + std::to_string(size));
    const auto x = random_floats(size, 42);
    const auto weight = random_floats(size, 43);
    std::vector<float> out(size);
    rms_norm_row(x.data(), weight.data(), 1e-5f, size, out.data());
    double squares = 0.0;
    for (const float value : x) {
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const double root = std::sqrt(squares / static_cast<double>(size) + 1e-5);
    for (std::size_t i = 0; i < size; ++i) {
      const double expected = static_cast<double>(x[i]) / root * static_cast<double>(weight[i]);
      EXPECT_NEAR(out[i], expected, 3e-7 * (1.0 + std::fabs(expected)));
    }
    auto in_place = x;
    rms_norm_row(in_place.data(), weight.data(), 1e-5f, size, in_place.data());
    EXPECT_EQ(in_place, out);
  }
}

TEST(RowMath, KeepsTheNormOfHugeAndTinyRowsFinite) {
  const std::vector<float> weight(16, 1.0f);
  for (const float size : {1e-30f, 1e30f}) {
    const std::vector<float> x(16, size);
    std::vector<float> out(16);
    rms_norm_row(x.data(), weight.data(), 0.0f, 16, out.data());
    EXPECT_NEAR(out[5], 1.0f, 1e-6f) << size;
  }
}

TEST(RowMath, GatesLikeDoublePrecision) {
  std::vector<float> gate = {-200.0f, -5.0f, -0.5f, 0.0f, 0.5f, 5.0f, 200.0f};
  const std::vector<float> up = {1.0f, 2.0f, -3.0f, 4.0f, 5.0f, -6.0f, 7.0f};
  const auto before = gate;
  swiglu_row(gate.data(), up.data(), gate.size());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double z = static_cast<double>(before[i]);
    const double expected = z / (1.0 + std::exp(-z)) * static_cast<double>(up[i]);
    EXPECT_NEAR(gate[i], expected, 1e-6 * (1.0 + std::fabs(expected)));
  }
}

TEST(Sampler, TakesTheLargestLogitAndTheLowestIdAmongEquals) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(greedy_token(std::vector<float>{-1.0f, 3.0f, 2.0f, 3.0f}).value(), 1u);
  EXPECT_EQ(greedy_token(std::vector<float>{5.0f, 5.0f}).value(), 0u);
  EXPECT_EQ(greedy_token(std::vector<float>{-infinity, -7.0f}).value(), 1u);
  EXPECT_EQ(greedy_token(std::vector<float>{-infinity, -infinity}).value(), 0u);
  EXPECT_EQ(greedy_token({}).error().code, Errc::invalid_argument);
  for (std::size_t at = 0; at < 3; ++at) {
    std::vector<float> logits = {1.0f, 2.0f, 3.0f};
    logits[at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(greedy_token(logits).error().code, Errc::internal) << at;
  }
}

}  // namespace

}  // namespace kvspan::model
