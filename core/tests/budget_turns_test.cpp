// SPDX-License-Identifier: Apache-2.0
// Plans whose phases take turns: exact to the byte, each phase in the same bytes, what both keep
// where it is, and neither phase slower than side by side.
#include "budget_requests.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kSeed = 20261201;

// Unlike layers and windows on a link, with and without demands.
PlanRequest drawn_request(std::mt19937_64& random) {
  const auto pick = [&](std::uint64_t low, std::uint64_t high) {
    return low + random() % (high - low + 1);
  };
  PlanRequest request = long_context();
  request.geometry.layers.resize(pick(1, 5));
  request.geometry.layers.back().window_tokens = pick(0, 2) == 0 ? 3000 : 0;
  request.geometry.layers.front().v_type = KVSPAN_TYPE_F16;
  request.geometry.page_tokens = 64;
  request.context_tokens = pick(1, 30000);
  request.sequences = static_cast<std::uint32_t>(pick(1, 3));
  request.decode_rows = static_cast<std::uint32_t>(pick(1, 16));
  request.prefill_rows_max = static_cast<std::uint32_t>(pick(1, 2000));
  request.prefill_rows_fixed = pick(0, 1) == 0 ? request.prefill_rows_max : 0;
  if (pick(0, 3) != 0) {
    request.stream.link_bytes_s = 49'200'000'000;
    request.stream.copy_ns = 2450;
    request.stream.gap_ns = pick(0, 1) * pick(0, 1'000'000);
    request.stream.attend_bytes_s = 4'620'000'000'000;
    request.stream.row_ns = pick(0, 1) * pick(1, 5000);
    request.stream.row_bytes_s = pick(0, 1) * 50'000'000'000'000;
  }
  if (pick(0, 2) == 0) {
    request.demands.push_back({"draft", "weights", pick(1, 1 << 24)});
  }
  if (pick(0, 2) == 0) {
    request.demands.push_back({"decode", "table", pick(1, 1 << 20)});
  }
  request.phases_take_turns = true;
  return request;
}

void expect_rooms(const Plan& plan, const PlanRequest& request) {
  ASSERT_EQ(plan.rooms.size(), 2U);
  ASSERT_LE(plan.total_bytes(), request.arena_bytes);
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const Plan room = entered(plan, phase);
    ASSERT_EQ(room.total_bytes(), plan.total_bytes());
    std::uint64_t kept = 0;
    std::uint64_t own = 0;
    for (std::size_t layer = 0; layer < room.pages.size(); ++layer) {
      ASSERT_LE(room.kept_pages[layer], room.resident_pages[layer]);
      kept += room.kept_pages[layer] * room.pages[layer].page_bytes;
      own += (room.resident_pages[layer] - room.kept_pages[layer]) * room.pages[layer].page_bytes;
    }
    ASSERT_LE(kept, room.kept_sequence_bytes);
    ASSERT_LE(own, room.resident_sequence_bytes);
    ASSERT_EQ(room.regions.resident_bytes,
              request.sequences * (room.kept_sequence_bytes + room.resident_sequence_bytes));
    ASSERT_LE((std::uint64_t{room.ring_slots} + room.tail_slots) * room.slot_bytes,
              room.regions.slots_bytes);
    const auto again = replaced(room, request.sequences, placement_of(room));
    if (room.mode == PlanMode::streaming) {
      ASSERT_TRUE(again.has_value()) << again.error().message;
      ASSERT_EQ(again->regions.resident_bytes, room.regions.resident_bytes);
    }
  }
  for (const PhaseBudget& phase : plan.phases) {
    std::uint64_t sum = 0;
    for (const PlanComponent& component : phase.components) {
      sum += component.size_bytes;
    }
    ASSERT_EQ(sum, plan.total_bytes()) << phase.name;
    ASSERT_LE(phase.needed_bytes(), plan.total_bytes()) << phase.name;
  }
}

TEST(BudgetTurns, EveryArenaOfRandomRequests) {
  std::mt19937_64 random(kSeed);
  int more = 0;  // plans in which decode keeps more resident than side by side
  for (int round = 0; round < (KVSPAN_TEST_SANITIZED != 0 ? 10 : 80); ++round) {
    PlanRequest request = drawn_request(random);
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    PlanRequest beside = request;
    beside.phases_take_turns = false;
    const auto least = plan(request);
    const auto least_beside = plan(beside);
    ASSERT_TRUE(least.has_value()) << least.error().message;
    ASSERT_TRUE(least_beside.has_value());
    // But for the bytes that cutting a sequence's part in two may take.
    ASSERT_LE(least->minimum_arena_bytes,
              least_beside->minimum_arena_bytes + request.sequences * 256ULL);
    request.arena_bytes = least->minimum_arena_bytes - 1;
    const auto refused = plan(request);
    ASSERT_FALSE(refused.has_value());
    ASSERT_EQ(refused.error().required, least->minimum_arena_bytes);
    ASSERT_EQ(refused.error().missing, 1U);
    StepTime step_before;
    PromptTime prompt_before;
    for (std::uint64_t point = 0; point < 6; ++point) {
      request.arena_bytes = least->minimum_arena_bytes + least->history_bytes * point / 5;
      const auto found = plan(request);
      ASSERT_TRUE(found.has_value()) << found.error().message;
      expect_rooms(*found, request);
      if (point != 0) {
        ASSERT_LE(found->predicted.step_ns, step_before.step_ns * (1.0 + 1e-9));
      }
      if (point != 0 && request.stream.row_ns != 0) {
        ASSERT_LE(found->prompt.time.time_ns, prompt_before.time_ns * (1.0 + 1e-9));
      }
      step_before = found->predicted;
      prompt_before = found->prompt.time;
      beside.arena_bytes = request.arena_bytes - request.sequences * 256ULL;
      if (beside.arena_bytes >= least_beside->minimum_arena_bytes) {
        const auto other = plan(beside);
        ASSERT_TRUE(other.has_value());
        ASSERT_LE(found->predicted.step_ns, other->predicted.step_ns * (1.0 + 1e-9));
        more += found->regions.resident_bytes > other->regions.resident_bytes ? 1 : 0;
        if (request.stream.row_ns != 0) {
          ASSERT_LE(found->prompt.time.time_ns, other->prompt.time.time_ns * (1.0 + 1e-9));
        }
      }
    }
  }
  EXPECT_GT(more, KVSPAN_TEST_SANITIZED != 0 ? 5 : 60);
}

// The figures of docs/design/budget.md: 16 layers at 262,144 tokens, chunks of 2,048 rows.
TEST(BudgetTurns, WhatTakingTurnsGivesDecode) {
  PlanRequest request = long_context();
  request.prefill_rows_fixed = 2048;
  request.stream.link_bytes_s = 49'200'000'000;
  request.stream.copy_ns = 2450;
  request.stream.gap_ns = 1'500'000;
  request.arena_bytes = 1ULL << 30;
  const auto least_and_pages = [&request](bool turns) {
    request.phases_take_turns = turns;
    const Plan found = plan(request).value();
    std::uint64_t pages = found.ring_slots;
    for (const std::uint32_t each : found.resident_pages) {
      pages += each;
    }
    return std::pair(found.minimum_arena_bytes, pages);
  };
  EXPECT_EQ(least_and_pages(false), std::pair(std::uint64_t{115935744}, std::uint64_t{2250}));
  EXPECT_EQ(least_and_pages(true), std::pair(std::uint64_t{106564096}, std::uint64_t{2488}));
}

}  // namespace
}  // namespace kvspan::test
