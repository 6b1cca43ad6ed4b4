// SPDX-License-Identifier: Apache-2.0
// A plan's phases laid out over each other: every byte that a phase needs, never more than the plan
// takes side by side, and what that would save.
#include "kvspan/core/memory/phase_stages.hpp"

#include "kvspan/core/memory/stage_budget.hpp"
#include "kvspan/core/memory/stage_layout.hpp"

#include "budget_requests.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kDomain = 1;

std::vector<MemoryPool> pool(const Plan& plan) {
  return {{kDomain, MemoryKind::device, 0, plan.alignment}};
}

// Device bytes with a transition between phases.
Result<std::uint64_t> overlaid_bytes(const Plan& plan, const std::vector<Demand>& demands) {
  const auto request = phase_stages(plan, demands, kDomain);
  if (!request) {
    return tl::unexpected(request.error());
  }
  const auto stages = plan_stages(*request);
  if (!stages) {
    return tl::unexpected(stages.error());
  }
  std::vector<StageCost> costs;
  for (const LiveStage& stage : stages->stages()) {
    costs.push_back({stage.id});
  }
  const auto budget = budget_stages(*stages, pool(plan), costs);
  return budget ? Result<std::uint64_t>(budget->parents[0].pool.capacity_bytes)
                : tl::unexpected(budget.error());
}

TEST(PhaseStages, EveryPhaseHasItsComponentsAndNoIdleOnes) {
  PlanRequest request = long_context();
  request.arena_bytes = 1ULL << 30;
  request.demands = {{"draft", "weights", 5000}, {"", "backend", 100}, {"draft", "weights", 300}};
  const Plan plan = kvspan::plan(request).value();
  const StageRequest stages = phase_stages(plan, request.demands, kDomain).value();
  ASSERT_EQ(stages.stages.size(), plan.phases.size());
  for (std::size_t phase = 0; phase < plan.phases.size(); ++phase) {
    std::uint64_t bytes = 0;
    for (const Requirement& need : stages.stages[phase].requirements) {
      bytes += need.minimum_bytes;
      EXPECT_EQ(need.minimum_bytes, need.preferred_bytes);
    }
    EXPECT_EQ(bytes + plan.reserved_bytes, plan.phases[phase].needed_bytes());
  }
  const std::vector<Requirement>& draft = stages.stages.back().requirements;
  EXPECT_EQ(draft[draft.size() - 2].resource, kFirstDemandResource);
  EXPECT_EQ(draft[draft.size() - 2].minimum_bytes, 5120U);
  EXPECT_EQ(draft.back().resource, kFirstDemandResource + 2);
  EXPECT_EQ(draft.back().minimum_bytes, 512U) << "of the same name, and another one";
  EXPECT_TRUE(plan_stages(stages).has_value());
}

// Resident pages stay exactly where they are from phase to phase, whatever comes and goes.
TEST(PhaseStages, ResidentPagesStayInPlace) {
  PlanRequest request = long_context();
  request.arena_bytes = 1ULL << 30;
  request.demands = {{"draft", "weights", 1 << 28}};
  const Plan plan = kvspan::plan(request).value();
  ASSERT_GT(plan.regions.resident_bytes, 0U);
  const StagePlan stages =
      plan_stages(phase_stages(plan, request.demands, kDomain).value()).value();
  std::vector<MemoryPool> pools = pool(plan);
  pools[0].capacity_bytes = overlaid_bytes(plan, request.demands).value();
  std::vector<FixedRegion> fixed;
  for (const LiveStage& stage : stages.stages()) {
    const auto layout = lay_out(stage, pools, fixed, LayoutSizes::minimum);
    ASSERT_TRUE(layout.has_value()) << layout.error().message;
    const Region resident = layout->pools[0].regions.front();
    EXPECT_EQ(resident.id, static_cast<std::uint64_t>(PlanResource::resident_pages));
    EXPECT_EQ(resident.bytes, plan.regions.resident_bytes);
    EXPECT_TRUE(resident.persistent);
    EXPECT_TRUE(fixed.empty() || fixed[0].region == resident);
    fixed = {{kDomain, MemoryKind::device, resident}};
  }
}

TEST(PhaseStages, NeverMoreThanSideBySide) {
  constexpr std::uint64_t kSeed = 20261205;
  std::mt19937_64 random(kSeed);
  int less = 0;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    PlanRequest request = long_context();
    request.context_tokens = 1 + random() % 100000;
    request.decode_rows = 1 + static_cast<std::uint32_t>(random() % 64);
    request.prefill_rows_max = 1 + static_cast<std::uint32_t>(random() % 2000);
    request.sequences = 1 + static_cast<std::uint32_t>(random() % 3);
    if (random() % 2 == 0) {
      request.demands.push_back({"draft", "weights", random() % (1 << 28)});
    }
    if (random() % 2 == 0) {
      request.demands.push_back({"decode", "table", 1 + random() % (1 << 20)});
    }
    if (random() % 2 == 0) {
      request.arena_bytes = kvspan::plan(request)->minimum_arena_bytes + random() % (1 << 28);
    }
    const Plan plan = kvspan::plan(request).value();
    const auto overlaid = overlaid_bytes(plan, request.demands);
    ASSERT_TRUE(overlaid.has_value()) << overlaid.error().message;
    ASSERT_LE(*overlaid, plan.regions.total_bytes());
    less += *overlaid < plan.regions.total_bytes() ? 1 : 0;
  }
  EXPECT_GT(less, 100);
}

// The figures of docs/design/memory.md: least arenas of 16 layers at 262,144 tokens.
TEST(PhaseStages, WhatOverlayingSaves) {
  PlanRequest request = long_context();
  const auto both = [&request] {
    const Plan plan = kvspan::plan(request).value();
    return std::pair(plan.regions.total_bytes(), overlaid_bytes(plan, request.demands).value());
  };
  request.prefill_rows_fixed = 1024;
  EXPECT_EQ(both(), std::pair(std::uint64_t{65209856}, std::uint64_t{54134272}));
  request.demands = {{"draft", "weights", 1 << 28}};
  EXPECT_EQ(both(), std::pair(std::uint64_t{282918912}, std::uint64_t{269287424}));
}

TEST(PhaseStages, AnotherPlansDemandsAreRefused) {
  PlanRequest request = long_context();
  const Plan plan = kvspan::plan(request).value();
  const std::vector<Demand> foreign = {{"decode", "table", 8}};
  const auto refused = phase_stages(plan, foreign, kDomain);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().component, "table");
  EXPECT_EQ(phase_stages(Plan{}, {}, kDomain).error().code, Errc::invalid_argument);
}

}  // namespace
}  // namespace kvspan::test
