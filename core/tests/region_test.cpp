// SPDX-License-Identifier: Apache-2.0
// The planner against an oracle that looks at single bytes, and its refusals one by one.
#include "kvspan/core/memory/region.hpp"

#include "kvspan/core/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace kvspan {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

RegionPlanner planner_of(std::uint64_t capacity_bytes, std::uint64_t alignment) {
  return std::move(RegionPlanner::create(capacity_bytes, alignment).value());
}

std::vector<Region> copy_of(std::span<const Region> regions) {
  return {regions.begin(), regions.end()};
}

// Everything that a caller can see, to show that a refused call changed nothing.
struct Picture {
  explicit Picture(const RegionPlanner& planner)
      : committed(copy_of(planner.committed())),
        planned(copy_of(planner.planned())),
        generation(planner.generation()),
        open(planner.plan_is_open()) {}

  friend bool operator==(const Picture&, const Picture&) = default;

  std::vector<Region> committed;
  std::vector<Region> planned;
  std::uint64_t generation;
  bool open;
};

TEST(RegionPlanner, StartsEmpty) {
  const RegionPlanner planner = planner_of(1024, 64);
  EXPECT_EQ(planner.generation(), 0u);
  EXPECT_EQ(planner.used_bytes(), 0u);
  EXPECT_EQ(planner.high_water_bytes(), 0u);
  EXPECT_TRUE(planner.committed().empty());
  EXPECT_EQ(planner.find(1).error().code, Errc::not_found);
}

TEST(RegionPlanner, RefusesAnArenaOfNothingAndBadAlignment) {
  EXPECT_EQ(RegionPlanner::create(0, 64).error().code, Errc::invalid_argument);
  for (const std::uint64_t alignment : {0u, 3u, 96u}) {
    EXPECT_EQ(RegionPlanner::create(1024, alignment).error().code, Errc::invalid_argument);
  }
}

TEST(RegionPlanner, NothingIsCommittedBeforeCommit) {
  RegionPlanner planner = planner_of(1024, 64);
  ASSERT_TRUE(planner.begin());
  ASSERT_TRUE(planner.reserve(1, 100, 1));
  EXPECT_TRUE(planner.committed().empty());
  ASSERT_TRUE(planner.commit());
  EXPECT_EQ(copy_of(planner.committed()), (std::vector<Region>{{1, 0, 100, 64, false}}));
  EXPECT_EQ(planner.generation(), 1u);
  EXPECT_FALSE(planner.plan_is_open());
}

TEST(RegionPlanner, PlacesFirstFitAtTheLargerAlignment) {
  RegionPlanner planner = planner_of(1024, 64);
  ASSERT_TRUE(planner.begin());
  EXPECT_EQ(planner.reserve(1, 65, 1)->offset, 0u);
  EXPECT_EQ(planner.reserve_at(2, 512, 64, 1)->offset, 512u);
  EXPECT_EQ(planner.reserve(3, 1, 256)->offset, 256u);  // 128 is free, but not aligned to 256
  EXPECT_EQ(planner.reserve(4, 64, 16)->offset, 128u);
  EXPECT_EQ(planner.reserve(5, 65, 64)->offset, 320u);
  EXPECT_EQ(planner.reserve(6, 129, 64)->offset, 576u);
  EXPECT_EQ(planner.planned()[0].alignment, 64u);
  EXPECT_EQ(planner.planned()[2].alignment, 256u);
}

TEST(RegionPlanner, UsedBytesAndHighWaterAreThoseOfTheCommittedMap) {
  RegionPlanner planner = planner_of(1024, 64);
  ASSERT_TRUE(planner.begin() && planner.reserve(1, 10, 1) && planner.reserve(2, 10, 1));
  ASSERT_TRUE(planner.commit());
  EXPECT_EQ(planner.used_bytes(), 20u);
  EXPECT_EQ(planner.high_water_bytes(), 74u);
  ASSERT_TRUE(planner.begin() && planner.commit());
  EXPECT_EQ(planner.used_bytes(), 0u);
  EXPECT_EQ(planner.high_water_bytes(), 0u);
  EXPECT_EQ(planner.peak_bytes(), 74u);
}

