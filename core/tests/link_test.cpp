// SPDX-License-Identifier: Apache-2.0
// The link's cost: known break-even sizes, and the line found again behind noisy samples.
#include "kvspan/core/policy/link.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace kvspan::test {
namespace {

std::vector<CopySample> samples_of(const Link& link, double noise, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> late(0.0, noise);
  std::vector<CopySample> samples;
  for (std::uint64_t bytes = 4096; bytes <= 64ULL << 20; bytes *= 4) {
    for (int repeat = 0; repeat < 9; ++repeat) {
      samples.push_back({bytes, copy_time_ns(link, bytes) * (1.0 + late(random))});
    }
  }
  return samples;
}

// Two links whose best copy sizes differ: no threshold fits both.
TEST(Link, BreakEvenIsMeasuredForEachLink) {
  const Link fast{2300.0, 25e9};
  const Link slow{10000.0, 12e9};
  EXPECT_EQ(break_even_bytes(fast), 57500U);
  EXPECT_EQ(break_even_bytes(slow), 120000U);
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U, 5U}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    for (const Link& link : {fast, slow}) {
      const auto found = fit_link(samples_of(link, 0.2, seed));
      ASSERT_TRUE(found.has_value()) << found.error().message;
      const auto expected = static_cast<double>(break_even_bytes(link));
      EXPECT_NEAR(static_cast<double>(break_even_bytes(*found)), expected, 0.1 * expected);
      EXPECT_NEAR(found->bytes_s, link.bytes_s, 0.1 * link.bytes_s);
    }
  }
}

TEST(Link, OneCopyOfManyPagesReachesTheRate) {
  const Link link{2300.0, 25e9};
  EXPECT_NEAR(copy_efficiency(link, 278528), 0.829, 0.001);
  EXPECT_NEAR(copy_efficiency(link, 16 * 278528), 0.987, 0.001);
  EXPECT_EQ(copy_efficiency(link, 0), 0.0);
  EXPECT_EQ(copy_time_ns(link, 0), 0.0);
  EXPECT_DOUBLE_EQ(copy_efficiency(link, break_even_bytes(link)), 0.5);
}

TEST(Link, SamplesThatSayNothingAreRefused) {
  const std::vector<std::vector<CopySample>> useless = {
      {},
      {{4096, 1000.0}},
      {{4096, 1000.0}, {4096, 900.0}},
      {{4096, 1000.0}, {8192, 0.0}},
      {{4096, 1000.0}, {8192, -5.0}},
      {{4096, 1000.0}, {1 << 20, 900.0}},
  };
  for (const std::vector<CopySample>& samples : useless) {
    const auto refused = fit_link(samples);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Errc::invalid_argument);
    EXPECT_NE(refused.error().message.find("time"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvspan::test
