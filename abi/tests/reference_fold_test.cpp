// SPDX-License-Identifier: Apache-2.0
// Fold and finish of the C reference: neutral states, exact small answers, NaN, sinks, and folding
// in one go or resumed.
// Read next: reference_advance_test.cpp.
#include "kvspan/sdk/reference/fold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// A state of head size 2, compared by bits.
struct State {
  std::array<float, 2> ml = {-kInf, 0.0f};
  std::array<float, 2> u = {0.0f, 0.0f};

  State& fold(const State& source) {
    kvspan_ref_state_fold(ml.data(), u.data(), source.ml.data(), source.u.data(), 2);
    return *this;
  }

  [[nodiscard]] std::array<std::uint32_t, 4> bits() const {
    return {kvspan_ref_bits_of(ml[0]),
            kvspan_ref_bits_of(ml[1]),
            kvspan_ref_bits_of(u[0]),
            kvspan_ref_bits_of(u[1])};
  }
};

struct Finished {
  std::array<float, 2> out = {};
  float lse = 0.0f;
};

Finished finish(const State& state, const float* sink = nullptr) {
  Finished finished;
  finished.lse =
      kvspan_ref_state_finish(state.ml.data(), state.u.data(), 2, sink, finished.out.data());
  return finished;
}

State of_result(float value, float lse) {
  State state;
  const std::array<float, 2> out = {value, -value};
  kvspan_ref_state_of_result(out.data(), lse, 2, state.ml.data(), state.u.data());
  return state;
}

TEST(Fold, OfTwoEmptyResultsIsEmpty) {
  State state = of_result(0.0f, -kInf);
  state.fold(of_result(7.0f, -kInf));
  EXPECT_EQ(state.bits(), State().bits());
  const Finished finished = finish(state);
  EXPECT_EQ(kvspan_ref_bits_of(finished.out[0]), 0u);
  EXPECT_EQ(kvspan_ref_bits_of(finished.out[1]), 0u);
  EXPECT_EQ(finished.lse, -kInf);
}

TEST(Fold, OfEmptyAndAResultIsTheResultBitForBit) {
  for (const float value : {3.25f, -0.0f, 1e-45f, kInf}) {
    for (const float lse : {-0.0f, 0.0f, 12.5f, -80.0f, 1e30f}) {
      const State result = of_result(value, lse);
      EXPECT_EQ(State().fold(result).bits(), result.bits());
      State other = result;
      EXPECT_EQ(other.fold(State()).bits(), result.bits());
      const Finished finished = finish(other);
      EXPECT_EQ(kvspan_ref_bits_of(finished.out[0]), kvspan_ref_bits_of(value));
      EXPECT_EQ(kvspan_ref_bits_of(finished.out[1]), kvspan_ref_bits_of(-value));
      EXPECT_EQ(kvspan_ref_bits_of(finished.lse), kvspan_ref_bits_of(lse));
    }
  }
}

// A skipped state is not added: 0 * exp(...) of an empty state with wild contents would be NaN.
TEST(Fold, NeverReadsTheSumsOfANeutralState) {
  State wild;
  wild.ml[1] = std::numeric_limits<float>::quiet_NaN();
  wild.u = {kInf, wild.ml[1]};
  const State result = of_result(2.0f, 1.0f);
  State first = result;
  EXPECT_EQ(first.fold(wild).bits(), result.bits());
  EXPECT_EQ(wild.fold(result).bits(), result.bits());
}

TEST(Fold, WeighsResultsByTheExponentialOfTheirLse) {
  State state = of_result(1.0f, std::log(1.0f));
  state.fold(of_result(3.0f, std::log(3.0f)));
  const Finished finished = finish(state);
  EXPECT_NEAR(finished.out[0], 2.5f, 2e-7f);
  EXPECT_NEAR(finished.out[1], -2.5f, 2e-7f);
  EXPECT_NEAR(finished.lse, std::log(4.0f), 2e-7f);
  State turned = of_result(3.0f, std::log(3.0f));
  turned.fold(of_result(1.0f, std::log(1.0f)));
  EXPECT_NEAR(finish(turned).out[0], 2.5f, 2e-7f);
}

TEST(Fold, KeepsTheLargerExactlyWhenTheOtherVanishes) {
  State state = of_result(5.0f, -300.0f);
  state.fold(of_result(7.0f, 300.0f));
  EXPECT_EQ(state.bits(), of_result(7.0f, 300.0f).bits());
}

TEST(Fold, KeepsANanThatARowSaw) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  State state = of_result(1.0f, 2.0f);
  State poisoned = of_result(1.0f, nan);
  const State turned = State(poisoned).fold(state);
  EXPECT_TRUE(std::isnan(turned.ml[0]));
  EXPECT_TRUE(std::isnan(finish(turned).out[0]));
  EXPECT_TRUE(std::isnan(finish(state.fold(poisoned)).out[0]));
  EXPECT_TRUE(std::isnan(state.ml[0]));
}

TEST(Fold, InOneGoOrResumedHasTheSameBits) {
  constexpr std::uint32_t kSeed = 81;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal(0.0f, 5.0f);
  for (int round = 0; round < 500; ++round) {
    std::vector<State> splits(17);
    double m = -std::numeric_limits<double>::infinity();
    for (State& split : splits) {
      if (random() % 5 != 0) {
        split.ml = {normal(random), 1.0f + std::fabs(normal(random))};
        split.u = {normal(random), normal(random)};
        m = std::max(m, static_cast<double>(split.ml[0]));
      }
    }
    State whole;
    State resumed;
    std::array<double, 2> sum = {0.0, 0.0};
    for (const State& split : splits) {
      whole.fold(split);
      resumed.fold(split).fold(State());
      resumed = State(resumed);
      const double weight = std::exp(split.ml[0] - m);
      sum[0] += split.u[0] * weight;
      sum[1] += split.ml[1] * weight;
    }
    ASSERT_EQ(whole.bits(), resumed.bits());
    ASSERT_EQ(static_cast<double>(whole.ml[0]), m);
    ASSERT_NEAR(whole.u[0], sum[0], 1e-4);
    ASSERT_NEAR(whole.ml[1], sum[1], sum[1] * 2e-6);
  }
}

TEST(Finish, AddsASinkOnceAndLeavesEmptyRowsEmpty) {
  const State state = of_result(6.0f, std::log(2.0f));
  const float sink = std::log(4.0f);
  const Finished larger = finish(state, &sink);
  EXPECT_NEAR(larger.out[0], 2.0f, 2e-7f);
  EXPECT_NEAR(larger.lse, std::log(6.0f), 2e-7f);
  const float low = -200.0f;
  EXPECT_EQ(finish(state, &low).out[0], 6.0f);
  const float high = 200.0f;
  EXPECT_EQ(finish(state, &high).out[0], 0.0f);
  EXPECT_EQ(finish(state, &high).lse, 200.0f);
  EXPECT_EQ(finish(State(), &sink).out[0], 0.0f);
  EXPECT_EQ(finish(State(), &sink).lse, -kInf);
}

TEST(Finish, DividesInPlace) {
  State state;
  state.ml = {1.0f, 4.0f};
  state.u = {2.0f, -8.0f};
  const float lse =
      kvspan_ref_state_finish(state.ml.data(), state.u.data(), 2, nullptr, state.u.data());
  EXPECT_EQ(state.u[0], 0.5f);
  EXPECT_EQ(state.u[1], -2.0f);
  EXPECT_FLOAT_EQ(lse, 1.0f + std::log(4.0f));
}

}  // namespace
