// SPDX-License-Identifier: Apache-2.0
// What stages cost: parents are the most of any stage, outside bytes are counted once or said to be
// unknown, a change holds both, and the parents that come out are exactly enough.
#include "kvspan/core/memory/stage_budget.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace kvspan {
namespace {

constexpr MemoryKind kDevice = MemoryKind::device;
constexpr MemoryKind kManaged = MemoryKind::managed;

// Stage 1 needs 100 and 50 bytes of the device, stage 2 120.
StagePlan plan() {
  StageRequest request;
  request.domains = {{1, bit(kDevice), 0}};
  request.resources = {{1, 1, kDevice, Contents::discarded}, {2, 1, kDevice, Contents::discarded}};
  request.stages = {{1, {}, {{1, 100, 900, 1}, {2, 50, 50, 64}}}, {2, {}, {{1, 120, 120, 1}}}};
  return plan_stages(request).value();
}

const std::vector<MemoryPool> kPools = {{1, kDevice, 0, 16}};

Result<StageBudget> budget(const std::vector<OutsideBytes>& first,
                           const std::vector<OutsideBytes>& second = {},
                           const std::vector<ChangeCost>& changes = {}) {
  const std::vector<StageCost> stages = {{1, first}, {2, second}};
  return budget_stages(plan(), kPools, stages, changes);
}

TEST(StageBudget, SharedOutsidePartAndUnknownAreToldApart) {
  const auto found = budget({{"weights", kDevice, 1000},
                             {"embeddings", kDevice, 200, "weights"},
                             {"runtime", kDevice, std::nullopt},
                             {"pages", MemoryKind::pinned, 70}},
                            {{"weights", kDevice, 1000}});
  ASSERT_TRUE(found.has_value()) << found.error().message;
  const CostRow& row = found->rows[0];
  EXPECT_EQ(row.pools[0].payload_bytes, 150U);
  EXPECT_EQ(row.pools[0].padding_bytes, 28U);
  EXPECT_EQ(row.pools[0].pool.capacity_bytes, 178U);
  EXPECT_EQ(row.pools[0].base_alignment, 64U);
  EXPECT_EQ(row.outside_bytes[static_cast<std::size_t>(kDevice)], 1000U);
  EXPECT_EQ(row.outside_bytes[static_cast<std::size_t>(MemoryKind::pinned)], 70U);
  EXPECT_EQ(row.unknown, 1U);
  EXPECT_TRUE(found->has_unknown());
  EXPECT_FALSE(budget({{"weights", kDevice, 1000}})->has_unknown());
  EXPECT_EQ(found->peak_bytes(kDevice), 1178U);
  EXPECT_EQ(found->peak_bytes(MemoryKind::pinned), 70U);
}

TEST(StageBudget, ManagedWeightsDoNotMakeTheParentManaged) {
  const auto found = budget({{"weights", kManaged, 5000}});
  EXPECT_EQ(found->parents[0].pool.kind, kDevice);
  EXPECT_EQ(found->parents[0].pool.capacity_bytes, 178U);
  EXPECT_EQ(found->peak_bytes(kManaged), 5000U);
  EXPECT_EQ(found->peak_bytes(kDevice), 178U);
}

TEST(StageBudget, SerialStagesCostTheMostOfThem) {
  const auto found = budget({{"a", kDevice, 10}}, {{"b", kDevice, 30}});
  EXPECT_EQ(found->parents[0].pool.capacity_bytes, 178U);
  EXPECT_EQ(found->peak_bytes(kDevice), 208U);
}

TEST(StageBudget, AChangeHoldsBothAndWhatItSaves) {
  const std::vector<OutsideBytes> first = {{"weights", kDevice, 1000}, {"a", kDevice, 10}};
  const std::vector<OutsideBytes> second = {{"weights", kDevice, 1000}, {"b", kDevice, 30}};
  const auto without = budget(first, second);
  const auto with = budget(first, second, {{1, 2, {{"saved", kDevice, 7}}}});
  ASSERT_TRUE(with.has_value()) << with.error().message;
  EXPECT_EQ(without->peak_bytes(kDevice), 178U + 1030);
  EXPECT_EQ(with->peak_bytes(kDevice), 178U + 1000 + 10 + 30 + 7);
  EXPECT_EQ(with->rows.back().name, "change 1 to 2");
}

TEST(StageBudget, EveryStageIsListedOnce) {
  const auto code = [](const std::vector<StageCost>& stages,
                       const std::vector<ChangeCost>& changes = {}) {
    const auto found = budget_stages(plan(), kPools, stages, changes);
    return found ? std::optional<Errc>() : found.error().code;
  };
  EXPECT_EQ(code({{1}, {2}}), std::nullopt);
  EXPECT_EQ(code({{1}}), Errc::invalid_argument);
  EXPECT_EQ(code({{1}, {2}, {2}}), Errc::invalid_argument);
  EXPECT_EQ(code({{1}, {2}, {9}}), Errc::invalid_argument);
  EXPECT_EQ(code({{1}, {2}}, {{1, 9}}), Errc::invalid_argument);
}

TEST(StageBudget, PoolsAreThoseOfALayout) {
  const std::vector<StageCost> stages = {{1}, {2}};
  const std::vector<MemoryPool> coarse = {{1, kDevice, 0, 48}};
  EXPECT_EQ(budget_stages(plan(), coarse, stages).error().code, Errc::invalid_argument);
  const std::vector<MemoryPool> other = {{1, MemoryKind::pinned, 0, 16}};
  EXPECT_EQ(budget_stages(plan(), other, stages).error().code, Errc::not_found);
}

TEST(StageBudget, PartsAreOfEarlierLargerKnownBytesOfTheirKind) {
  const auto refused = [](const std::vector<OutsideBytes>& outside) {
    const auto found = budget(outside);
    return !found && found.error().code == Errc::invalid_argument;
  };
  const OutsideBytes whole{"whole", kDevice, 100};
  EXPECT_FALSE(refused({whole, {"part", kDevice, 100, "whole"}}));
  EXPECT_TRUE(refused({whole, {"part", kDevice, 101, "whole"}}));
  EXPECT_TRUE(refused({{"part", kDevice, 1, "whole"}, whole}));
  EXPECT_TRUE(refused({whole, {"part", kManaged, 1, "whole"}}));
  EXPECT_TRUE(refused({whole, {"part", kDevice, std::nullopt, "whole"}}));
  EXPECT_TRUE(refused({{"whole", kDevice, std::nullopt}, {"part", kDevice, 1, "whole"}}));
  EXPECT_TRUE(refused({whole, {"part", kDevice, 9, "whole"}, {"sub", kDevice, 1, "part"}}));
  EXPECT_TRUE(refused({{"part", kDevice, 1, "part"}}));
  EXPECT_TRUE(refused({whole, whole}));
  EXPECT_TRUE(refused({{"", kDevice, 1}}));
}

TEST(StageBudget, SumsPastCountingAreRefused) {
  EXPECT_EQ(budget({{"a", kDevice, UINT64_MAX}, {"b", kDevice, 1}}).error().code, Errc::too_large);
  EXPECT_EQ(budget({{"a", kDevice, UINT64_MAX}})->peak_bytes(kDevice), UINT64_MAX);
}

TEST(StageBudget, TextHasALineAPart) {
  const auto found = budget({{"weights", kManaged, 10}, {"x", kDevice, std::nullopt}});
  EXPECT_EQ(found->text(),
            "stage 1: device of domain 1, 150 bytes and 28 of padding, aligned to 64\n"
            "stage 1: managed outside, 10 bytes\n"
            "stage 1: 1 of unknown size\n"
            "stage 2: device of domain 1, 120 bytes and 0 of padding, aligned to 16\n"
            "parent: device of domain 1, 178 bytes aligned to 64\n");
  EXPECT_EQ(budget({{"weights", kManaged, 10}, {"x", kDevice, std::nullopt}})->text(),
            found->text());
}

TEST(StageBudget, WhatIsSeenBeyondThePlanIsToldAsThat) {
  const auto found = budget({{"weights", kDevice, 1000}});
  const Residual more = reconcile(*found, kDevice, 1500);
  EXPECT_EQ(more.planned_bytes, 1178U);
  EXPECT_EQ(more.unclassified_bytes, 322U);
  EXPECT_EQ(more.unused_bytes, 0U);
  const Residual less = reconcile(*found, kDevice, 1000);
  EXPECT_EQ(less.unclassified_bytes, 0U);
  EXPECT_EQ(less.unused_bytes, 178U);
}

// The parent that comes out holds every stage, and one byte less does not.
TEST(StageBudget, ParentsAreExactlyEnough) {
  constexpr std::uint64_t kSeed = 20261204;
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    std::vector<LiveStage> live;
    std::vector<StageCost> costs;
    for (std::uint64_t stage = 1; stage <= 1 + random() % 4; ++stage) {
      live.push_back({stage, {}});
      costs.push_back({stage});
      for (std::uint64_t id = 1; id <= 1 + random() % 4; ++id) {
        const std::uint64_t bytes = 1 + random() % 500;
        live.back().live.push_back(
            {{id, 1, kDevice, Contents::discarded},
             {id, bytes, bytes, std::uint64_t{1} << (random() % 8), MemoryAccess::none},
             false});
      }
    }
    const StagePlan made(live);
    const auto found = budget_stages(made, kPools, costs);
    ASSERT_TRUE(found.has_value()) << found.error().message;
    const auto all_fit = [&](std::uint64_t capacity_bytes) {
      std::vector<MemoryPool> pools = kPools;
      pools[0].capacity_bytes = capacity_bytes;
      for (const LiveStage& stage : live) {
        if (!lay_out(stage, pools, {}, LayoutSizes::minimum)) {
          return false;
        }
      }
      return true;
    };
    ASSERT_TRUE(all_fit(found->parents[0].pool.capacity_bytes));
    ASSERT_FALSE(all_fit(found->parents[0].pool.capacity_bytes - 1));
  }
}

