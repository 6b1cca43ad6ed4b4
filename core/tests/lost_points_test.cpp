// SPDX-License-Identifier: Apache-2.0
// Points that fell with a failure: bounded, and never taken for reached.
#include "session/lost_points.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kvspan {
namespace {

TEST(LostPoints, HoldsWhatWasLostAndNothingElse) {
  LostPoints lost;
  EXPECT_FALSE(lost.contains(1));
  lost.add(3, 5);
  lost.add(9, 10);
  for (const std::uint64_t value : {4U, 5U, 10U}) {
    EXPECT_TRUE(lost.contains(value)) << value;
  }
  for (const std::uint64_t value : {1U, 3U, 6U, 9U, 11U}) {
    EXPECT_FALSE(lost.contains(value)) << value;
  }
}

TEST(LostPoints, IsBoundedAndForgetsNothingLost) {
  std::mt19937_64 random(17);
  LostPoints lost;
  std::vector<bool> truth(1, false);
  std::vector<std::uint64_t> begins;
  for (int recovery = 0; recovery < 5000; ++recovery) {
    truth.insert(truth.end(), random() % 20, false);
    begins.push_back(truth.size());
    const std::uint64_t after = truth.size() - 1;
    truth.insert(truth.end(), 1 + random() % 5, true);
    lost.add(after, truth.size() - 1);
    ASSERT_LE(lost.ranges(), LostPoints::kRecoveriesMax);
  }
  truth.insert(truth.end(), 30, false);
  const std::uint64_t told_apart = begins[begins.size() - LostPoints::kRecoveriesMax + 1];
  for (std::uint64_t value = 1; value < truth.size(); ++value) {
    if (truth[value]) {
      ASSERT_TRUE(lost.contains(value)) << "seed 17, value " << value;
    } else if (value >= told_apart) {
      ASSERT_FALSE(lost.contains(value)) << "seed 17, value " << value;
    }
  }
}

}  // namespace
}  // namespace kvspan
