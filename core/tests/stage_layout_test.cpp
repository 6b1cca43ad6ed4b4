// SPDX-License-Identifier: Apache-2.0
// lay_out(): sizes to the byte, what stays where it is, what is refused, and elastic shares against
// an oracle that hands out one byte after another.
#include "kvspan/core/memory/stage_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvspan {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kCard = 1;
constexpr MemoryKind kDevice = MemoryKind::device;

MemoryPool pool(std::uint64_t capacity_bytes, std::uint64_t alignment = 1) {
  return {kCard, kDevice, capacity_bytes, alignment};
}

struct Want {
  std::uint64_t id = 0;
  std::uint64_t minimum_bytes = 0;
  std::uint64_t preferred_bytes = 0;
  std::uint64_t alignment = 1;
  Contents contents = Contents::discarded;
  MemoryKind kind = kDevice;
};

LiveStage stage_of(const std::vector<Want>& wants) {
  LiveStage stage{7, {}};
  for (const Want& want : wants) {
    const Requirement need{want.id,
                           want.minimum_bytes,
                           std::max(want.minimum_bytes, want.preferred_bytes),
                           want.alignment,
                           MemoryAccess::none};
    stage.live.push_back({{want.id, kCard, want.kind, want.contents}, need, false});
  }
  return stage;
}

FixedRegion fixed(std::uint64_t id,
                  std::uint64_t offset,
                  std::uint64_t bytes,
                  std::uint64_t alignment = 1) {
  return {kCard, kDevice, {id, offset, bytes, alignment, true}};
}

Result<StageLayout> minimum(const std::vector<Want>& wants,
                            std::uint64_t capacity_bytes,
                            const std::vector<FixedRegion>& at = {}) {
  const std::vector<MemoryPool> pools = {pool(capacity_bytes)};
  return lay_out(stage_of(wants), pools, at, LayoutSizes::minimum);
}

Result<StageLayout> elastic(const std::vector<Want>& wants,
                            std::uint64_t capacity_bytes,
                            const std::vector<FixedRegion>& at = {}) {
  const std::vector<MemoryPool> pools = {pool(capacity_bytes)};
  return lay_out(stage_of(wants), pools, at, LayoutSizes::elastic);
}

std::vector<std::uint64_t> sizes_of(const Result<StageLayout>& layout) {
  std::map<std::uint64_t, std::uint64_t> sizes;
  for (const Region& region : layout.value().pools[0].regions) {
    sizes.emplace(region.id, region.bytes);
  }
  std::vector<std::uint64_t> by_id;
  by_id.reserve(sizes.size());
  for (const auto& [id, bytes] : sizes) {
    by_id.push_back(bytes);
  }
  return by_id;
}

Region region_of(const Result<StageLayout>& layout, std::uint64_t id) {
  for (const Region& region : layout.value().pools[0].regions) {
    if (region.id == id) {
      return region;
    }
  }
  ADD_FAILURE() << "no region " << id;
  return {};
}

TEST(StageLayout, TheMinimumFitsAndOneByteLessDoesNot) {
  const std::vector<Want> wants = {{1, 100, 900}, {2, 50, 900}, {3, 10, 900, 64}};
  const auto layout = minimum(wants, 202);
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  EXPECT_EQ(layout->pools[0].needed_bytes, 202U);
  EXPECT_EQ(sizes_of(layout), (std::vector<std::uint64_t>{100, 50, 10}));
  const auto short_of_one = minimum(wants, 201);
  ASSERT_FALSE(short_of_one.has_value());
  EXPECT_EQ(short_of_one.error().code, Errc::too_large);
  EXPECT_EQ(short_of_one.error().component, "resource 3");
  EXPECT_EQ(short_of_one.error().required, 202U);
  EXPECT_EQ(short_of_one.error().missing, 1U);
  EXPECT_EQ(elastic(wants, 201).error().message, short_of_one.error().message);
}

