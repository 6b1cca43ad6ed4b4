// SPDX-License-Identifier: Apache-2.0
// The published layouts of the systems that kvspan starts from, computed by their rule.
#include "kvspan/core/policy/overlap_policy.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace kvspan::test {
namespace {

struct Published {
  std::uint64_t pages = 0;
  std::uint64_t layers = 0;
  std::uint64_t tokens = 0;
  OverlapLayout layout;
};

// Pages of the pools follow from each layout: resident * layers + ring.
TEST(OverlapPolicy, ComputesThePublishedLayouts) {
  const Published rows[] = {{5459, 17, 163840, {299, 376}},
                            {5459, 17, 131072, {307, 240}},
                            {5460, 17, 98304, {316, 88}},
                            {5462, 17, 8192, {320, 22}},
                            {5484, 16, 262144, {292, 812}},
                            {5457, 17, 262144, {272, 833}}};
  for (const Published& row : rows) {
    SCOPED_TRACE(std::to_string(row.tokens) + " tokens, " + std::to_string(row.pages) + " pages");
    const auto found = overlap_target({row.pages, row.layers, row.tokens / 256, 0});
    ASSERT_TRUE(found.has_value()) << found.error().message;
    EXPECT_EQ(found->resident_pages, row.layout.resident_pages);
    EXPECT_EQ(found->ring_pages, row.layout.ring_pages);
  }
}

// Startup splits with the smallest ring, and the target of 606 to 620 active pages.
TEST(OverlapPolicy, ComputesTheForksLayouts) {
  EXPECT_EQ(*overlap_start({9792, 17, 0, 1}), (OverlapLayout{575, 17}));
  EXPECT_EQ(*overlap_start({9774, 17, 0, 1}), (OverlapLayout{574, 16}));
  for (std::uint64_t active = 606; active <= 620; ++active) {
    EXPECT_EQ(*overlap_target({7074, 17, active, 0}), (OverlapLayout{402, 240})) << active;
  }
}

TEST(OverlapPolicy, StreamsWhatItPublished) {
  const OverlapRequest request{5484, 16, 1024, 0};
  const auto layout = overlap_target(request);
  EXPECT_EQ(16 * (1024 - layout->resident_pages), 11712U);  // 4.989 GB of 425,984-byte pages
}

TEST(OverlapPolicy, ConservesPages) {
  std::mt19937_64 random(41);
  for (int round = 0; round < 20000; ++round) {
    SCOPED_TRACE("seed 41, round " + std::to_string(round));
    OverlapRequest request;
    request.layers = 1 + random() % 20;
    request.pages = request.layers + 1 + random() % 3000;
    request.active_pages = 1 + random() % 700;
    const auto layout = overlap_target(request);
    ASSERT_TRUE(layout.has_value());
    ASSERT_EQ(layout->resident_pages * request.layers + layout->ring_pages, request.pages);
    if (request.active_pages <= layout->resident_pages) {
      continue;
    }
    const Placement placement = overlap_concentrated(request, *layout);
    const std::uint64_t resident =
        std::accumulate(placement.resident_pages.begin(), placement.resident_pages.end(), 0ULL);
    ASSERT_EQ(resident, layout->resident_pages * request.layers);
    for (const std::uint64_t pages : placement.resident_pages) {
      ASSERT_LE(pages, request.active_pages);
    }
  }
}

TEST(OverlapPolicy, PoolWithoutAPageALayerAndOneIsRefused) {
  const auto refused = overlap_start({17, 17, 0, 0});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().required, 18U);
  EXPECT_EQ(refused.error().missing, 1U);
  EXPECT_EQ(overlap_start({18, 17, 0, 0})->ring_pages, 1U);
  EXPECT_EQ(overlap_target({18, 0, 5, 0}).error().code, Errc::invalid_argument);
}

}  // namespace
}  // namespace kvspan::test
