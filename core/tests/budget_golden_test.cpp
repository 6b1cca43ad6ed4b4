// SPDX-License-Identifier: Apache-2.0
// Sizes that published systems and their users report, reproduced to the byte. Every number follows
// by hand from block sizes, head counts and page tokens; the comment beside it says how.
#include "kvspan/core/memory/budget.hpp"
#include "kvspan/core/memory/machine_memory.hpp"
#include "kvspan/core/memory/recurrent_state.hpp"

#include "budget_requests.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kGiB = 1 << 30;

struct Golden {
  const char* what;
  std::uint32_t layers;
  std::uint64_t tokens;
  std::uint64_t history_bytes;
};

// 4 KV heads of 256: a token takes 1,088 B of q8_0 K and 576 B of q4_0 V, a page 425,984 B.
TEST(BudgetGolden, Q8KeysAndQ4Values) {
  const Golden rows[] = {
      {"one page", 1, 256, 425984},
      {"one token takes a page", 1, 1, 425984},
      {"one layer, 262,144 tokens", 1, 262144, 416 * kMiB},
      {"sixteen layers", 16, 262144, 6979321856},
      {"with a draft layer", 17, 262144, 7072 * kMiB},
      {"110,000 tokens of a draft layer: 430 pages", 1, 110000, 430 * 425984ULL},
      {"200,192 tokens of a layer: 782 pages", 1, 200192, 782 * 425984ULL},
      {"90,000 tokens of a layer: 352 pages", 1, 90000, 352 * 425984ULL},
      {"163,840 tokens, 17 layers", 17, 163840, 17 * 640 * 425984ULL},
  };
  for (const Golden& row : rows) {
    SCOPED_TRACE(row.what);
    PlanRequest request = long_context();
    request.geometry.layers.resize(1);
    request.geometry.layers.assign(row.layers, request.geometry.layers.front());
    request.context_tokens = row.tokens;
    const auto found = plan(request);
    ASSERT_TRUE(found.has_value()) << found.error().message;
    EXPECT_EQ(found->history_bytes, row.history_bytes);
    EXPECT_GE(found->pinned_bytes, row.history_bytes);
    EXPECT_LT(found->pinned_bytes - row.history_bytes, found->pinned_chunk_bytes);
  }
}

// Other pairs at 262,144 tokens: bytes a token are the sum of both rows of 1,024 elements.
TEST(BudgetGolden, OtherPairsOfTypes) {
  struct Pair {
    kvspan_type_t k;
    kvspan_type_t v;
    std::uint64_t token_bytes;
  };

  const Pair pairs[] = {{KVSPAN_TYPE_BF16, KVSPAN_TYPE_BF16, 4096},
                        {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q8_0, 2176},
                        {KVSPAN_TYPE_Q4_0, KVSPAN_TYPE_Q4_0, 1152},
                        {KVSPAN_TYPE_Q5_1, KVSPAN_TYPE_Q5_0, 768 + 704},
                        {KVSPAN_TYPE_F32, KVSPAN_TYPE_Q4_1, 4096 + 640}};
  for (const Pair& pair : pairs) {
    PlanRequest request = long_context();
    for (LayerGeometry& layer : request.geometry.layers) {
      layer.k_type = pair.k;
      layer.v_type = pair.v;
    }
    const auto found = plan(request);
    ASSERT_TRUE(found.has_value()) << found.error().message;
    EXPECT_EQ(found->history_bytes, pair.token_bytes * 262144 * 16);
  }
}

// A draft layer of q8_0/q8_0 at 65,536 tokens is 136 MiB; eight draft steps that fetch it each time
// move 1,088 MiB.
TEST(BudgetGolden, DraftLayer) {
  PlanRequest request = long_context();
  request.geometry.layers = {{KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q8_0, 256, 256, 4, 24}};
  request.context_tokens = 65536;
  EXPECT_EQ(plan(request)->history_bytes, 136 * kMiB);
  EXPECT_EQ(8 * plan(request)->history_bytes, 1088 * kMiB);
}

// Four layers of unlike types: their pages, and the sum that the plan says.
TEST(BudgetGolden, MixedLayers) {
  PlanRequest request = long_context();
  request.geometry.layers = {{KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q8_0, 256, 256, 4, 24},
                             {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 256, 256, 4, 24},
                             {KVSPAN_TYPE_Q4_0, KVSPAN_TYPE_Q4_0, 256, 256, 4, 24},
                             {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 256, 256, 4, 24}};
  const auto found = plan(request);
  ASSERT_TRUE(found.has_value()) << found.error().message;
  const std::uint64_t pages[] = {557056, 425984, 294912, 1048576};
  for (std::size_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(found->pages[layer].page_bytes, pages[layer]);
  }
  EXPECT_EQ(found->history_bytes, 1024 * (557056ULL + 425984 + 294912 + 1048576));
  EXPECT_EQ(found->slot_bytes, 1048576U);
}