TEST(StageLayout, OffsetsAreAlignedAndSizesExact) {
  const auto layout = minimum({{1, 3, 3}, {2, 5, 5, 32}, {3, 7, 7, 8}}, 100);
  EXPECT_EQ(region_of(layout, 1), (Region{1, 0, 3, 1, false}));
  EXPECT_EQ(region_of(layout, 2), (Region{2, 32, 5, 32, false}));
  EXPECT_EQ(region_of(layout, 3), (Region{3, 8, 7, 8, false}));  // first fit, not behind
}

TEST(StageLayout, ThePoolsAlignmentIsTheLeast) {
  const LiveStage stage = stage_of({{1, 3, 3}, {2, 5, 5, 512}});
  const std::vector<MemoryPool> pools = {pool(1024, 128)};
  const auto layout = lay_out(stage, pools, {}, LayoutSizes::minimum);
  EXPECT_EQ(region_of(layout, 1).alignment, 128U);
  EXPECT_EQ(layout->pools[0].base_alignment, 512U);  // so must the parent's first byte be
}

TEST(StageLayout, PersistentRegionsComeFirstAndStayAsTheyAre) {
  const std::vector<Want> wants = {{1, 100, 100}, {2, 10, 20, 1, Contents::kept}};
  const auto layout = minimum(wants, 200, {fixed(2, 40, 60)});
  EXPECT_EQ(region_of(layout, 2), (Region{2, 40, 60, 1, true}));  // though it prefers 20 by now
  EXPECT_EQ(region_of(layout, 1).offset, 100U);
  EXPECT_EQ(elastic(wants, 200, {fixed(2, 40, 60)})->pools[0].regions[0].bytes, 60U);
  EXPECT_TRUE(region_of(minimum(wants, 200), 2).persistent);  // and so does a new one
  EXPECT_FALSE(region_of(minimum(wants, 200), 1).persistent);
}

TEST(StageLayout, WhatLastsIsPlacedBeforeWhatDoesNot) {
  const auto layout =
      elastic({{1, 10, 10}, {2, 20, 22, 1, Contents::kept}, {3, 5, 5, 1, Contents::rebuilt}}, 35);
  EXPECT_EQ(region_of(layout, 3).offset, 0U);  // it never grows, so nothing ever moves it
  EXPECT_EQ(region_of(layout, 2).offset, 5U);
  EXPECT_EQ(region_of(layout, 1).offset, 25U);
}

TEST(StageLayout, WrongFixedRegionsAreRefused) {
  const std::vector<Want> wants = {
      {1, 10, 10, 1, Contents::kept}, {2, 10, 10, 8, Contents::kept}, {3, 10, 10}};
  const auto refuse = [&](const std::vector<FixedRegion>& at, const std::string& says) {
    const auto layout = minimum(wants, 100, at);
    ASSERT_FALSE(layout.has_value()) << says;
    EXPECT_EQ(layout.error().code, Errc::invalid_argument) << layout.error().message;
    EXPECT_THAT(layout.error().message, HasSubstr(says));
  };
  refuse({fixed(1, 0, 20), fixed(2, 16, 10, 8)}, "overlap");
  refuse({fixed(1, 0, 20), fixed(1, 40, 20)}, "already");
  refuse({fixed(1, 0, 0)}, "fewer bytes");
  refuse({fixed(1, 90, 20)}, "do not fit");
  refuse({fixed(1, UINT64_MAX - 5, 20)}, "64 bits");
  refuse({fixed(1, 0, 9)}, "fewer bytes");
  refuse({fixed(1, 0, 10, 3)}, "power of two");
  refuse({fixed(2, 4, 10, 4)}, "aligned to less");
  refuse({fixed(2, 4, 10, 8)}, "not a multiple");
  refuse({fixed(3, 0, 10)}, "discarded");
  refuse({fixed(9, 0, 10)}, "no resource");
  FixedRegion scratch = fixed(1, 0, 10);
  scratch.region.persistent = false;
  refuse({scratch}, "not persistent");
  FixedRegion elsewhere = fixed(1, 0, 10);
  elsewhere.kind = MemoryKind::pinned;
  refuse({elsewhere}, "no resource");
  elsewhere = fixed(1, 0, 10);
  elsewhere.domain = 2;
  refuse({elsewhere}, "no resource");
  const std::vector<MemoryPool> coarse = {pool(128, 64)};
  const std::vector<FixedRegion> fine = {fixed(1, 0, 10)};
  const auto layout = lay_out(stage_of(wants), coarse, fine, LayoutSizes::minimum);
  ASSERT_FALSE(layout.has_value()) << "it would not come out identical";
  EXPECT_THAT(layout.error().message, HasSubstr("less than its pool"));
}