TEST(RegionPlanner, PersistentRegionsAreCarriedUnchangedAndOthersNot) {
  RegionPlanner planner = planner_of(1024, 64);
  ASSERT_TRUE(planner.begin() && planner.reserve(1, 64, 1) &&
              planner.reserve(2, 100, 128, {.persistent = true}) && planner.commit());
  const Region kept = planner.find(2).value();
  ASSERT_TRUE(planner.begin() && planner.keep_persistent());
  EXPECT_EQ(copy_of(planner.planned()), std::vector<Region>{kept});
  EXPECT_EQ(planner.reserve(3, 64, 1)->offset, 0u);
  EXPECT_TRUE(planner.keep_persistent());  // it is there already, identical
  ASSERT_TRUE(planner.commit());
  EXPECT_EQ(planner.find(2).value(), kept);
  EXPECT_EQ(planner.find(1).error().code, Errc::not_found);
}

TEST(RegionPlanner, CollisionWithAPersistentRegionCarriesNone) {
  RegionPlanner planner = planner_of(1024, 64);
  ASSERT_TRUE(planner.begin() && planner.reserve(1, 64, 1, {.persistent = true}) &&
              planner.reserve(2, 64, 1, {.persistent = true}) && planner.commit());
  ASSERT_TRUE(planner.begin() && planner.reserve_at(7, 64, 64, 1));
  const Picture before(planner);
  const auto kept = planner.keep_persistent();
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().component, "region 2");
  EXPECT_THAT(kept.error().message, HasSubstr("region 7"));
  EXPECT_EQ(Picture(planner), before);
  ASSERT_TRUE(planner.rollback() && planner.begin());
  ASSERT_TRUE(planner.reserve(2, 64, 1));  // the id, but neither place nor persistence
  EXPECT_EQ(planner.keep_persistent().error().code, Errc::invalid_argument);
  EXPECT_EQ(planner.planned().size(), 1u);
}

TEST(RegionPlanner, RollbackKeepsTheCommittedMap) {
  RegionPlanner planner = planner_of(1024, 64);
  ASSERT_TRUE(planner.begin() && planner.reserve(1, 64, 1) && planner.commit());
  const Picture before(planner);
  ASSERT_TRUE(planner.begin() && planner.reserve(2, 64, 1) && planner.rollback());
  EXPECT_EQ(Picture(planner), before);
}

TEST(RegionPlanner, CallsOutOfOrderAreRefused) {
  RegionPlanner planner = planner_of(1024, 64);
  EXPECT_EQ(planner.reserve(1, 64, 1).error().code, Errc::invalid_argument);
  EXPECT_EQ(planner.reserve_at(1, 0, 64, 1).error().code, Errc::invalid_argument);
  EXPECT_EQ(planner.keep_persistent().error().code, Errc::invalid_argument);
  EXPECT_EQ(planner.commit().error().code, Errc::invalid_argument);
  EXPECT_EQ(planner.rollback().error().code, Errc::invalid_argument);
  ASSERT_TRUE(planner.begin() && planner.reserve(1, 64, 1));
  const Picture before(planner);
  EXPECT_EQ(planner.begin().error().code, Errc::busy);
  EXPECT_EQ(Picture(planner), before);
}

