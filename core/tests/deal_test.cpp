// SPDX-License-Identifier: Apache-2.0
// What is dealt out is every token once, each split's in order and in equal pieces, and a split
// that goes on streaming before its first streamed token.
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

struct Case {
  std::uint64_t granule;
  std::uint64_t split;
  Tokens resident;
  std::uint64_t waves;
  std::uint64_t joins;  // the wave in which the split that is resident in part begins to stream
};

Case random_case(std::mt19937_64& random) {
  const auto up_to = [&random](std::uint64_t most) { return 1 + random() % most; };
  Case out{};
  out.granule = up_to(4);
  out.split = out.granule * up_to(20);
  out.resident.begin = random() % 50;
  out.resident.end = out.resident.begin + up_to(8 * out.split);
  out.waves = 1 + up_to(9);
  out.joins = random() % out.waves;
  return out;
}

// The tokens that stream in a wave: of the split that goes on, from the wave on in which it joins.
std::vector<Tokens> streamed(const Case& of, std::uint64_t wave) {
  const std::uint64_t behind = (of.resident.end / of.split + 1) * of.split;
  return {{wave < of.joins ? behind : of.resident.end, behind + of.split}};
}

TEST(Deal, EveryTokenOnceInTheOrderOfItsSplit) {
  SCOPED_TRACE("seed 8123");
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 5000; ++round) {
    const Case of = random_case(random);
    Deal deal(of.resident, of.split, of.granule, of.waves);
    std::vector<int> seen(of.resident.end);
    std::map<std::uint64_t, std::uint64_t> next;  // of each split, the first token not yet walked
    for (std::uint64_t wave = 0; wave < of.waves; ++wave) {
      std::uint64_t before = 0;
      for (const Tokens& piece : deal.next(streamed(of, wave))) {
        ASSERT_LT(piece.begin, piece.end);
        ASSERT_TRUE(before == 0 || piece.begin > before) << "pieces ascend and do not touch";
        before = piece.end;
        for (std::uint64_t token = piece.begin; token < piece.end; ++token) {
          ++seen.at(token);
          const std::uint64_t split = token / of.split;
          const std::uint64_t first = std::max(of.resident.begin, split * of.split);
          const auto place = next.try_emplace(split, first).first;
          ASSERT_EQ(token, place->second) << round << ": a split's tokens in order";
          ++place->second;
        }
        ASSERT_TRUE(piece.begin == of.resident.begin || piece.begin % of.granule == 0);
        ASSERT_TRUE(piece.end == of.resident.end || piece.end % of.granule == 0);
      }
      if (wave >= of.joins && of.resident.end % of.split != 0) {
        const std::uint64_t split = of.resident.end / of.split;
        ASSERT_EQ(next[split], of.resident.end) << round << ": streamed before it was walked";
      }
    }
    ASSERT_EQ(
        std::count(seen.begin() + static_cast<std::ptrdiff_t>(of.resident.begin), seen.end(), 1),
        static_cast<std::ptrdiff_t>(of.resident.end - of.resident.begin));
  }
}

// Of every whole split each wave gets as much as the others, up to a granule.
TEST(Deal, EveryWaveGetsAnEqualPieceOfEverySplit) {
  SCOPED_TRACE("seed 8124");
  std::mt19937_64 random(kSeed + 1);
  for (int round = 0; round < 2000; ++round) {
    Case of = random_case(random);
    of.resident = {0, of.split * (1 + random() % 6)};
    Deal deal(of.resident, of.split, of.granule, of.waves);
    for (std::uint64_t wave = 0; wave < of.waves; ++wave) {
      std::map<std::uint64_t, std::uint64_t> got;  // of each split
      for (const Tokens& piece : deal.next({})) {
        for (std::uint64_t token = piece.begin; token < piece.end; ++token) {
          ++got[token / of.split];
        }
      }
      for (std::uint64_t split = 0; split < of.resident.end / of.split; ++split) {
        ASSERT_LT(got[split] * of.waves, of.split + of.granule * of.waves) << round;
        ASSERT_GT((got[split] + of.granule) * of.waves, of.split) << round;
      }
    }
  }
}

TEST(Deal, WalkedJoinsWhatFollows) {
  const auto joined = walked({{0, 4}, {8, 10}}, {{0, 20}, {25, 30}}, 10);
  ASSERT_EQ(joined.size(), 3U);
  EXPECT_EQ(joined[0].begin, 0U);
  EXPECT_EQ(joined[0].end, 4U);
  EXPECT_EQ(joined[1].begin, 8U);
  EXPECT_EQ(joined[1].end, 20U);
  EXPECT_EQ(joined[2].begin, 25U);
  EXPECT_EQ(joined[2].end, 30U);
  EXPECT_TRUE(walked({}, {{2, 9}}, 10).empty());
}

}  // namespace
}  // namespace kvspan
