// SPDX-License-Identifier: Apache-2.0
// Addresses of the C reference: pages, lists, contiguous runs, heads, beyond 2^31 and 2^32; and the
// search for the span of a token.
// Read next: kvspan/sdk/reference/span.h.
#include "kvspan/sdk/reference/span.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

namespace {

kvspan_plane_t plane_of(std::uint32_t page_tokens, std::uint64_t page_stride) {
  kvspan_plane_t plane = {};
  plane.page_tokens = page_tokens;
  plane.page_stride = page_stride;
  return plane;
}

TEST(Span, CountsPagesBeyondTwoAndFourGigabytes) {
  kvspan_plane_t plane = plane_of(256, 425984);
  plane.row_stride = 1664;
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 5041ull * 256, 0), 2147385344ull);
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 5042ull * 256, 0), 2147811328ull);
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 10083ull * 256, 0), 4295196672ull);
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 10083ull * 256 + 255, 0), 4295196672ull + 255 * 1664);
}

TEST(Span, CountsRowsOfAContiguousRunBeyondTwoGigabytes) {
  kvspan_plane_t plane = plane_of(0, 0);
  plane.row_stride = 202752;
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 16383, 0), 3321686016ull);
  plane.head_stride = 1ull << 32;
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 16383, 3), 3321686016ull + (3ull << 32));
}

TEST(Span, AddsBaseSlotRowAndHead) {
  const std::array<std::uint32_t, 3> list = {7, 0, 4000000000u};
  kvspan_plane_t plane = plane_of(16, 4096);
  plane.offset = 100;
  plane.row_stride = 64;
  plane.head_stride = 1000;
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 0, 0), 100u);
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 15, 0), 100u + 15 * 64);
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 16, 0), 100u + 4096);
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 33, 2), 100u + 2 * 4096 + 64 + 2000);
  plane.page_list = list.data();
  plane.page_count = list.size();
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 3, 1), 100u + 7 * 4096 + 3 * 64 + 1000);
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 16, 0), 100u);
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 32, 0), 100u + 4000000000ull * 4096);
}

TEST(Span, IgnoresAListWhereTheRunIsContiguous) {
  const std::array<std::uint32_t, 1> list = {9};
  kvspan_plane_t plane = plane_of(0, 1 << 20);
  plane.row_stride = 8;
  plane.page_list = list.data();
  plane.page_count = 1;
  EXPECT_EQ(kvspan_ref_plane_offset(&plane, 1000, 0), 8000u);
}

TEST(Span, FindsRowsOfTheEngine) {
  kvspan_rows_t rows = {};
  rows.offset = 12;
  rows.row_stride = 3ull << 30;
  rows.head_stride = 256;
  EXPECT_EQ(kvspan_ref_rows_offset(&rows, 2, 3), 12 + (6ull << 30) + 768);
}

TEST(Span, FindsTheSpanOfATokenAndNoneInAGap) {
  std::vector<kvspan_span_t> spans(3);
  spans[0].first_token = 64;
  spans[0].token_count = 64;
  spans[1].first_token = 128;
  spans[1].token_count = 128;
  spans[2].first_token = 1ull << 33;
  spans[2].token_count = 5;
  const auto find = [&](std::uint64_t token) { return kvspan_ref_span_of(spans.data(), 3, token); };
  EXPECT_EQ(find(0), 3u);
  EXPECT_EQ(find(63), 3u);
  EXPECT_EQ(find(64), 0u);
  EXPECT_EQ(find(127), 0u);
  EXPECT_EQ(find(128), 1u);
  EXPECT_EQ(find(255), 1u);
  EXPECT_EQ(find(256), 3u);
  EXPECT_EQ(find((1ull << 33) - 1), 3u);
  EXPECT_EQ(find(1ull << 33), 2u);
  EXPECT_EQ(find((1ull << 33) + 4), 2u);
  EXPECT_EQ(find((1ull << 33) + 5), 3u);
  EXPECT_EQ(kvspan_ref_span_of(nullptr, 0, 0), 0u);
}

}  // namespace