TEST(RegionPlanner, EachRefusalNamesItsReasonAndChangesNothing) {
  RegionPlanner planner = planner_of(1024, 64);
  ASSERT_TRUE(planner.begin() && planner.reserve(1, 64, 1));
  const Picture before(planner);
  const auto expect_refusal = [&](const Result<Region>& result, Errc code, const char* says) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, code);
    EXPECT_EQ(result.error().message.rfind("region ", 0), 0u);
    EXPECT_THAT(result.error().message, HasSubstr(says));
    EXPECT_EQ(Picture(planner), before);
  };
  constexpr auto kInvalid = Errc::invalid_argument;
  expect_refusal(planner.reserve(2, 0, 1), kInvalid, "0 bytes");
  expect_refusal(planner.reserve(2, 1, 0), kInvalid, "alignment 0 is not a power of two");
  expect_refusal(planner.reserve(2, 1, 48), kInvalid, "alignment 48 is not a power of two");
  expect_refusal(planner.reserve(1, 1, 1), kInvalid, "this id already");
  expect_refusal(planner.reserve_at(1, 128, 1, 1), kInvalid, "this id already");
  expect_refusal(planner.reserve_at(2, 65, 1, 1), kInvalid, "offset 65 is not a multiple");
  expect_refusal(planner.reserve_at(2, 64, 1, 128), kInvalid, "offset 64 is not a multiple");
  expect_refusal(planner.reserve_at(2, 0, 1, 1), kInvalid, "overlap region 1");
  expect_refusal(planner.reserve_at(2, 1024, 1, 1), Errc::too_large, "1 are missing");
  expect_refusal(planner.reserve(2, 961, 1), Errc::too_large, "1 are missing");
  expect_refusal(planner.reserve(2, kMost, 1), Errc::too_large, "beyond what 64 bits can count");
  expect_refusal(planner.reserve_at(2, kMost - 63, 64, 1), Errc::too_large, "64 bits can count");
}

TEST(RegionPlanner, ExactlyTheRequiredCapacityWorksAndOneByteLessDoesNot) {
  RegionPlanner planner = planner_of(1000, 64);
  ASSERT_TRUE(planner.begin() && planner.reserve(1, 100, 1));
  const Error error = planner.reserve(2, 900, 256).error();
  EXPECT_EQ(error.required, 1156u);
  EXPECT_EQ(error.provided, 1000u);
  EXPECT_EQ(error.missing, 156u);
  for (const std::uint64_t capacity : {error.required, error.required - 1}) {
    RegionPlanner other = planner_of(capacity, 64);
    ASSERT_TRUE(other.begin() && other.reserve(1, 100, 1));
    EXPECT_EQ(other.reserve(2, 900, 256).has_value(), capacity == error.required);
  }
}

TEST(RegionPlanner, WholeAddressSpaceCanBePlanned) {
  RegionPlanner planner = planner_of(kMost, 1);
  ASSERT_TRUE(planner.begin());
  EXPECT_EQ(planner.reserve(1, kMost, 1)->offset, 0u);
  EXPECT_EQ(planner.reserve(2, 1, 1).error().code, Errc::too_large);
  EXPECT_EQ(planner.reserve(2, 1, 1).error().required, 0u);  // 2^64 has no 64-bit number
}

TEST(RegionPlanner, PagesOfVeryDifferentSizesNeedNoCommonOne) {
  // An attention page and a recurrent page of one model; neither divides the other.
  constexpr std::uint64_t kSmall = 12416;
  constexpr std::uint64_t kLarge = 12648448;
  RegionPlanner planner = planner_of(1000 * kSmall + 4 * kLarge, 128);
  ASSERT_TRUE(planner.begin() && planner.reserve(1, 1000 * kSmall, 1) &&
              planner.reserve(2, 4 * kLarge, 1) && planner.commit());
  EXPECT_EQ(planner.used_bytes(), planner.capacity_bytes());
}

TEST(RegionPlanner, MixedPagesTakeExactlyTheSumOfTheirBytes) {
  RegionPlanner planner = planner_of(557056 + 425984 + 294912 + 1048576, 128);
  ASSERT_TRUE(planner.begin());
  std::uint64_t id = 0;
  for (const std::uint64_t page_bytes : {557056u, 425984u, 294912u, 1048576u}) {
    ASSERT_TRUE(planner.reserve(id++, page_bytes, 128));
  }
  ASSERT_TRUE(planner.commit());
  EXPECT_EQ(planner.used_bytes(), planner.capacity_bytes());
  EXPECT_EQ(planner.high_water_bytes(), planner.capacity_bytes());
}

