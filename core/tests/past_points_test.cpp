// SPDX-License-Identifier: Apache-2.0
// Points of lanes that ended: bounded, never taken for reached, never mixed up with somebody
// else's.
#include "session/past_points.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <vector>

namespace kvspan {
namespace {

using Answer = PastPoints::Answer;

// Fences are only compared, and the allocator gives the same address again.
std::array<char, 3> places;

kvspan_fence_t* fence(std::size_t place) {
  return reinterpret_cast<kvspan_fence_t*>(&places.at(place));
}

TEST(PastPoints, KnowsWhatBecameOfEachValue) {
  PastPoints past;
  EXPECT_EQ(past.answer({fence(0), 1}), Answer::unknown);
  past.add(fence(0), 3, 5);
  past.add(fence(1), 5, 5);   // nothing was submitted
  past.add(fence(0), 9, 10);  // the address again
  EXPECT_EQ(past.end(), 10U);
  for (const std::uint64_t value : {1U, 3U, 6U, 9U}) {
    EXPECT_EQ(past.answer({fence(0), value}), Answer::reached) << value;
  }
  for (const std::uint64_t value : {4U, 5U, 10U}) {
    EXPECT_EQ(past.answer({fence(0), value}), Answer::lost) << value;
  }
  for (const std::uint64_t value : {0U, 11U}) {
    EXPECT_EQ(past.answer({fence(0), value}), Answer::unknown) << value;
  }
  for (std::uint64_t value = 0; value < 12; ++value) {
    EXPECT_EQ(past.answer({fence(1), value}), Answer::unknown) << value;
  }
}

TEST(PastPoints, IsBoundedAndNeverTellsThatALostOneWasReached) {
  std::mt19937_64 random(17);
  PastPoints past;

  struct Truth {
    std::size_t place;
    bool reached;
    int lane;
  };

  std::vector<Truth> truth(1, {0, false, -1});
  constexpr int kLanes = 2000;
  for (int lane = 0; lane < kLanes; ++lane) {
    const std::size_t place = random() % places.size();
    truth.insert(truth.end(), random() % 9, {place, true, lane});
    const std::uint64_t reached = truth.size() - 1;
    truth.insert(truth.end(), random() % 5, {place, false, lane});
    past.add(fence(place), reached, truth.size() - 1);
    ASSERT_LE(past.lanes(), PastPoints::kRecoveriesMax);
  }
  const int remembered = kLanes - static_cast<int>(PastPoints::kRecoveriesMax);
  for (std::uint64_t value = 1; value < truth.size(); ++value) {
    const Truth& of = truth[value];
    for (std::size_t place = 0; place < places.size(); ++place) {
      const bool known = place == of.place && of.lane >= remembered;
      ASSERT_EQ(past.answer({fence(place), value}),
                !known       ? Answer::unknown
                : of.reached ? Answer::reached
                             : Answer::lost)
          << "seed 17, value " << value;
    }
  }
}

}  // namespace
}  // namespace kvspan