TEST(StageLayout, WhoNeedsNothingTakesNothing) {
  const auto layout = minimum({{1, 0, 50}, {2, 0, 0}}, 100);
  EXPECT_TRUE(layout->pools[0].regions.empty());
  EXPECT_EQ(layout->pools[0].needed_bytes, 0U);
  EXPECT_TRUE(lay_out(stage_of({{2, 0, 0}}), {}, {}, LayoutSizes::elastic).has_value());
}

TEST(StageLayout, AnEmptyStageIsLaidOut) {
  EXPECT_TRUE(minimum({}, 1)->pools[0].regions.empty());
  EXPECT_TRUE(lay_out({}, {}, {}, LayoutSizes::minimum)->pools.empty());
}

TEST(StageLayout, WrongPoolsAreRefused) {
  const LiveStage stage = stage_of({{1, 10, 10}});
  const auto code = [&](const std::vector<MemoryPool>& pools) {
    return lay_out(stage, pools, {}, LayoutSizes::minimum).error().code;
  };
  EXPECT_EQ(code({pool(0)}), Errc::invalid_argument);
  EXPECT_EQ(code({pool(10, 3)}), Errc::invalid_argument);
  EXPECT_EQ(code({pool(10), pool(10)}), Errc::invalid_argument);
  EXPECT_EQ(code({pool(10), {2, static_cast<MemoryKind>(8), 10, 1}}), Errc::invalid_argument);
}

TEST(StageLayout, NoPoolTakesAnothersPlace) {
  const LiveStage stage = stage_of({{1, 10, 10, 1, Contents::discarded, MemoryKind::pinned}});
  const std::vector<MemoryPool> pools = {
      pool(100), {kCard, MemoryKind::host, 100, 1}, {2, MemoryKind::pinned, 100, 1}};
  const auto layout = lay_out(stage, pools, {}, LayoutSizes::minimum);
  ASSERT_FALSE(layout.has_value());
  EXPECT_EQ(layout.error().code, Errc::not_found);
  EXPECT_EQ(layout.error().component, "resource 1");
}

TEST(StageLayout, PoolsDoNotInfluenceEachOther) {
  const Want small{1, 10, 50};
  Want pinned{2, 10, 90};
  pinned.kind = MemoryKind::pinned;
  const std::vector<MemoryPool> pools = {pool(100), {kCard, MemoryKind::pinned, 60, 1}};
  const auto both = lay_out(stage_of({small, pinned}), pools, {}, LayoutSizes::elastic);
  EXPECT_EQ(both->pools[0].regions[0].bytes, 50U);
  EXPECT_EQ(both->pools[1].regions[0].bytes, 60U);
  EXPECT_EQ(both->pools[1].regions[0].offset, 0U);
}

// Kept, untouched by the stage: exactly there.
TEST(StageLayout, UntouchedContentsStayWhereTheyAre) {
  LiveStage stage = stage_of({{1, 10, 99, 1, Contents::kept}, {2, 10, 99}});
  stage.live[0].holds_contents = true;
  const std::vector<MemoryPool> pools = {pool(100)};
  const std::vector<FixedRegion> at = {fixed(1, 33, 11)};
  const auto layout = lay_out(stage, pools, at, LayoutSizes::elastic);
  EXPECT_EQ(region_of(layout, 1), at[0].region);
}

// Enough bytes, but in two pieces: nothing is placed, and the refusal says how much would do.
TEST(StageLayout, PiecesThatAreTooSmallAreRefusedAsAWhole) {
  const std::vector<Want> wants = {{1, 1, 1, 1, Contents::kept}, {2, 60, 60}};
  const auto layout = minimum(wants, 100, {fixed(1, 50, 1)});
  ASSERT_FALSE(layout.has_value());
  EXPECT_EQ(layout.error().required, 111U);
  EXPECT_TRUE(minimum(wants, 111, {fixed(1, 50, 1)}).has_value());
}

