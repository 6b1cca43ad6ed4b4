// SPDX-License-Identifier: Apache-2.0
// Ranges, rows and planes against a model that counts every byte in 128 bits.
#include "kvspan/sdk/validate.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace kvspan::sdk {
namespace {

__extension__ typedef unsigned __int128 Big;

kvspan_memory_t* a_memory() {
  return reinterpret_cast<kvspan_memory_t*>(0x1000);
}

/// One memory of `size` bytes; every other pointer is foreign.
auto memory_of(std::uint64_t size) {
  return Context(
      [size](kvspan_memory_t* memory) { return memory == a_memory() ? size : kForeignMemory; });
}

struct Dice {
  explicit Dice(std::uint64_t seed) : engine(seed) {}

  std::uint64_t below(std::uint64_t n) { return engine() % n; }

  /// Small, middling, or near the end of 64 bits.
  std::uint64_t number(std::uint64_t small) {
    switch (below(8)) {
      case 0:
        return UINT64_MAX - below(small);
      case 1:
        return engine() >> below(64);
      case 2:
        return (UINT64_MAX >> 1) - small / 2 + below(small);
      default:
        return below(small);
    }
  }

  std::mt19937_64 engine;
};

TEST(CheckRange, IsExactAtTheEnd) {
  const auto context = memory_of(100);
  EXPECT_EQ(check_range({a_memory(), 0, 100}, context, nullptr, "x"), KVSPAN_OK);
  EXPECT_EQ(check_range({a_memory(), 100, 0}, context, nullptr, "x"), KVSPAN_OK);
  EXPECT_EQ(check_range({a_memory(), 40, 60}, context, nullptr, "x"), KVSPAN_OK);
  EXPECT_EQ(check_range({a_memory(), 41, 60}, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(check_range({a_memory(), 101, 0}, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(check_range({a_memory(), UINT64_MAX, 2}, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(check_range({a_memory(), 2, UINT64_MAX}, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
}

TEST(CheckRange, NullIsNoMemoryAndAnotherDevicesMemoryIsRefused) {
  const auto context = memory_of(100);
  kvspan_error_t error{};
  EXPECT_EQ(check_range({nullptr, 7, 0}, context, nullptr, "x"), KVSPAN_OK);
  EXPECT_EQ(check_range({nullptr, 0, 1}, context, nullptr, "x"), KVSPAN_E_INVALID_ARG);
  auto* const other = reinterpret_cast<kvspan_memory_t*>(0x2000);
  EXPECT_EQ(check_range({other, 0, 1}, context, &error, "x"), KVSPAN_E_INVALID_ARG);
  EXPECT_NE(std::string(error.message).find("another device"), std::string::npos);
}

TEST(CheckRange, NamesTheSpotAndTheAmounts) {
  auto context = memory_of(100).element("item", 3).at("rows", 24);
  context.spot.place.argument = 2;
  kvspan_error_t error{};
  EXPECT_EQ(check_range({a_memory(), 50, 60}, context, &error, "codec.encode"),
            KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(error.argument, 2u);
  EXPECT_EQ(error.field_offset, 24u);
  EXPECT_STREQ(error.where, "codec.encode");
  EXPECT_EQ(
      std::string(error.message).rfind("item 3 rows: it ends at byte 110 of a memory of 100", 0),
      0u)
      << error.message;
}

TEST(CheckRows, AgreesWithAModelThatVisitsEveryElement) {
  constexpr std::uint64_t kSeed = 11;
  Dice dice(kSeed);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    SCOPED_TRACE("seed 11 round " + std::to_string(round));
    kvspan_rows_t rows{};
    rows.memory = a_memory();
    rows.type = dice.below(2) == 0 ? KVSPAN_TYPE_F32 : KVSPAN_TYPE_BF16;
    const std::uint64_t element = rows.type == KVSPAN_TYPE_F32 ? 4 : 2;
    rows.offset = dice.number(200) / element * element;
    rows.row_stride = dice.number(100) / element * element;
    rows.head_stride = dice.number(50) / element * element;
    const std::uint64_t row_count = dice.below(4);
    const auto heads = static_cast<std::uint32_t>(dice.below(4));
    const auto size = static_cast<std::uint32_t>(dice.below(9));
    Big end = 0;
    for (std::uint64_t r = 0; r < row_count; ++r) {
      for (std::uint64_t h = 0; h < heads && size != 0; ++h) {
        const Big at = Big{rows.offset} + Big{r} * rows.row_stride + Big{h} * rows.head_stride;
        end = std::max(end, at + Big{size} * element);
      }
    }
    const std::uint64_t memory_bytes = dice.below(3) == 0 ? dice.number(500) - 1 : dice.below(700);
    const auto context = memory_of(memory_bytes == kForeignMemory ? 0 : memory_bytes);
    const std::uint64_t real = memory_bytes == kForeignMemory ? 0 : memory_bytes;
    const kvspan_result_t result =
        check_rows(RowsUse{&rows, row_count, heads, size}, context, nullptr, "x");
    ASSERT_EQ(result == KVSPAN_OK, end <= Big{real});
    accepted += result == KVSPAN_OK ? 1 : 0;
  }
  EXPECT_GT(accepted, 2000);
  EXPECT_LT(accepted, 18000);
}

TEST(CheckRows, RefusesTypesStridesAndReservedFields) {
  const auto context = memory_of(1000);
  kvspan_rows_t good{a_memory(), 8, 16, 8, KVSPAN_TYPE_F32, 0};
  const auto check = [&](const kvspan_rows_t& rows) {
    return check_rows(RowsUse{&rows, 2, 2, 2}, context, nullptr, "x");
  };
  EXPECT_EQ(check(good), KVSPAN_OK);
  kvspan_rows_t rows = good;
  rows.type = KVSPAN_TYPE_Q8_0;
  EXPECT_EQ(check(rows), KVSPAN_E_UNSUPPORTED);
  rows = good;
  rows.offset = 6;
  EXPECT_EQ(check(rows), KVSPAN_E_INVALID_ARG);
  rows = good;
  rows.row_stride = 18;
  EXPECT_EQ(check(rows), KVSPAN_E_INVALID_ARG);
  rows = good;
  rows.head_stride = 9;
  EXPECT_EQ(check(rows), KVSPAN_E_INVALID_ARG);
  rows = good;
  rows.reserved = 1;
  EXPECT_EQ(check(rows), KVSPAN_E_INVALID_ARG);
}

/// A random plane and use of it; the page list lives in `list`.
struct PlaneCase {
  kvspan_plane_t plane{};
  PlaneUse use{};
  std::vector<std::uint32_t> list;

  explicit PlaneCase(Dice& dice) {
    plane.memory = a_memory();
    plane.offset = dice.number(100) & ~std::uint64_t{7};
    plane.page_stride = dice.number(200) & ~std::uint64_t{1};
    plane.row_stride = dice.number(60) & ~std::uint64_t{1};
    plane.head_stride = dice.number(60) & ~std::uint64_t{1};
    plane.page_tokens = static_cast<std::uint32_t>(dice.below(4));
    use = {&plane, KVSPAN_TYPE_F16, dice.number(8), dice.below(9), 1, 4};
    use.head_count += static_cast<std::uint32_t>(dice.below(3));
    if (plane.page_tokens != 0 && dice.below(2) == 0) {
      for (std::uint64_t i = dice.below(8); i-- > 0;) {
        list.push_back(static_cast<std::uint32_t>(dice.number(12)));
      }
      if (list.empty()) {
        list.push_back(0);
      }
      plane.page_list = list.data();
      plane.page_count = static_cast<std::uint32_t>(list.size());
    }
  }

  /// Whether every byte of every token is in a memory of `size` bytes.
  bool fits(std::uint64_t size) const {
    for (std::uint64_t i = 0; i < use.token_count; ++i) {
      const Big token = Big{use.first_token} + i;
      if (token > UINT64_MAX) {
        return false;
      }
      Big slot = 0;
      Big row = token;
      if (plane.page_tokens != 0) {
        slot = token / plane.page_tokens;
        row = token % plane.page_tokens;
        if (plane.page_list != nullptr) {
          if (slot >= plane.page_count) {
            return false;
          }
          slot = list[static_cast<std::size_t>(slot)];
        }
      }
      for (std::uint64_t head = 0; head < use.head_count; ++head) {
        // Products of 64-bit numbers fit 128 bits, but their sum may not: cap each.
        const Big cap = Big{1} << 100;
        Big at = plane.offset + Big{head} * plane.head_stride;
        at += std::min(cap, slot * plane.page_stride) + std::min(cap, row * plane.row_stride);
        if (at + std::uint64_t{use.head_size} * 2 > size) {
          return false;
        }
      }
    }
    return true;
  }
};

TEST(CheckPlane, AgreesWithAModelThatVisitsEveryToken) {
  constexpr std::uint64_t kSeed = 23;
  Dice dice(kSeed);
  int accepted = 0;
  for (int round = 0; round < 40000; ++round) {
    SCOPED_TRACE("seed 23 round " + std::to_string(round));
    const PlaneCase c(dice);
    const std::uint64_t size = dice.below(8) == 0 ? UINT64_MAX - 1 : dice.below(1500);
    auto context = memory_of(size);
    context.memory_alignment = 8;
    const kvspan_result_t result = check_plane(c.use, context, nullptr, "x");
    ASSERT_EQ(result == KVSPAN_OK, c.fits(size));
    accepted += result == KVSPAN_OK ? 1 : 0;
  }
  EXPECT_GT(accepted, 4000);
  EXPECT_LT(accepted, 36000);
}

TEST(CheckPlane, LooksOnlyAtTheUsedPartOfALongPageList) {
  std::vector<std::uint32_t> list(1000, 4000000000u);
  list[500] = 1;
  kvspan_plane_t plane{a_memory(), 0, 64, 8, 0, list.data(), 4, 1000};
  const auto context = memory_of(128);
  EXPECT_EQ(check_plane({&plane, KVSPAN_TYPE_F16, 2000, 4, 1, 4}, context, nullptr, "x"),
            KVSPAN_OK);
  EXPECT_EQ(check_plane({&plane, KVSPAN_TYPE_F16, 2000, 5, 1, 4}, context, nullptr, "x"),
            KVSPAN_E_INVALID_ARG);
}

TEST(CheckPlane, RefusesFieldsThatDoNotFitEachOther) {
  auto context = memory_of(10000);
  context.memory_alignment = 16;
  const std::uint32_t list[] = {0, 1};
  const kvspan_plane_t good{a_memory(), 32, 640, 80, 34, list, 4, 2};
  const auto check = [&](const kvspan_plane_t& plane, kvspan_type_t type, std::uint32_t size) {
    return check_plane({&plane, type, 0, 8, 2, size}, context, nullptr, "x");
  };
  EXPECT_EQ(check(good, KVSPAN_TYPE_Q8_0, 32), KVSPAN_OK);
  EXPECT_EQ(check(good, KVSPAN_TYPE_Q8_0, 80), KVSPAN_E_INVALID_ARG) << "no whole blocks";
  EXPECT_EQ(check(good, KVSPAN_TYPE_Q8_0, 0), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(check(good, 5u, 32), KVSPAN_E_UNSUPPORTED) << "no such type";
  kvspan_plane_t plane = good;
  plane.page_list = nullptr;
  EXPECT_EQ(check(plane, KVSPAN_TYPE_Q8_0, 32), KVSPAN_E_INVALID_ARG) << "a count without a list";
  plane = good;
  plane.page_tokens = 0;
  EXPECT_EQ(check(plane, KVSPAN_TYPE_Q8_0, 32), KVSPAN_E_INVALID_ARG) << "a list without pages";
  plane = good;
  plane.offset = 40;
  EXPECT_EQ(check(plane, KVSPAN_TYPE_Q8_0, 32), KVSPAN_E_INVALID_ARG) << "misaligned";
  plane = good;
  plane.row_stride = 81;
  EXPECT_EQ(check(plane, KVSPAN_TYPE_Q8_0, 32), KVSPAN_E_INVALID_ARG) << "an odd stride";
  plane = good;
  plane.memory = nullptr;
  EXPECT_EQ(check(plane, KVSPAN_TYPE_Q8_0, 32), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(check_plane({&plane, KVSPAN_TYPE_Q8_0, 0, 0, 2, 32}, context, nullptr, "x"), KVSPAN_OK)
      << "no tokens touch nothing";
}

}  // namespace
}  // namespace kvspan::sdk