// Whatever the order of stages: what is kept in all of them never gets into anybody's way.
TEST(StageBudget, ParentsHoldEveryOrderOfStages) {
  constexpr std::uint64_t kSeed = 20261206;
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    StageRequest request;
    request.domains = {{1, bit(kDevice), 0}};
    std::vector<Requirement> kept;
    for (std::uint64_t id = 1; id <= 6; ++id) {
      const bool is_kept = random() % 3 == 0;
      request.resources.push_back({id, 1, kDevice, is_kept ? Contents::kept : Contents::discarded});
      const std::uint64_t bytes = 1 + random() % 500;
      kept.push_back({id, bytes, bytes, 1U << (random() % 8), MemoryAccess::read_write});
      if (is_kept) {
        request.inputs.push_back(id);
      }
    }
    for (std::uint64_t stage = 1; stage <= 4; ++stage) {
      request.stages.push_back({stage, {}, {}});
      for (const Requirement& each : kept) {
        const bool is_kept = request.resources[each.resource - 1].contents == Contents::kept;
        if (is_kept || random() % 2 == 0) {
          Requirement need = each;
          need.minimum_bytes = is_kept ? each.minimum_bytes : 1 + random() % 500;
          need.preferred_bytes = need.minimum_bytes + (is_kept ? 0 : random() % 500);
          request.stages.back().requirements.push_back(need);
        }
      }
    }
    const StagePlan made = plan_stages(request).value();
    const std::vector<StageCost> costs = {{1}, {2}, {3}, {4}};
    const StageBudget found = budget_stages(made, kPools, costs).value();
    const std::vector<MemoryPool> parent = {found.parents[0].pool};
    std::vector<FixedRegion> fixed;
    for (int step = 0; step < 12; ++step) {
      const LiveStage live = made.stages()[random() % 4];
      const auto layout = lay_out(live, parent, fixed, LayoutSizes::elastic);
      ASSERT_TRUE(layout.has_value()) << layout.error().message;
      fixed.clear();
      for (const Region& region : layout->pools[0].regions) {
        if (region.persistent) {
          fixed.push_back({1, kDevice, region});
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvspan
