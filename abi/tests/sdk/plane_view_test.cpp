// SPDX-License-Identifier: Apache-2.0
// Page lists outlive the submit that brought them, one behind the other.
#include "kvspan/sdk/plane_view.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace kvspan::sdk {
namespace {

constexpr std::uint32_t kUntouched = 0xdeadbeef;

TEST(PlaneView, KeepsListsBehindEachOther) {
  std::array<std::uint32_t, 3> first = {7, 0, 5};
  std::array<std::uint32_t, 2> second = {9, 9};
  kvspan_plane_t of_first{};
  of_first.page_list = first.data();
  of_first.page_count = 3;
  kvspan_plane_t of_second{};
  of_second.page_list = second.data();
  of_second.page_count = 2;
  std::array<std::uint32_t, 6> kept{};
  kept.fill(kUntouched);
  std::uint32_t* next = kept.data();
  const std::uint32_t* const kept_first = keep_list(of_first, next);
  const std::uint32_t* const kept_second = keep_list(of_second, next);
  first.fill(1);  // the caller's again
  second.fill(1);
  EXPECT_EQ(kept_first, kept.data());
  EXPECT_EQ(kept_second, kept.data() + 3);
  EXPECT_EQ(next, kept.data() + 5);
  EXPECT_EQ(kept, (std::array<std::uint32_t, 6>{7, 0, 5, 9, 9, kUntouched}));
}

TEST(PlaneView, APlaneWithoutAListTakesNothing) {
  std::uint32_t room = kUntouched;
  std::uint32_t* next = &room;
  kvspan_plane_t plane{};
  EXPECT_EQ(keep_list(plane, next), nullptr);
  plane.page_list = &room;  // of no pages
  EXPECT_EQ(keep_list(plane, next), nullptr);
  EXPECT_EQ(next, &room);
  EXPECT_EQ(room, kUntouched);
}

TEST(PlaneView, SaysWhatThePlaneSays) {
  kvspan_plane_t plane{};
  plane.offset = 1000;  // in the base already
  plane.page_stride = 1;
  plane.row_stride = 2;
  plane.head_stride = 3;
  plane.page_tokens = 4;
  std::uint8_t base = 0;
  const std::uint32_t list = 0;
  const PlaneView view = view_of(plane, &base, &list);
  EXPECT_EQ(view.base, &base);
  EXPECT_EQ(view.page_list, &list);
  EXPECT_EQ(view.page_stride, 1U);
  EXPECT_EQ(view.row_stride, 2U);
  EXPECT_EQ(view.head_stride, 3U);
  EXPECT_EQ(view.page_tokens, 4U);
}

}  // namespace
}  // namespace kvspan::sdk