TEST(StageLayout, WhatIsLeftIsSharedEquallyAndRemaindersGoById) {
  EXPECT_EQ(sizes_of(elastic({{1, 10, 99}, {2, 20, 99}, {3, 30, 99}}, 90)),
            (std::vector<std::uint64_t>{20, 30, 40}));
  EXPECT_EQ(sizes_of(elastic({{1, 10, 99}, {2, 20, 99}, {3, 30, 99}}, 92)),
            (std::vector<std::uint64_t>{21, 31, 40}));
  EXPECT_EQ(sizes_of(elastic({{1, 10, 12}, {2, 20, 99}, {3, 30, 99}}, 90)),
            (std::vector<std::uint64_t>{12, 34, 44}));
  EXPECT_EQ(sizes_of(elastic({{1, 10, 12}, {2, 20, 21}}, 500)),
            (std::vector<std::uint64_t>{12, 21}));
  EXPECT_EQ(sizes_of(elastic({{1, 0, 12}, {2, 20, 99}}, 30)), (std::vector<std::uint64_t>{6, 24}));
  EXPECT_EQ(sizes_of(elastic({{1, 0, 12}, {2, 30, 99}}, 30)), (std::vector<std::uint64_t>{30}));
}

TEST(StageLayout, HugePoolsAreSharedWithoutCounting) {
  const std::uint64_t half = UINT64_MAX / 2;
  const auto layout = elastic({{1, 1, half}, {2, 1, UINT64_MAX}}, UINT64_MAX);
  EXPECT_EQ(sizes_of(layout), (std::vector<std::uint64_t>{half, UINT64_MAX - half}));
}

// ---- the oracle: first fit by bytes, then one byte after another --------------------------------

struct Case {
  std::vector<Want> wants;
  std::vector<FixedRegion> fixed;
  std::uint64_t capacity_bytes = 0;
};

Case random_case(std::mt19937_64& random) {
  Case made;
  made.capacity_bytes = 40 + random() % 120;
  const std::uint64_t count = 1 + random() % 5;
  std::uint64_t free_from = 0;
  for (std::uint64_t id = 1; id <= count; ++id) {
    Want want{id, random() % 30, random() % 60, std::uint64_t{1} << (random() % 4)};
    want.preferred_bytes = std::max(want.minimum_bytes, want.preferred_bytes);
    if (random() % 4 == 0) {
      want.preferred_bytes = want.minimum_bytes;
      want.contents = Contents::rebuilt;
    } else if (random() % 3 == 0) {
      want.contents = Contents::kept;
      const std::uint64_t offset =
          (free_from + random() % 20 + want.alignment - 1) / want.alignment * want.alignment;
      const std::uint64_t bytes = std::max<std::uint64_t>(1, want.minimum_bytes) + random() % 3;
      if (offset + bytes <= made.capacity_bytes) {
        made.fixed.push_back(fixed(id, offset, bytes, want.alignment));
        free_from = offset + bytes;
      }
    }
    made.wants.push_back(want);
  }
  return made;
}

class Oracle {
 public:
  explicit Oracle(const Case& of) : case_(of), taken_(of.capacity_bytes, 0) {
    for (const FixedRegion& at : of.fixed) {
      mark(at.region.offset, at.region.bytes, at.region.id);
      order_.push_back(at.region.id);
      sizes_[at.region.id] = at.region.bytes;
      offsets_[at.region.id] = at.region.offset;
    }
  }

