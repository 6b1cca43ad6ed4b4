// SPDX-License-Identifier: Apache-2.0
// The oracle against answers that paper gives: it judges everything else, so each option has a case
// that would fail if the option were left out or applied in another order.
// Read next: reference_advance_test.cpp, where it judges the C reference.
#include "kvspan/sdk/reference/oracle.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvspan::oracle {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// One row and head, head size 1: token t has K = keys[t], V = values[t]; q = 1.
Problem line(const std::vector<double>& keys, const std::vector<double>& values) {
  Problem problem;
  problem.rows = 1;
  problem.q_heads = 1;
  problem.kv_heads = 1;
  problem.head_size_k = 1;
  problem.head_size_v = 1;
  problem.q = {1.0};
  problem.k = keys;
  problem.v = values;
  problem.visible_end = {keys.size()};
  return problem;
}

TEST(Oracle, WeighsByTheExponentialOfTheScaledScore) {
  Problem problem = line({0.0, std::log(3.0)}, {1.0, 5.0});
  Result result = attend(problem);
  EXPECT_NEAR(result.out[0], 4.0, 1e-15);  // (1 * 1 + 3 * 5) / 4
  EXPECT_NEAR(result.lse[0], std::log(4.0), 1e-15);
  problem.scale = 2.0;
  result = attend(problem);
  EXPECT_NEAR(result.out[0], 4.6, 1e-15);  // (1 * 1 + 9 * 5) / 10
}

TEST(Oracle, SurvivesScoresFarFromZero) {
  const Result result = attend(line({5000.0, 5000.0 + std::log(3.0)}, {1.0, 5.0}));
  EXPECT_NEAR(result.out[0], 4.0, 1e-11);
  EXPECT_NEAR(result.lse[0], 5000.0 + std::log(4.0), 1e-11);
}

TEST(Oracle, SeesItsWindowOnlyAndReadsNothingElse) {
  Problem problem = line({kNan, 0.0, 0.0, kInf}, {kNan, 2.0, 4.0, kInf});
  problem.window_begin = {1};
  problem.visible_end = {3};
  EXPECT_EQ(attend(problem).out[0], 3.0);
  EXPECT_EQ(largest_value(problem), 4.0);
}

TEST(Oracle, GivesZeroAndMinusInfinityWhereNothingIsVisible) {
  Problem problem = line({kNan}, {kNan});
  problem.visible_end = {0};
  problem.sinks = {3.0};
  const Result result = attend(problem);
  EXPECT_EQ(result.out[0], 0.0);
  EXPECT_EQ(result.lse[0], -kInf);
}

TEST(Oracle, MasksTheSuffixByBitAndKeepsWhatIsOlder) {
  Problem problem = line({0.0, 0.0, 0.0, 0.0}, {1.0, 10.0, 100.0, 1000.0});
  problem.suffix_count = 3;  // bits 0, 1, 2 are tokens 1, 2, 3
  problem.suffix_mask = {0b101};
  EXPECT_NEAR(attend(problem).out[0], 1011.0 / 3, 1e-12);
  problem.suffix_mask = {0b010};
  EXPECT_NEAR(attend(problem).out[0], 101.0 / 2, 1e-12);
  problem.suffix_count = 9;  // longer than the history: bit 8 is token 3, bit 5 token 0
  problem.suffix_mask = {0b1'0010'0000};
  EXPECT_NEAR(attend(problem).out[0], 1001.0 / 2, 1e-12);
}

TEST(Oracle, CapsTheScaledScoreThenAddsTheSlope) {
  Problem problem = line({8.0, 0.0}, {1.0, 0.0});
  problem.scale = 0.5;
  problem.soft_cap = 2.0;
  const double capped = 2.0 * std::tanh(2.0);
  EXPECT_NEAR(attend(problem).out[0], 1.0 / (1.0 + std::exp(-capped)), 1e-15);
  problem.slopes = {0.25};  // the row stands at token 1: -0.25 for token 0
  EXPECT_NEAR(attend(problem).out[0], 1.0 / (1.0 + std::exp(0.25 - capped)), 1e-15);
  problem.positions = {101};  // the same shift for both tokens: the same weights, another LSE
  EXPECT_NEAR(attend(problem).out[0], 1.0 / (1.0 + std::exp(0.25 - capped)), 1e-14);
  EXPECT_NEAR(attend(problem).lse[0], std::log(std::exp(capped - 25.25) + std::exp(-25.0)), 1e-13);
}

TEST(Oracle, LetsASinkTakeWeightWithoutAValue) {
  Problem problem = line({0.0, 0.0}, {6.0, 6.0});
  problem.sinks = {std::log(4.0)};
  const Result result = attend(problem);
  EXPECT_NEAR(result.out[0], 2.0, 1e-15);  // 12 / (2 + 4)
  EXPECT_NEAR(result.lse[0], std::log(6.0), 1e-15);
}

TEST(Oracle, SharesKvHeadsInGroupsAndKeepsHeadsApart) {
  Problem problem;
  problem.rows = 2;
  problem.q_heads = 4;
  problem.kv_heads = 2;
  problem.head_size_k = 2;
  problem.head_size_v = 1;
  problem.q.assign(2 * 4 * 2, 0.0);
  problem.q[(1 * 4 + 3) * 2 + 1] = 1.0;            // row 1, head 3, element 1
  problem.k = {0, 0, 0, 0, 0, 0, 0, std::log(3)};  // token 1, KV head 1, element 1
  problem.v = {1, 2, 3, 6};                        // [token, kv_head]
  problem.visible_end = {2, 2};
  const Result result = attend(problem);
  const std::vector<double> expected = {2, 2, 4, 4, 2, 2, 4, 5};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(result.out[i], expected[i], 1e-15) << i;
  }
}

TEST(Oracle, TakesVFromTheFrontOfK) {
  Problem problem = line({0.0, 7.0, 0.0, 7.0}, {});
  problem.head_size_k = 2;
  problem.q = {1.0, 0.0};
  problem.k = {0.0, 7.0, std::log(3.0), 9.0};
  problem.visible_end = {2};
  EXPECT_NEAR(attend(problem).out[0], 0.75 * std::log(3.0), 1e-15);
}

TEST(Oracle, MeasuresDistancesAndMissesNoNan) {
  const Problem problem = line({0.0, 0.0}, {3.0, -5.0});
  const Result exact = attend(problem);  // -1 and ln 2
  const auto log2 = static_cast<float>(std::log(2.0));
  const Distance near = distance(problem, exact, {-1.5f}, {log2 + 0.5f});
  EXPECT_EQ(near.nmse, 0.25);
  EXPECT_EQ(near.max_over_v, 0.1);
  EXPECT_NEAR(near.lse_max, 0.5, 1e-6);
  EXPECT_TRUE(near.ordinary);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Distance far = distance(problem, exact, {nan}, {nan});
  EXPECT_FALSE(far.ordinary);
  EXPECT_EQ(far.lse_max, kInf);
  Problem blind = problem;
  blind.visible_end = {0};
  const float minus_infinity = -std::numeric_limits<float>::infinity();
  const Distance none = distance(blind, attend(blind), {0.0f}, {minus_infinity});
  EXPECT_EQ(none.nmse, 0.0);
  EXPECT_EQ(none.max_over_v, 0.0);
  EXPECT_EQ(none.lse_max, 0.0);
}

}  // namespace
}  // namespace kvspan::oracle