// Blocks of 16 tokens of rows of 1,152 bytes; latent attention without a V plane: 61 layers of
// 512 + 64 f16 elements.
TEST(BudgetGolden, LatentLayersHaveNoValuePlane) {
  PlanRequest request = long_context();
  LayerGeometry latent{KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 576, 512, 1, 16};
  latent.v_in_k = true;
  request.geometry.layers.assign(61, latent);
  request.geometry.page_tokens = 16;
  request.capabilities = fixed_caps(caps_of(16, 8, 0));
  request.context_tokens = 163840;
  const auto found = plan(request);
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_EQ(found->pages.front().page_bytes, 18432U);
  EXPECT_EQ(found->history_bytes, 61ULL * 163840 * 1152);  // 10.723 GiB
  EXPECT_EQ((found->history_bytes * 1000 + kGiB / 2) / kGiB, 10723U);
}

// A window of 1,024 tokens touches 5 pages of 256 at one row, 6 at three; ten full layers and
// fifty-two windows at 131,072 tokens weigh 10.406 GiB.
TEST(BudgetGolden, WindowsSeeAFewPages) {
  EXPECT_EQ(visible_pages(131072, 1024, 1, 256), 5U);
  EXPECT_EQ(visible_pages(131072, 1024, 3, 256), 6U);
  EXPECT_EQ(visible_pages(131072, 1, 1, 256), 1U);
  EXPECT_EQ(visible_pages(131072, 0, 1, 256), 512U);
  EXPECT_EQ(visible_pages(500, 1024, 1, 256), 2U);
  PlanRequest request = long_context();
  request.geometry.layers.assign(10, {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 128, 128, 16, 32});
  for (int layer = 0; layer < 52; ++layer) {
    request.geometry.layers.push_back({KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 128, 128, 16, 32, 1024});
  }
  EXPECT_EQ(live_bytes(request.geometry, 131072).value() * 1000 / kGiB, 10406U);
  // Pages that windows slide off are kept for the last: an arena of a few full pages a layer goes
  // to the layers that see everything.
  request.geometry.page_tokens = 64;
  request.context_tokens = 131072;
  request.arena_bytes = plan(request)->minimum_arena_bytes + 20 * kGiB / 10;
  const auto found = plan(request);
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_GT(found->resident_pages.front(), 0U);
  EXPECT_EQ(found->resident_pages.back(), 0U);
}

// The host holds of a window what it spans, a rewind, a chunk on its way and the next, however long
// the context: 1,024 + 64 + 2 x 1,024 tokens touch 14 pages of 256. Layers that see everything keep
// everything. With a rewind of the context nothing is given back.
TEST(BudgetGolden, WindowsHoldTheirBoundOnTheHost) {
  EXPECT_EQ(kept_pages(131072, 1024 + 64, 1024, 256), 14U);
  EXPECT_EQ(kept_pages(131072, 1024, 1, 256), 5U);
  EXPECT_EQ(kept_pages(131072, 0, 1024, 256), 512U);
  EXPECT_EQ(kept_pages(2048, 1024, 1024, 256), 8U);
  EXPECT_EQ(kept_pages(131072, 1024, UINT32_MAX, 256), 512U);
  PlanRequest request = long_context();
  request.geometry.layers.assign(10, {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 128, 128, 16, 32});
  for (int layer = 0; layer < 52; ++layer) {
    request.geometry.layers.push_back({KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 128, 128, 16, 32, 1024});
  }
  request.geometry.page_tokens = 64;
  request.context_tokens = 131072;
  request.prefill_rows_fixed = 1024;
  constexpr std::uint64_t kPage = 64 * 2 * 16 * 128 * 2;
  const auto found = plan(request);
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_EQ(found->host_pages, (std::vector<std::uint32_t>{2048, 50}));
  EXPECT_EQ(found->history_bytes, (10 * 2048 + 52 * 50) * kPage);  // 11.27 GiB
  request.rewind_tokens = request.context_tokens;
  EXPECT_EQ(plan(request)->history_bytes, 62 * 2048 * kPage);  // 62 GiB
  request.rewind_tokens = UINT64_MAX;
  EXPECT_EQ(plan(request)->history_bytes, 62 * 2048 * kPage);
  request.rewind_tokens = 0;
  EXPECT_EQ(plan(request)->host_pages.back(), 49U);
  // Resident they roll in what a step sees: 1,024 + 1,023 tokens touch 33 pages.
  request.arena_bytes = 64 * kGiB;
  const auto resident = plan(request);
  ASSERT_TRUE(resident.has_value()) << resident.error().message;
  EXPECT_EQ(resident->mode, PlanMode::resident);
  EXPECT_EQ(resident->regions.resident_bytes, (10 * 2048 + 52 * 33) * kPage);  // 10.84 GiB
}

