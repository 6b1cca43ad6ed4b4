// SPDX-License-Identifier: Apache-2.0
// The order of fetching against a brute-force reading: every row once, splits fed equally.
#include "kvspan/core/stream/page_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace kvspan {
namespace {

PageOrderRequest random_request(std::mt19937_64& random) {
  const auto pick = [&](std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
  };
  PageOrderRequest request;
  const std::uint64_t granule = 1ULL << pick(0, 4);
  request.page_tokens = static_cast<std::uint32_t>(granule << pick(0, 4));
  request.first_page = pick(0, 30);
  request.end_page = request.first_page + pick(0, 60);
  request.split_tokens = pick(0, 5) == 0 ? 0 : granule * pick(1, 200);
  request.first_token = request.first_page * request.page_tokens + pick(0, request.page_tokens - 1);
  request.run_pages = static_cast<std::uint32_t>(pick(1, 5));
  request.splits_at_once = static_cast<std::uint32_t>(pick(0, 6));
  return request;
}

std::string text_of(const PageOrderRequest& request) {
  return "pages " + std::to_string(request.first_page) + ".." + std::to_string(request.end_page) +
         " of " + std::to_string(request.page_tokens) + " tokens, S " +
         std::to_string(request.split_tokens) + ", from " + std::to_string(request.first_token);
}

TEST(PageOrder, BringsEveryRowOnceAndSplitsInOrder) {
  std::mt19937_64 random(41);
  for (int round = 0; round < 2000; ++round) {
    const PageOrderRequest request = random_request(random);
    SCOPED_TRACE("seed 41, round " + std::to_string(round) + ": " + text_of(request));
    const bool robin = request.split_tokens >= 2 * std::uint64_t{request.page_tokens};
    std::map<std::uint64_t, int> times;
    std::map<std::uint64_t, std::uint64_t> next;  // of a split
    for (const PageUnit& unit : page_order(request)) {
      ASSERT_GT(unit.rows, 0U);
      ASSERT_LE(unit.first_row + unit.rows, request.page_tokens);
      const std::uint64_t first = unit.page * request.page_tokens + unit.first_row;
      for (std::uint64_t token = first; token < first + unit.rows; ++token) {
        ++times[token];
      }
      if (robin) {
        const std::uint64_t seen = std::max(first, request.first_token);
        const std::uint64_t split = seen / request.split_tokens;
        ASSERT_EQ((first + unit.rows - 1) / request.split_tokens, split) << "two splits in a unit";
        ASSERT_TRUE(!next.contains(split) || next[split] == first) << "a split out of order";
        next[split] = first + unit.rows;
      }
    }
    for (std::uint64_t token = request.first_page * request.page_tokens;
         token < request.end_page * request.page_tokens;
         ++token) {
      ASSERT_EQ(times[token], 1) << "token " << token;
    }
  }
}

// Between any two splits that still lack pages, none is more than a run further on than another;
// what does not come of a split counts as had.
TEST(PageOrder, FeedsSplitsEqually) {
  std::mt19937_64 random(42);
  for (int round = 0; round < 500; ++round) {
    PageOrderRequest request = random_request(random);
    request.splits_at_once = 0;
    if (request.split_tokens < 2 * std::uint64_t{request.page_tokens}) {
      continue;
    }
    SCOPED_TRACE("seed 42, round " + std::to_string(round) + ": " + text_of(request));
    const std::vector<PageUnit> units = page_order(request);
    const auto split_of = [&](const PageUnit& unit) {
      return std::max(unit.page * request.page_tokens + unit.first_row, request.first_token) /
             request.split_tokens;
    };
    std::map<std::uint64_t, int> left;
    for (const PageUnit& unit : units) {
      ++left[split_of(unit)];
    }
    std::map<std::uint64_t, int> had;
    const std::uint64_t behind =
        std::max(request.first_page * request.page_tokens, request.first_token);
    had[behind / request.split_tokens] =
        static_cast<int>(behind % request.split_tokens /
                         (request.run_pages * std::uint64_t{request.page_tokens})) *
        static_cast<int>(request.run_pages);
    for (const PageUnit& unit : units) {
      ++had[split_of(unit)];
      --left[split_of(unit)];
      int least = INT32_MAX;
      for (const auto& [split, count] : left) {
        least = count > 0 ? std::min(least, had[split]) : least;
      }
      ASSERT_LE(had[split_of(unit)],
                least == INT32_MAX ? INT32_MAX : least + static_cast<int>(request.run_pages));
    }
  }
}

// Those that are begun and not complete are never more; where all splits go at once, nothing
// changes.
TEST(PageOrder, FeedsNoMoreSplitsAtATimeThanAsked) {
  std::mt19937_64 random(43);
  int limited = 0;  // requests with more splits
  for (int round = 0; round < 1000; ++round) {
    const PageOrderRequest request = random_request(random);
    if (request.split_tokens < 2 * std::uint64_t{request.page_tokens} ||
        request.splits_at_once == 0) {
      continue;
    }
    SCOPED_TRACE("seed 43, round " + std::to_string(round) + ": " + text_of(request));
    const auto split_of = [&](const PageUnit& unit) {
      return std::max(unit.page * request.page_tokens + unit.first_row, request.first_token) /
             request.split_tokens;
    };
    PageOrderRequest all = request;
    all.splits_at_once = 0;
    const std::vector<PageUnit> units = page_order(request);
    std::map<std::uint64_t, int> left;
    for (const PageUnit& unit : units) {
      ++left[split_of(unit)];
    }
    if (left.size() <= request.splits_at_once) {
      EXPECT_EQ(units, page_order(all));
      continue;
    }
    ++limited;
    std::set<std::uint64_t> open;
    for (const PageUnit& unit : units) {
      open.insert(split_of(unit));
      ASSERT_LE(open.size(), request.splits_at_once);
      if (--left[split_of(unit)] == 0) {
        open.erase(split_of(unit));
      }
    }
  }
  EXPECT_GT(limited, 100);
}

TEST(PageOrder, ShortSplitsAreFedOnePageAfterAnother) {
  PageOrderRequest request;
  request.first_page = 3;
  request.end_page = 6;
  request.page_tokens = 8;
  request.split_tokens = 15;
  const std::vector<PageUnit> expected = {{3, 0, 8}, {4, 0, 8}, {5, 0, 8}};
  EXPECT_EQ(page_order(request), expected);
  request.split_tokens = 0;
  EXPECT_EQ(page_order(request), expected);
  request.end_page = 3;
  EXPECT_TRUE(page_order(request).empty());
}

// Splits of 20 tokens, pages of 8: page 2 is split 0's last and split 1's first.
TEST(PageOrder, APageOfTwoSplitsComesInTwoParts) {
  PageOrderRequest request;
  request.end_page = 5;
  request.page_tokens = 8;
  request.split_tokens = 20;
  const std::vector<PageUnit> expected = {
      {0, 0, 8}, {2, 4, 4}, {1, 0, 8}, {3, 0, 8}, {2, 0, 4}, {4, 0, 8}};
  EXPECT_EQ(page_order(request), expected);
}

// The same in runs of two pages: neighbours follow each other.
TEST(PageOrder, RunsAreNeighboursOfOneSplit) {
  PageOrderRequest request;
  request.end_page = 5;
  request.page_tokens = 8;
  request.split_tokens = 20;
  request.run_pages = 2;
  const std::vector<PageUnit> expected = {
      {0, 0, 8}, {1, 0, 8}, {2, 4, 4}, {3, 0, 8}, {2, 0, 4}, {4, 0, 8}};
  EXPECT_EQ(page_order(request), expected);
}

}  // namespace
}  // namespace kvspan