// ---- the oracle: one entry a byte, no cleverness ------------------------------------------------

constexpr std::size_t kOracleBytes = 4096;  // far beyond any capacity used, to find `required`

struct Oracle {
  std::vector<Region> committed;
  std::vector<Region> planned;
  bool open = false;
  std::uint64_t generation = 0;

  [[nodiscard]] std::vector<bool> taken() const {
    std::vector<bool> bytes(kOracleBytes, false);
    for (const Region& region : planned) {
      std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(region.offset), region.bytes, true);
    }
    return bytes;
  }

  [[nodiscard]] bool has(std::uint64_t id) const {
    return std::any_of(
        planned.begin(), planned.end(), [id](const Region& region) { return region.id == id; });
  }

  // The lowest aligned offset whose bytes are all free, whatever the capacity.
  [[nodiscard]] std::uint64_t lowest(std::uint64_t bytes, std::uint64_t alignment) const {
    const std::vector<bool> map = taken();
    for (std::uint64_t offset = 0; offset + bytes <= kOracleBytes; ++offset) {
      const auto from = map.begin() + static_cast<std::ptrdiff_t>(offset);
      const auto to = from + static_cast<std::ptrdiff_t>(bytes);
      if (offset % alignment == 0 && std::find(from, to, true) == to) {
        return offset;
      }
    }
    return kOracleBytes;
  }

  void add(const Region& region) {
    planned.push_back(region);
    std::sort(planned.begin(), planned.end(), [](const Region& left, const Region& right) {
      return left.offset < right.offset;
    });
  }

  // All or nothing; false when one collides.
  bool keep() {
    const std::vector<Region> before = planned;
    for (const Region& region : committed) {
      if (!region.persistent || std::find(before.begin(), before.end(), region) != before.end()) {
        continue;
      }
      const std::vector<bool> map = taken();
      const auto from = map.begin() + static_cast<std::ptrdiff_t>(region.offset);
      const auto to = from + static_cast<std::ptrdiff_t>(region.bytes);
      if (has(region.id) || std::find(from, to, true) != to) {
        planned = before;
        return false;
      }
      add(region);
    }
    return true;
  }
};

class Duel {
 public:
  explicit Duel(std::uint64_t seed)
      : random_(seed),
        capacity_(64 + random_() % 450),
        alignment_(std::uint64_t{1} << (random_() % 5)),
        planner_(planner_of(capacity_, alignment_)) {}

  void step() {
    switch (random_() % 10) {
      case 0:
        check(planner_.begin().has_value(), !oracle_.open);
        oracle_.planned = oracle_.open ? oracle_.planned : std::vector<Region>();
        oracle_.open = true;
        break;
      case 1:
        check(planner_.commit().has_value(), oracle_.open);
        if (oracle_.open) {
          oracle_.committed = oracle_.planned;
          ++oracle_.generation;
        }
        close();
        break;
      case 2:
        check(planner_.keep_persistent().has_value(), oracle_.open && oracle_.keep());
        break;
      case 3:
        if (random_() % 4 == 0) {
          check(planner_.rollback().has_value(), oracle_.open);
          close();
        }
        break;
      case 4:
      case 5:
        reserve_exact();
        break;
      default:
        reserve_first();
    }
    ASSERT_EQ(copy_of(planner_.planned()), oracle_.planned);
    ASSERT_EQ(copy_of(planner_.committed()), oracle_.committed);
    ASSERT_EQ(planner_.generation(), oracle_.generation);
    ASSERT_EQ(planner_.plan_is_open(), oracle_.open);
    check_sums();
  }

  [[nodiscard]] int accepted() const { return accepted_; }

  [[nodiscard]] int refused() const { return refused_; }

 private:
  void check(bool did, bool should) {
    EXPECT_EQ(did, should);
    ++(should ? accepted_ : refused_);
  }

  void close() {
    oracle_.planned.clear();
    oracle_.open = false;
  }

