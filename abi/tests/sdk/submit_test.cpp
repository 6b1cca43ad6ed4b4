// SPDX-License-Identifier: Apache-2.0
// Submits, copy segments, fills and codec items. Overlap is compared with a map of single bytes.
#include "kvspan/sdk/validate.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace kvspan::sdk {
namespace {

kvspan_memory_t* a_memory() {
  return reinterpret_cast<kvspan_memory_t*>(0x1000);
}

kvspan_memory_t* other_memory() {
  return reinterpret_cast<kvspan_memory_t*>(0x2000);
}

kvspan_fence_t* a_fence() {
  return reinterpret_cast<kvspan_fence_t*>(0x3000);
}

auto memories_of(std::uint64_t size) {
  return Context([size](kvspan_memory_t*) { return size; });
}

/// Whether a segment may be copied, byte by byte.
bool byte_model(const kvspan_segment_t& s, std::uint64_t size) {
  std::vector<int> read(size), written(size);
  for (std::uint64_t row = 0; row < s.rows; ++row) {
    for (std::uint64_t i = 0; i < s.bytes; ++i) {
      const std::uint64_t from = s.source_offset + row * s.source_pitch + i;
      const std::uint64_t to = s.target_offset + row * s.target_pitch + i;
      if (from >= size || to >= size) {
        return false;
      }
      read[from] += 1;
      written[to] += 1;
    }
  }
  for (std::uint64_t i = 0; i < size; ++i) {
    if (written[i] > 1 || (s.source == s.target && written[i] != 0 && read[i] != 0)) {
      return false;
    }
  }
  return true;
}

TEST(CheckSegment, AgreesWithAMapOfBytes) {
  std::mt19937_64 dice(5);
  int accepted = 0;
  for (int round = 0; round < 60000; ++round) {
    kvspan_segment_t s{};
    s.source = a_memory();
    s.target = dice() % 4 == 0 ? other_memory() : a_memory();
    s.source_offset = dice() % 60;
    s.target_offset = dice() % 60;
    s.bytes = dice() % 9;
    s.rows = dice() % 6;
    s.source_pitch = dice() % 20;
    s.target_pitch = dice() % 4 == 0 ? s.source_pitch : dice() % 20;
    const auto context = memories_of(128);
    const kvspan_result_t result = check_segment(s, context, nullptr, "copy.copy");
    ASSERT_EQ(result == KVSPAN_OK, byte_model(s, 128))
        << "seed 5 round " << round << ": " << s.bytes << " x " << s.rows << " from "
        << s.source_offset << " + " << s.source_pitch << " to " << s.target_offset << " + "
        << s.target_pitch;
    accepted += result == KVSPAN_OK ? 1 : 0;
  }
  EXPECT_GT(accepted, 10000);
  EXPECT_LT(accepted, 55000);
}

TEST(CheckSegment, OneRowIgnoresPitches) {
  const auto context = memories_of(100);
  kvspan_segment_t s{a_memory(), a_memory(), 0, 50, 50, 1, UINT64_MAX, 3};
  EXPECT_EQ(check_segment(s, context, nullptr, "x"), KVSPAN_OK);
  s.target_offset = 51;
  EXPECT_EQ(check_segment(s, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
}

TEST(CheckSegment, SumsThatLeave64BitsAreRefused) {
  const auto context = memories_of(UINT64_MAX - 1);
  const std::uint64_t half = std::uint64_t{1} << 63;
  const kvspan_segment_t bad[] = {
      {a_memory(), other_memory(), UINT64_MAX, 0, 2, 1, 0, 0},
      {a_memory(), other_memory(), 0, UINT64_MAX - 4, 8, 1, 0, 0},
      {a_memory(), other_memory(), 0, 0, 16, 3, half, 16},
      {a_memory(), other_memory(), 0, 0, 16, 3, 16, half},
      {a_memory(), other_memory(), 0, 0, 16, UINT64_MAX, 16, 16},
      {a_memory(), other_memory(), 16, 16, UINT64_MAX, 1, 0, 0},
  };
  for (const kvspan_segment_t& s : bad) {
    EXPECT_EQ(check_segment(s, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  }
  const kvspan_segment_t good{a_memory(), other_memory(), 0, 0, 16, 2, half, 16};
  EXPECT_EQ(check_segment(good, context, nullptr, "x"), KVSPAN_OK);
}

TEST(CheckSegment, HugeEqualPitchesAreAnsweredAtOnce) {
  const auto context = memories_of(UINT64_MAX - 1);
  const std::uint64_t rows = std::uint64_t{1} << 40;
  kvspan_segment_t s{a_memory(), a_memory(), 0, 8, 8, rows, 16, 16};
  EXPECT_EQ(check_segment(s, context, nullptr, "x"), KVSPAN_OK) << "interleaved columns";
  s.target_offset = 9;
  EXPECT_EQ(check_segment(s, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
}

kvspan_copy_limits_t limits() {
  return {sizeof(kvspan_copy_limits_t), 3, 4, 8, 2, 16, 32, 1000};
}

TEST(CheckSegments, KeepsTheDevicesLimits) {
  const kvspan_copy_limits_t limit = limits();
  auto context = memories_of(4096);
  context.limits = &limit;
  context.spot.place.argument = 2;
  const kvspan_segment_t good{a_memory(), other_memory(), 4, 8, 2, 2, 16, 16};
  const auto check = [&](const kvspan_segment_t& s, kvspan_error_t* error) {
    return check_segments({&s, 1}, context, error, "copy.copy");
  };
  EXPECT_EQ(check(good, nullptr), KVSPAN_OK);

  struct Case {
    std::uint64_t kvspan_segment_t::*field;
    std::uint64_t value;
    std::size_t offset;
  };

  for (const Case& c :
       {Case{&kvspan_segment_t::source_offset, 6, offsetof(kvspan_segment_t, source_offset)},
        Case{&kvspan_segment_t::target_offset, 12, offsetof(kvspan_segment_t, target_offset)},
        Case{&kvspan_segment_t::bytes, 3, offsetof(kvspan_segment_t, bytes)},
        Case{&kvspan_segment_t::source_pitch, 8, offsetof(kvspan_segment_t, source_pitch)},
        Case{&kvspan_segment_t::target_pitch, 24, offsetof(kvspan_segment_t, target_pitch)}}) {
    kvspan_segment_t s = good;
    s.*c.field = c.value;
    kvspan_error_t error{};
    EXPECT_EQ(check(s, &error), KVSPAN_E_INVALID_ARG) << c.offset;
    EXPECT_EQ(error.argument, 2u);
    EXPECT_EQ(error.field_offset, c.offset);
    EXPECT_EQ(std::string(error.message).rfind("segment 0: ", 0), 0u) << error.message;
  }
  std::vector<kvspan_segment_t> many(4, good);
  EXPECT_EQ(check_segments({many.data(), 3}, context, nullptr, "x"), KVSPAN_OK);
  EXPECT_EQ(check_segments({many.data(), 4}, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  kvspan_segment_t large{a_memory(), other_memory(), 0, 0, 500, 2, 512, 512};
  EXPECT_EQ(check(large, nullptr), KVSPAN_OK);
  large.bytes = 502;
  EXPECT_EQ(check(large, nullptr), KVSPAN_E_INVALID_ARG);
}

TEST(CheckSegments, NothingIsFineAndNullIsNot) {
  const auto context = memories_of(10);
  EXPECT_EQ(check_segments({nullptr, 0}, context, nullptr, "x"), KVSPAN_OK);
  EXPECT_EQ(check_segments({nullptr, 1}, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  const kvspan_segment_t empty{nullptr, nullptr, UINT64_MAX, UINT64_MAX, 0, 7, 3, 3};
  EXPECT_EQ(check_segments({&empty, 1}, context, nullptr, "x"), KVSPAN_OK);
}

TEST(CheckFill, TakesPatternsOfOneTwoFourAndEightBytes) {
  const kvspan_copy_limits_t limit = limits();
  auto context = memories_of(256);
  const kvspan_range_t range{a_memory(), 32, 64};
  for (std::uint32_t bytes = 0; bytes < 20; ++bytes) {
    const bool good = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
    EXPECT_EQ(check_fill(&range, bytes, context, nullptr, "copy.fill") == KVSPAN_OK, good);
  }
  const kvspan_range_t odd{a_memory(), 33, 66};
  EXPECT_EQ(check_fill(&odd, 2, context, nullptr, "x"), KVSPAN_OK);
  EXPECT_EQ(check_fill(&odd, 4, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  context.limits = &limit;
  EXPECT_EQ(check_fill(&odd, 2, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(check_fill(&range, 2, context, nullptr, "x"), KVSPAN_OK);
  const kvspan_range_t over{a_memory(), 224, 64};
  EXPECT_EQ(check_fill(&over, 2, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(check_fill(nullptr, 2, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
}

TEST(CheckSubmit, SeesEveryField) {
  const auto context = memories_of(16);
  const kvspan_point_t point{a_fence(), 1};
  const kvspan_point_t empty{nullptr, 1};
  const kvspan_submit_t good{
      sizeof(kvspan_submit_t), KVSPAN_SUBMIT_MEASURE, 1, 1, &point, &point, a_memory(), 12, 9};
  const auto check = [&](const kvspan_submit_t& submit) {
    return check_submit(&submit, context, nullptr, "copy.copy");
  };
  EXPECT_EQ(check(good), KVSPAN_OK);
  EXPECT_EQ(check_submit(nullptr, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  kvspan_submit_t s = good;
  s.struct_size += 8;
  EXPECT_EQ(check(s), KVSPAN_E_BAD_STRUCT_SIZE);
  s = good;
  s.flags = 2;
  EXPECT_EQ(check(s), KVSPAN_E_INVALID_ARG);
  s = good;
  s.waits = nullptr;
  EXPECT_EQ(check(s), KVSPAN_E_INVALID_ARG);
  s = good;
  s.signals = &empty;
  EXPECT_EQ(check(s), KVSPAN_E_INVALID_ARG);
  s = good;
  s.cancel_offset = 13;
  EXPECT_EQ(check(s), KVSPAN_E_INVALID_ARG) << "the word leaves its memory";
  s.cancel_offset = 6;
  EXPECT_EQ(check(s), KVSPAN_E_INVALID_ARG) << "the word is misaligned";
  s.cancel_memory = nullptr;
  EXPECT_EQ(check(s), KVSPAN_OK) << "not cancellable";
}

TEST(CheckCodecItems, SeesRowsAndPlane) {
  auto context = memories_of(34 * 4 + 64 * 4 * 4);
  context.items_max = 2;
  kvspan_codec_item_t good{};
  good.rows = {a_memory(), 0, 256, 128, KVSPAN_TYPE_F32, 0};
  good.plane = {other_memory(), 0, 0, 68, 34, nullptr, 0, 0};
  good.first_token = 1;
  good.type = KVSPAN_TYPE_Q8_0;
  good.row_count = 4;
  good.head_count = 2;
  good.head_size = 32;
  std::vector<kvspan_codec_item_t> items(3, good);
  kvspan_error_t error{};
  EXPECT_EQ(check_codec_items({items.data(), 2}, context, nullptr, "codec.encode"), KVSPAN_OK);
  EXPECT_EQ(check_codec_items({items.data(), 3}, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  items[1].first_token = UINT64_MAX - 2;
  EXPECT_EQ(check_codec_items({items.data(), 2}, context, &error, "x"), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(std::string(error.message).rfind("item 1 plane: ", 0), 0u) << error.message;
  items[1] = good;
  items[1].rows.offset = 512;
  EXPECT_EQ(check_codec_items({items.data(), 2}, context, &error, "x"), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(error.field_offset, offsetof(kvspan_codec_item_t, rows));
  items[1].row_count = 0;
  EXPECT_EQ(check_codec_items({items.data(), 2}, context, nullptr, "x"), KVSPAN_OK)
      << "no rows touch nothing";
  items[1] = good;
  items[1].head_size = 80;
  EXPECT_EQ(check_codec_items({items.data(), 2}, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
}

}  // namespace
}  // namespace kvspan::sdk