// Full attention: 28 layers of 8 heads of 128 at 40,960 tokens.
TEST(BudgetGolden, LayersThatSeeEverything) {
  PlanRequest request = long_context();
  request.geometry.layers.assign(28, {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 128, 128, 8, 32});
  request.context_tokens = 40960;
  const auto found = plan(request);
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_EQ(found->history_bytes * 1000 / kGiB, 4375U);
}

// A card of 24,064 MiB that counts what is pinned: beside 19,456 MiB of others 4,608 are left, and
// 131,072 tokens of bf16 want 8,192.
TEST(BudgetGolden, PinnedMemoryThatTheCardCounts) {
  PlanRequest request = long_context();
  for (LayerGeometry& layer : request.geometry.layers) {
    layer.k_type = layer.v_type = KVSPAN_TYPE_BF16;
  }
  request.context_tokens = 131072;
  request.pinnable_bytes = (24064 - 19456) * kMiB;
  const auto refused = plan(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::host_memory);
  EXPECT_EQ(refused.error().required, 8192 * kMiB);
  EXPECT_EQ(refused.error().provided, 4608 * kMiB);
  EXPECT_EQ(refused.error().missing, 3584 * kMiB);
  request.pinnable_bytes = 8192 * kMiB;
  EXPECT_TRUE(plan(request).has_value());
}

// A verify step of 49 rows once reserved a whole layer's gather, 1,097 MiB of a pool of 9,774
// pages: 402 pages of 17 layers stayed of 574. Here rows are walked in the same workspace, so 574
// stay beside a ring of 16; what 49 rows take are their own states, accumulators and one more tail
// a layer.
TEST(BudgetGolden, WideVerifyKeepsItsResidents) {
  constexpr std::uint64_t kPage = 425984;
  constexpr std::uint64_t kPool = 9774;
  PlanRequest request = long_context();
  request.geometry.layers.assign(17, request.geometry.layers.front());
  request.context_tokens = 163840;
  request.prefill_rows_fixed = 256;
  request.stream.group_pages = 8;
  request.capabilities = fixed_caps(caps_of(32, 8, 1 * kMiB));
  const auto with_rows = [&](std::uint32_t rows, std::uint64_t arena_bytes) {
    request.decode_rows = rows;
    request.arena_bytes = arena_bytes;
    auto found = plan(request);
    EXPECT_TRUE(found.has_value()) << found.error().message;
    return found.value_or(Plan{});
  };
  const Plan narrow = with_rows(1, 0);
  const Plan wide = with_rows(49, 0);
  for (const Plan* least : {&narrow, &wide}) {
    const std::uint64_t arena_bytes =
        least->minimum_arena_bytes + (kPool - least->ring_slots) * kPage;
    const Plan found = with_rows(least == &narrow ? 1 : 49, arena_bytes);
    EXPECT_EQ(found.resident_pages, std::vector<std::uint32_t>(17, 574));
    EXPECT_EQ(found.ring_slots, 16U);
    EXPECT_EQ(found.regions.workspace_bytes, narrow.regions.workspace_bytes);
  }
  // In the arena of one row: two pages a layer for all that, not 172.
  const Plan same = with_rows(49, narrow.minimum_arena_bytes + (kPool - narrow.ring_slots) * kPage);
  EXPECT_GE(same.resident_pages.back(), 572U);
}

TEST(BudgetGolden, RecurrentStates) {
  const auto bytes = [](std::uint32_t depth) { return *recurrent_bytes({3268608, 48, depth}); };
  EXPECT_EQ(bytes(0).unstaged_bytes(), 156893184U);  // 149.625 MiB
  EXPECT_EQ(bytes(0).snapshot_bytes, 0U);
  EXPECT_EQ(bytes(3).snapshot_bytes, 470679552U);
  EXPECT_EQ(bytes(3).unstaged_bytes() * 10 / kMiB, 5985U);
  EXPECT_EQ(bytes(4).unstaged_bytes() * 1000 / kMiB, 748125U);
  EXPECT_EQ(bytes(64).unstaged_bytes() * 1000 / kMiB, 9725625U);
  EXPECT_EQ(bytes(3).stage_bytes, 19611648U);
  EXPECT_EQ(recurrent_bytes({UINT64_MAX / 4, 8, 1}).error().code, Errc::too_large);
}