  void check_sums() const {
    std::uint64_t used = 0;
    std::uint64_t end = 0;
    for (const Region& region : oracle_.committed) {
      used += region.bytes;
      end = std::max(end, region.offset + region.bytes);
    }
    ASSERT_EQ(planner_.used_bytes(), used);
    ASSERT_EQ(planner_.high_water_bytes(), end);
    ASSERT_LE(end, capacity_);
  }

  // Mostly sound requests, some of each kind of nonsense.
  void reserve_first() {
    const Ask ask = next_ask();
    const auto result = planner_.reserve(ask.id, ask.bytes, ask.alignment, {ask.persistent});
    const std::optional<std::uint64_t> effective = sound(ask);
    if (!effective) {
      check(result.has_value(), false);
      return;
    }
    settle(ask,
           result,
           {ask.id, oracle_.lowest(ask.bytes, *effective), ask.bytes, *effective, ask.persistent});
  }

  void reserve_exact() {
    const Ask ask = next_ask();
    const std::uint64_t offset = random_() % (capacity_ + 20) / alignment_ * alignment_;
    const auto result =
        planner_.reserve_at(ask.id, offset, ask.bytes, ask.alignment, {ask.persistent});
    const std::optional<std::uint64_t> effective = sound(ask);
    const std::vector<bool> map = oracle_.taken();
    const auto from = map.begin() + static_cast<std::ptrdiff_t>(offset);
    const auto to = from + static_cast<std::ptrdiff_t>(ask.bytes);
    if (!effective || offset % *effective != 0 ||
        (offset + ask.bytes <= capacity_ && std::find(from, to, true) != to)) {
      check(result.has_value(), false);
      return;
    }
    settle(ask, result, {ask.id, offset, ask.bytes, *effective, ask.persistent});
  }

  struct Ask {
    std::uint64_t id;
    std::uint64_t bytes;
    std::uint64_t alignment;
    bool persistent;
  };

  Ask next_ask() {
    Ask ask{random_() % 12, 1 + random_() % 90, std::uint64_t{1} << (random_() % 7), false};
    ask.persistent = random_() % 3 == 0;
    if (random_() % 20 == 0) {
      ask.bytes = 0;
    }
    if (random_() % 20 == 0) {
      ask.alignment = random_() % 2 == 0 ? 0 : 12;
    }
    return ask;
  }

  // The effective alignment, or nothing where any placement must refuse.
  [[nodiscard]] std::optional<std::uint64_t> sound(const Ask& ask) const {
    if (!oracle_.open || ask.bytes == 0 || ask.alignment == 0 || ask.alignment == 12 ||
        oracle_.has(ask.id)) {
      return std::nullopt;
    }
    return std::max(ask.alignment, alignment_);
  }

  void settle(const Ask& ask, const Result<Region>& result, const Region& expected) {
    const std::uint64_t end = expected.offset + ask.bytes;
    check(result.has_value(), end <= capacity_);
    if (!result) {
      EXPECT_EQ(result.error().code, Errc::too_large);
      EXPECT_EQ(result.error().required, end);
      EXPECT_EQ(result.error().provided, capacity_);
      EXPECT_EQ(result.error().missing, end - capacity_);
      return;
    }
    EXPECT_EQ(*result, expected);
    oracle_.add(expected);
  }

  std::mt19937_64 random_;
  std::uint64_t capacity_;
  std::uint64_t alignment_;
  RegionPlanner planner_;
  Oracle oracle_;
  int accepted_ = 0;
  int refused_ = 0;
};

TEST(RegionPlanner, AgreesWithAByteMapOverRandomOperations) {
  int accepted = 0;
  int refused = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Duel duel(seed);
    for (int step = 0; step < 200; ++step) {
      duel.step();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "step " << step;
    }
    accepted += duel.accepted();
    refused += duel.refused();
  }
  EXPECT_GT(accepted, 5000);  // neither side of the question is rare
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace kvspan
