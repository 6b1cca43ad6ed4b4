// SPDX-License-Identifier: Apache-2.0
// Row groups and split parts against a brute-force reading of the contract, token by token.
#include "kvspan/core/stream/row_groups.hpp"

#include "kvspan/core/memory/budget.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

namespace kvspan {
namespace {

TEST(RowGroups, EveryRowHasItsOwnSplitLength) {
  std::mt19937_64 random(31);
  const auto pick = [&](std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
  };
  for (int round = 0; round < 500; ++round) {
    RowGroupRequest request;
    request.first_token = pick(0, 5000);
    request.rows = static_cast<std::uint32_t>(pick(1, 300));
    request.window_tokens = pick(0, 2) == 0 ? pick(1, 5200) : 0;
    request.splits = static_cast<std::uint32_t>(pick(1, 12));
    request.granule = static_cast<std::uint32_t>(1U << pick(0, 6));
    request.unit = request.granule << pick(0, 3);
    SCOPED_TRACE("seed 31, round " + std::to_string(round));
    std::uint32_t row = 0;
    std::uint64_t entries = 0;
    std::uint64_t before = 0;
    for (const RowGroup& group : row_groups(request)) {
      ASSERT_EQ(group.first_row, row);
      EXPECT_GT(group.split_tokens, before) << "rows of one length are in two groups";
      before = group.split_tokens;
      ++entries;
      for (std::uint32_t index = 0; index < group.rows; ++index, ++row) {
        const std::uint64_t end = request.first_token + row + 1;
        const std::uint64_t begin = request.window_tokens == 0 || end <= request.window_tokens
                                        ? 0
                                        : end - request.window_tokens;
        EXPECT_EQ(group.split_tokens,
                  split_tokens(end - begin, request.splits, request.granule, request.unit));
        EXPECT_LE(group.visible_begin, begin);
        EXPECT_GE(group.visible_end, end);
      }
    }
    EXPECT_EQ(row, request.rows);
    // The planner's bound on entries with aligned states of their own.
    EXPECT_LE(entries, (request.rows - 1) / (std::uint64_t{request.splits} * request.granule) + 2);
  }
}

// However the history is cut into pieces, each split's parts cover exactly its visible tokens,
// ascending, begun once and finished once, and never touch a token twice.
TEST(SplitParts, CoverEachSplitOnceHoweverPiecesAreCut) {
  std::mt19937_64 random(32);
  const auto pick = [&](std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
  };
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE("seed 32, round " + std::to_string(round));
    const auto granule = static_cast<std::uint32_t>(1U << pick(0, 5));
    RowGroupRequest request{pick(0, 2000),
                            static_cast<std::uint32_t>(pick(1, 100)),
                            pick(0, 1) * pick(1, 500),
                            static_cast<std::uint32_t>(pick(1, 9)),
                            granule};
    const std::uint64_t total = request.first_token + request.rows;
    for (const RowGroup& group : row_groups(request)) {
      std::map<std::uint64_t, std::uint64_t> next;
      std::set<std::uint64_t> finished;
      std::uint64_t covered = group.visible_begin;
      std::uint64_t at = 0;
      while (at < total) {
        const std::uint64_t piece = pick(1, 8) * granule * pick(1, 4);
        const std::uint64_t end = std::min(total, at + piece);
        for (const SplitPart& part : split_parts(group, at, end, granule, total)) {
          ASSERT_EQ(part.split, part.begin / group.split_tokens);
          ASSERT_LT(part.begin, part.end);
          ASSERT_LE(part.end, (part.split + 1) * group.split_tokens);
          ASSERT_EQ(part.begin, covered);
          covered = part.end;
          ASSERT_EQ(part.first, next.find(part.split) == next.end());
          ASSERT_EQ(finished.count(part.split), 0U);
          next[part.split] = part.end;
          if (part.last) {
            finished.insert(part.split);
          }
          ASSERT_TRUE(part.end % granule == 0 || part.end == total);
        }
        at = end;
      }
      EXPECT_GE(covered, group.visible_end);
      EXPECT_EQ(finished.size(), next.size());
    }
  }
}

}  // namespace
}  // namespace kvspan