// Workspace follows what is live, not what was allocated; pinned memory follows it in chunks.
TEST(BudgetGolden, NothingButTheHistoryGrowsWithTheContext) {
  PlanRequest request = long_context();
  request.context_tokens = 4096;
  const auto near = plan(request);
  request.context_tokens = 262144;
  const auto far = plan(request);
  ASSERT_TRUE(near.has_value() && far.has_value());
  EXPECT_EQ(near->minimum_arena_bytes, far->minimum_arena_bytes);
  EXPECT_EQ(near->pinned_chunk_bytes, far->pinned_chunk_bytes);
  EXPECT_LE(far->pinned_chunk_bytes, 64 * kMiB);
}

TEST(MachineMemory, HeadroomIsSignedAndWarns) {
  MachineMemory machine;
  machine.device_bytes = 16303 * kMiB;
  machine.device_used_bytes = 900 * kMiB;
  const auto short_of = headroom(machine, 15500 * kMiB, 0);
  ASSERT_TRUE(short_of.has_value());
  EXPECT_EQ(short_of->device_bytes, -97 * static_cast<std::int64_t>(kMiB));
  EXPECT_TRUE(short_of->warning());
  const auto enough = headroom(machine, 15000 * kMiB, 0);
  EXPECT_EQ(enough->device_bytes, 403 * static_cast<std::int64_t>(kMiB));
  EXPECT_FALSE(enough->warning());
  EXPECT_FALSE(headroom({}, UINT64_MAX, UINT64_MAX)->warning());
}

TEST(MachineMemory, HostThatIsTooSmallIsRefusedWithTheShortfall) {
  MachineMemory machine;
  machine.host_bytes = 176 * kGiB;
  const auto refused = headroom(machine, kGiB, 177 * kGiB);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::host_memory);
  EXPECT_EQ(refused.error().required, 177 * kGiB);
  EXPECT_EQ(refused.error().provided, 176 * kGiB);
  EXPECT_EQ(refused.error().missing, kGiB);
  EXPECT_TRUE(headroom(machine, kGiB, 176 * kGiB).has_value());
}

TEST(MachineMemory, UnifiedMemoryIsOneBudget) {
  MachineMemory machine;
  machine.host_bytes = 128 * kGiB;
  machine.host_used_bytes = 60 * kGiB;
  machine.reserve_bytes = 4 * kGiB;
  EXPECT_FALSE(headroom(machine, 0, 80 * kGiB).has_value());
  machine.host_used_bytes = 0;
  EXPECT_TRUE(headroom(machine, 60 * kGiB, 80 * kGiB).has_value());
  machine.unified = true;
  const auto refused = headroom(machine, 60 * kGiB, 80 * kGiB);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().provided, 124 * kGiB);
  EXPECT_EQ(headroom(machine, 60 * kGiB, 64 * kGiB)->device_bytes, 0);
  EXPECT_FALSE(headroom(machine, 60 * kGiB, 64 * kGiB + 1).has_value());
}

TEST(MachineMemory, AutomaticArenaFollowsItsRule) {
  ArenaRule rule;
  rule.free_bytes = 3000 * kMiB;
  rule.reserve_bytes = 512 * kMiB;
  rule.minimum_bytes = 700 * kMiB;
  rule.grain_bytes = kMiB;
  const auto arena = automatic_arena(rule);
  ASSERT_TRUE(arena.has_value());
  EXPECT_EQ(arena->arena_bytes, 2488 * kMiB);
  EXPECT_NE(arena->rule.find(std::to_string(2488 * kMiB)), std::string::npos);
  rule.free_bytes = 1000 * kMiB;
  const auto refused = automatic_arena(rule);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().missing, 212 * kMiB);
  // Never more than what is useful, and the minimum where rounding would pass below it.
  rule.free_bytes = 3000 * kMiB;
  rule.useful_bytes = 900 * kMiB + 1;
  EXPECT_EQ(automatic_arena(rule)->arena_bytes, 900 * kMiB + 1);
  rule.free_bytes = 1213 * kMiB;
  rule.minimum_bytes = 701 * kMiB;
  rule.grain_bytes = 100 * kMiB;
  rule.useful_bytes = UINT64_MAX;
  EXPECT_EQ(automatic_arena(rule)->arena_bytes, 701 * kMiB);
  // Nor more than the device allocates at once.
  rule.free_bytes = 3000 * kMiB;
  rule.allocation_bytes_max = 1050 * kMiB;
  EXPECT_EQ(automatic_arena(rule)->arena_bytes, 1000 * kMiB);
  EXPECT_NE(automatic_arena(rule)->rule.find("allocates at once"), std::string::npos);
  rule.useful_bytes = 900 * kMiB;
  EXPECT_EQ(automatic_arena(rule)->arena_bytes, 900 * kMiB);
}

}  // namespace
}  // namespace kvspan::test