  // Sizes and offsets by id, or nothing where a minimum does not fit.
  bool run() {
    for (const int order : {0, 1, 2}) {
      for (const Want& want : case_.wants) {
        if (!sizes_.contains(want.id) && want.minimum_bytes != 0 && order == order_of(want) &&
            !first_fit(want, want.minimum_bytes)) {
          return false;
        }
      }
    }
    for (const Want& want : case_.wants) {
      if (!sizes_.contains(want.id) && want.preferred_bytes != 0) {
        (void)first_fit(want, 1);
      }
    }
    std::sort(order_.begin(), order_.end(), [this](auto left, auto right) {
      return offsets_[left] < offsets_[right];
    });
    for (bool gave = true; gave;) {
      gave = false;
      for (const Want& want : case_.wants) {
        if (sizes_.contains(want.id) && !is_fixed(want.id) &&
            sizes_[want.id] < want.preferred_bytes) {
          ++sizes_[want.id];
          if (lay()) {
            gave = true;
          } else {
            --sizes_[want.id];
          }
        }
      }
    }
    return lay();
  }

  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> places() const {
    std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> found;
    for (const auto& [id, bytes] : sizes_) {
      found[id] = {offsets_.at(id), bytes};
    }
    return found;
  }

 private:
  // What lasts and cannot grow, what lasts, what does not.
  static int order_of(const Want& want) {
    const bool rigid = want.minimum_bytes == want.preferred_bytes;
    return want.contents == Contents::discarded ? 2 : rigid ? 0 : 1;
  }

  bool stays(std::uint64_t id) const { return is_fixed(id) || order_of(case_.wants[id - 1]) == 0; }

  bool is_fixed(std::uint64_t id) const {
    return std::any_of(case_.fixed.begin(), case_.fixed.end(), [id](const FixedRegion& at) {
      return at.region.id == id;
    });
  }

  void mark(std::uint64_t offset, std::uint64_t bytes, std::uint64_t id) {
    std::fill_n(taken_.begin() + static_cast<std::ptrdiff_t>(offset), bytes, id);
  }

  bool first_fit(const Want& want, std::uint64_t bytes) {
    for (std::uint64_t offset = 0; offset + bytes <= taken_.size(); offset += want.alignment) {
      const auto from = taken_.begin() + static_cast<std::ptrdiff_t>(offset);
      const auto to = from + static_cast<std::ptrdiff_t>(bytes);
      if (std::all_of(from, to, [](std::uint64_t id) { return id == 0; })) {
        mark(offset, bytes, want.id);
        order_.push_back(want.id);
        sizes_[want.id] = bytes;
        offsets_[want.id] = offset;
        return true;
      }
    }
    return false;
  }

  // All of them in their order with the sizes of now; fixed ones where they are.
  bool lay() {
    std::uint64_t at = 0;
    for (const std::uint64_t id : order_) {
      if (stays(id)) {
        if (at > offsets_[id]) {
          return false;
        }
        at = offsets_[id] + sizes_[id];
        continue;
      }
      const std::uint64_t alignment = case_.wants[id - 1].alignment;
      at = (at + alignment - 1) / alignment * alignment;
      offsets_[id] = at;
      at += sizes_[id];
    }
    return at <= case_.capacity_bytes;
  }

  const Case& case_;
  std::vector<std::uint64_t> taken_;
  std::vector<std::uint64_t> order_;
  std::map<std::uint64_t, std::uint64_t> sizes_;
  std::map<std::uint64_t, std::uint64_t> offsets_;
};

TEST(StageLayout, ElasticSharesAgreeWithGivingOutByteByByte) {
  constexpr std::uint64_t kSeed = 20261201;
  std::mt19937_64 random(kSeed);
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    const Case made = random_case(random);
    Oracle oracle(made);
    const bool right = oracle.run();
    const auto layout = elastic(made.wants, made.capacity_bytes, made.fixed);
    ASSERT_EQ(layout.has_value(), right) << (layout ? "" : layout.error().message);
    ASSERT_EQ(minimum(made.wants, made.capacity_bytes, made.fixed).has_value(), right);
    ++(right ? accepted : refused);
    if (!right) {
      continue;
    }
    std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> found;
    for (const Region& region : layout->pools[0].regions) {
      found[region.id] = {region.offset, region.bytes};
    }
    ASSERT_EQ(found, oracle.places());
    ASSERT_EQ(*layout, elastic(made.wants, made.capacity_bytes, made.fixed).value());
  }
  EXPECT_GT(accepted, 5000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace kvspan
