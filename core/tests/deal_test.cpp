// SPDX-License-Identifier: Apache-2.0
// What is dealt out is every token once, whole splits in order, and a split that goes on streaming
// with the first wave.
#include "session/deal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace kvspan {
namespace {

constexpr std::uint32_t kSeed = 8123;

TEST(Deal, EveryTokenOnceInTheOrderOfItsSplit) {
  SCOPED_TRACE("seed 8123");
  std::mt19937_64 random(kSeed);
  const auto up_to = [&random](std::uint64_t most) { return 1 + random() % most; };
  for (int round = 0; round < 5000; ++round) {
    const std::uint64_t split = up_to(20);
    const std::uint64_t begin = random() % 50;
    const Tokens resident{begin, begin + up_to(200)};
    const std::uint64_t waves = 1 + up_to(9);
    const auto dealt = deal(resident, split, waves);
    ASSERT_EQ(dealt.size(), waves);
    ASSERT_TRUE(dealt.back().empty());
    std::vector<int> seen(resident.end);
    std::map<std::uint64_t, std::uint64_t> next;  // of each split, the first token not yet walked
    std::vector<std::uint64_t> splits(waves);
    for (std::uint64_t wave = 0; wave < waves; ++wave) {
      std::uint64_t before = 0;
      for (const Tokens& piece : dealt[wave]) {
        ASSERT_LT(piece.begin, piece.end);
        ASSERT_TRUE(before == 0 || piece.begin > before) << "pieces ascend and do not touch";
        before = piece.end;
        for (std::uint64_t token = piece.begin; token < piece.end; ++token) {
          ++seen.at(token);
          const std::uint64_t of = token / split;
          const auto place = next.try_emplace(of, std::max(begin, of * split)).first;
          ASSERT_EQ(token, place->second) << round << ": a split's tokens in order";
          ++place->second;
        }
        splits[wave] += (piece.end - 1) / split - piece.begin / split + 1;
      }
    }
    ASSERT_EQ(std::count(seen.begin() + static_cast<std::ptrdiff_t>(begin), seen.end(), 1),
              static_cast<std::ptrdiff_t>(resident.end - begin));
    // A split that streams on is in the first wave as far as it is resident.
    if (resident.end % split != 0) {
      ASSERT_FALSE(dealt.front().empty());
      ASSERT_EQ(dealt.front().back().end, resident.end);
    }
    const auto [fewest, most] = std::minmax_element(splits.begin(), splits.end() - 1);
    ASSERT_LE(*most - *fewest, 2U) << round;
  }
}

}  // namespace
}  // namespace kvspan
