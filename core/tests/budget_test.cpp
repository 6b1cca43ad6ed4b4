// SPDX-License-Identifier: Apache-2.0
// plan(): exact bytes, the minimum and the byte below it, and properties over random geometries. No
// device.
#include "kvspan/core/memory/budget.hpp"

#include "budget_requests.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::test {
namespace {

// Sizes that anybody can check by hand: 1,024 elements of q8_0 K and q4_0 V a token.
TEST(Budget, LongContextHasTheKnownSizes) {
  PlanRequest request = long_context();
  const auto least = plan(request);
  ASSERT_TRUE(least.has_value()) << least.error().message;
  EXPECT_EQ(least->pages.front().page_bytes, 425984U);
  EXPECT_EQ(least->pages_a_sequence, 1024U);
  EXPECT_EQ(least->history_bytes, 6979321856U);
  request.arena_bytes = least->history_bytes + (1ULL << 30);
  const auto all = plan(request);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->mode, PlanMode::resident);
  EXPECT_EQ(all->regions.resident_bytes, 6979321856U);
}

// Whatever the last bytes of an arena are, and though slots are no multiple of the alignment of
// regions.
TEST(Budget, APlanIsNeverLargerThanItsArena) {
  PlanRequest request;
  request.geometry.layers.assign(2, {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 8, 8, 1, 1});
  request.geometry.page_tokens = 5;
  request.stream.group_pages = 32;  // a ring as large as the arena allows
  request.geometry.alignment = 16;
  request.context_tokens = 400;
  request.prefill_rows_fixed = 8;
  request.capabilities = fixed_caps(caps_of(1, 2, 0));
  const auto least = plan(request);
  ASSERT_TRUE(least.has_value()) << least.error().message;
  ASSERT_NE(least->slot_bytes % 256, 0U);
  for (const std::uint64_t held : {0U, 1U, 1000U}) {  // by the backend, outside the regions
    request.demands = {{"", "backend", held}};
    for (std::uint64_t more = 0; more < 2000; ++more) {
      request.arena_bytes = least->minimum_arena_bytes + held + more;
      const auto found = plan(request);
      ASSERT_TRUE(found.has_value()) << found.error().message;
      ASSERT_LE(found->total_bytes(), request.arena_bytes) << more << " above the minimum";
    }
  }
}

// All layers' splits lie in the same places: as many as the layer with the most has, each as large
// as the largest layer's.
TEST(Budget, StatesOfMixedLayersFitTheirRegion) {
  PlanRequest request;
  LayerGeometry narrow{KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 64, 64, 1, 1};
  narrow.window_tokens = 32;  // more splits are open than without
  const LayerGeometry wide{KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 64, 256, 4, 24};
  request.geometry.layers = {narrow, wide};
  request.context_tokens = 4096;
  request.decode_rows = 16;
  request.prefill_rows_fixed = 16;
  request.capabilities = fixed_caps(caps_of(4, 8, 0));
  const auto found = plan(request);
  ASSERT_TRUE(found.has_value()) << found.error().message;
  const std::uint64_t state_bytes = 16ULL * 24 * (256 + 2) * sizeof(float);
  EXPECT_GE(found->regions.states_bytes, found->decode_splits_in_flight * state_bytes);
}

// States of 8 + 1 splits of one row and of a prefill row, one accumulator: counted by hand.
TEST(Budget, MinimumIsTheSumOfItsParts) {
  const PlanRequest request = long_context();
  const auto least = plan(request);
  ASSERT_TRUE(least.has_value());
  const std::uint64_t page = 425984;
  const std::uint64_t tails = 16 * tail_pages(1, 256);
  EXPECT_EQ(tail_pages(1, 256), 2U);
  EXPECT_EQ(least->regions.slots_bytes, (2 + tails) * page);
  const std::uint64_t state = 24 * 256 * 4 + 24 * 2 * 4 + 2 * 64 * 2;
  EXPECT_EQ(least->regions.states_bytes, (9 * state + 255) / 256 * 256);
  EXPECT_EQ(least->regions.accumulators_bytes, (state + 255) / 256 * 256);
  EXPECT_EQ(least->minimum_arena_bytes, least->regions.total_bytes());
}

std::uint64_t component_of(const PhaseBudget& phase, const std::string& component) {
  for (const PlanComponent& part : phase.components) {
    if (part.name == component) {
      return part.size_bytes;
    }
  }
  ADD_FAILURE() << phase.name << " has no " << component;
  return 0;
}

// Prefill's tails belong to one layer, decode's to all; a load has none.
TEST(Budget, EachPhaseHasItsOwnTails) {
  PlanRequest request = long_context();
  request.sequences = 3;
  request.decode_rows = 5;
  request.prefill_rows_fixed = 1024;
  const auto least = plan(request);
  ASSERT_TRUE(least.has_value()) << least.error().message;
  const std::uint64_t page = least->slot_bytes;
  ASSERT_EQ(least->phases.size(), 3U);
  EXPECT_EQ(component_of(least->phases[0], "tails"), 0U);
  EXPECT_EQ(component_of(least->phases[1], "tails"), 3 * tail_pages(1024, 256) * page);
  EXPECT_EQ(component_of(least->phases[2], "tails"), 3 * 16 * tail_pages(5, 256) * page);
  for (const PhaseBudget& phase : least->phases) {
    EXPECT_EQ(component_of(phase, "ring"), 2 * page);
    EXPECT_EQ(phase.needed_bytes() + component_of(phase, "idle"), least->total_bytes());
  }
}

TEST(Budget, TailPagesFollowTheFormula) {
  EXPECT_EQ(tail_pages(256, 256), 3U);
  EXPECT_EQ(tail_pages(257, 256), 3U);
  EXPECT_EQ(tail_pages(258, 256), 4U);
  EXPECT_EQ(tail_pages(64, 4), 18U);
}

TEST(Budget, SplitLengthIsRoundedUpToGranules) {
  EXPECT_EQ(split_tokens(1, 8, 32), 32U);
  EXPECT_EQ(split_tokens(256, 8, 32), 32U);
  EXPECT_EQ(split_tokens(257, 8, 32), 64U);
  EXPECT_EQ(split_tokens(262144, 8, 32), 32768U);
  EXPECT_EQ(split_tokens(0, 8, 32), 32U);
}

// Of prefill, whose unit is the page: 8 pages of 256 and more are whole ones.
TEST(Budget, LongSplitsAreRoundedUpToUnits) {
  EXPECT_EQ(split_tokens(2048, 8, 64, 256), 256U);
  EXPECT_EQ(split_tokens(2049, 8, 64, 256), 320U);
  EXPECT_EQ(split_tokens(16'000, 8, 64, 256), 2048U);  // 2,000 is below 8 pages: to the granule
  EXPECT_EQ(split_tokens(16'384, 8, 64, 256), 2048U);
  EXPECT_EQ(split_tokens(16'385, 8, 64, 256), 2304U);
  EXPECT_EQ(split_tokens(32'768, 8, 64, 256), 4096U);
  EXPECT_EQ(split_tokens(33'024, 8, 64, 256), 4352U);
  std::mt19937_64 random(51);
  const auto pick = [&](std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE("seed 51, round " + std::to_string(round));
    const auto splits = static_cast<std::uint32_t>(pick(1, 70));
    const auto granule = static_cast<std::uint32_t>(1U << pick(0, 6));
    const auto unit = static_cast<std::uint32_t>(granule << pick(0, 4));
    const std::uint64_t tokens = pick(1, 400'000);
    const std::uint64_t each = split_tokens(tokens, splits, granule, unit);
    EXPECT_EQ(each % granule, 0U);
    EXPECT_GE(each * splits, tokens);
    EXPECT_GE(split_tokens(tokens + 1, splits, granule, unit), each);
    EXPECT_TRUE(each < 8ULL * unit || each % unit == 0);
    const std::uint64_t least = split_tokens(tokens, splits, granule);
    EXPECT_GE(each, least);
    EXPECT_LE(8 * each, 9 * least);
  }
}

struct Scenario {
  PlanRequest request;
  std::string text;
};

Scenario random_scenario(std::mt19937_64& random) {
  const auto pick = [&](std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
  };
  const kvspan_type_t types[] = {
      KVSPAN_TYPE_F16, KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, KVSPAN_TYPE_F32};
  const std::uint32_t heads[] = {64, 96, 128, 256};
  Scenario scenario;
  PlanRequest& request = scenario.request;
  const std::uint64_t layers = pick(1, 6);
  for (std::uint64_t layer = 0; layer < layers; ++layer) {
    const auto kv_heads = static_cast<std::uint32_t>(pick(1, 4));
    request.geometry.layers.push_back({types[pick(0, 3)],
                                       types[pick(0, 3)],
                                       heads[pick(0, 3)],
                                       heads[pick(0, 3)],
                                       kv_heads,
                                       kv_heads * static_cast<std::uint32_t>(pick(1, 6))});
  }
  request.geometry.page_tokens = static_cast<std::uint32_t>(32U << pick(0, 4));
  request.context_tokens = pick(1, 40000);
  request.sequences = static_cast<std::uint32_t>(pick(1, 3));
  request.prefill_rows_max = static_cast<std::uint32_t>(pick(1, 600));
  request.decode_rows = static_cast<std::uint32_t>(pick(1, 64));
  request.capabilities = fixed_caps(
      caps_of(32, static_cast<std::uint32_t>(pick(1, 16)), pick(0, 1) * pick(0, 100000)));
  scenario.text =
      std::to_string(layers) + " layers, page " + std::to_string(request.geometry.page_tokens) +
      ", context " + std::to_string(request.context_tokens) + ", rows " +
      std::to_string(request.prefill_rows_max) + "/" + std::to_string(request.decode_rows);
  return scenario;
}

TEST(Budget, OneByteBelowTheMinimumIsRefusedAndTheMinimumPlans) {
  std::mt19937_64 random(20261129);
  for (int round = 0; round < 300; ++round) {
    Scenario scenario = random_scenario(random);
    SCOPED_TRACE("seed 20261129, round " + std::to_string(round) + ": " + scenario.text);
    const auto least = plan(scenario.request);
    ASSERT_TRUE(least.has_value()) << least.error().message;
    scenario.request.arena_bytes = least->minimum_arena_bytes;
    const auto exact = plan(scenario.request);
    ASSERT_TRUE(exact.has_value()) << exact.error().message;
    EXPECT_LE(exact->regions.total_bytes(), scenario.request.arena_bytes);
    if (least->minimum_arena_bytes == 1) {
      continue;
    }
    scenario.request.arena_bytes = least->minimum_arena_bytes - 1;
    const auto refused = plan(scenario.request);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().required, least->minimum_arena_bytes);
    EXPECT_EQ(refused.error().missing, 1U);
    EXPECT_FALSE(refused.error().component.empty());
  }
}

TEST(Budget, EveryPlanFitsAndItsPartsAddUp) {
  std::mt19937_64 random(77);
  for (int round = 0; round < 200; ++round) {
    Scenario scenario = random_scenario(random);
    SCOPED_TRACE("seed 77, round " + std::to_string(round) + ": " + scenario.text);
    const std::uint64_t least = plan(scenario.request)->minimum_arena_bytes;
    for (const std::uint64_t percent : {100U, 105U, 150U, 300U, 2000U}) {
      scenario.request.arena_bytes = least * percent / 100;
      const auto found = plan(scenario.request);
      ASSERT_TRUE(found.has_value()) << found.error().message;
      EXPECT_LE(found->regions.total_bytes(), scenario.request.arena_bytes);
      EXPECT_EQ(found->minimum_arena_bytes, least);
      for (const PhaseBudget& phase : found->phases) {
        std::uint64_t bytes = 0;
        for (const PlanComponent& component : phase.components) {
          bytes += component.size_bytes;
        }
        EXPECT_EQ(bytes, found->total_bytes()) << phase.name;
      }
      for (std::size_t layer = 0; layer < found->pages.size(); ++layer) {
        EXPECT_LE(found->resident_pages[layer], found->pages_a_sequence);
      }
      if (found->mode == PlanMode::streaming) {
        EXPECT_GE(found->ring_slots, 2U);
        EXPECT_LE(2 * found->group_pages, found->ring_slots);
      } else {
        EXPECT_EQ(found->ring_slots + found->tail_slots, 0U);
      }
    }
  }
}

struct Binding {
  const char* phase;
  const char* component;
  std::function<void(PlanRequest&)> make;
};

// Each phase in turn is the one that decides: its refusal names it, to the byte.
TEST(Budget, OneByteShortNamesThePhaseThatDecides) {
  const Binding cases[] = {
      {"prefill", "split states", [](PlanRequest& request) { request.prefill_rows_fixed = 4096; }},
      {"decode", "tails", [](PlanRequest& request) { request.decode_rows = 64; }},
      {"load",
       "staging",
       [](PlanRequest& request) {
         request.demands = {{"load", "staging", 1 << 30}};
       }},
      {"graph",
       "capture",
       [](PlanRequest& request) {
         request.demands = {{"graph", "capture", 1 << 30}, {"graph", "arguments", 4096}};
       }},
      {"draft",
       "weights",
       [](PlanRequest& request) {
         request.demands = {{"draft", "weights", 1 << 30}, {"", "backend", 1 << 20}};
       }},
      {"decode", "n-gram table", [](PlanRequest& request) {
         request.demands = {{"decode", "n-gram table", 1 << 30}, {"draft", "weights", 1 << 29}};
       }}};
  for (const Binding& binding : cases) {
    SCOPED_TRACE(std::string(binding.phase) + ", " + binding.component);
    PlanRequest request = long_context();
    binding.make(request);
    const auto least = plan(request);
    ASSERT_TRUE(least.has_value()) << least.error().message;
    request.arena_bytes = least->minimum_arena_bytes;
    ASSERT_TRUE(plan(request).has_value());
    EXPECT_EQ(plan(request)->total_bytes(), request.arena_bytes);
    --request.arena_bytes;
    const auto refused = plan(request);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Errc::device_memory);
    EXPECT_EQ(refused.error().required, least->minimum_arena_bytes);
    EXPECT_EQ(refused.error().provided, least->minimum_arena_bytes - 1);
    EXPECT_EQ(refused.error().missing, 1U);
    EXPECT_EQ(refused.error().component, binding.component);
    const std::string phase = std::string("phase ") + binding.phase + ",";
    EXPECT_NE(refused.error().message.find(phase), std::string::npos) << refused.error().message;
  }
}

// Serial phases cost the maximum, concurrent parts of one the sum, and what is held always is added
// to all of them.
TEST(Budget, SerialPhasesShareAndConcurrentDemandsAddUp) {
  const auto minimum = [](std::vector<Demand> demands) {
    PlanRequest request = long_context();
    request.demands = std::move(demands);
    const auto least = plan(request);
    EXPECT_TRUE(least.has_value());
    return least->minimum_arena_bytes;
  };
  constexpr std::uint64_t kBig = 1ULL << 30;
  const std::uint64_t alone = minimum({});
  const std::uint64_t draft = minimum({{"draft", "weights", kBig}});
  EXPECT_EQ(minimum({{"draft", "weights", kBig}, {"lent", "vision", kBig}}), draft);
  EXPECT_EQ(minimum({{"draft", "weights", kBig}, {"lent", "vision", kBig + 256}}), draft + 256);
  EXPECT_EQ(minimum({{"draft", "weights", kBig}, {"draft", "scratch", 512}}), draft + 512);
  EXPECT_EQ(minimum({{"draft", "weights", kBig}, {"", "backend", 1000}}), draft + 1000);
  EXPECT_EQ(minimum({{"", "backend", 1000}, {"", "graphs", 24}}), alone + 1024);
  // What a phase without attention finds in scratch costs nothing; beside a phase's own scratch it
  // does.
  EXPECT_EQ(minimum({{"graph", "capture", 256}}), alone);
  EXPECT_EQ(minimum({{"decode", "n-gram table", 256}}), alone + 256);
}

TEST(Budget, MoreThanCanBePinnedIsRefusedToTheByte) {
  PlanRequest request = long_context();
  request.import_alignment = 4096;
  const std::uint64_t pinned = plan(request)->pinned_bytes;
  request.pinnable_bytes = pinned;
  EXPECT_TRUE(plan(request).has_value());
  --request.pinnable_bytes;
  const auto refused = plan(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::host_memory);
  EXPECT_EQ(refused.error().required, pinned);
  EXPECT_EQ(refused.error().missing, 1U);
  EXPECT_EQ(refused.error().component, "history");
}

// A plan may only refuse, whatever it is asked for.
TEST(Budget, SizesPastEveryMachineAreRefusedByName) {
  PlanRequest request = long_context();
  request.sequences = UINT32_MAX;
  EXPECT_EQ(plan(request).error().component, "history");
  request = long_context();
  request.context_tokens = UINT64_MAX;
  EXPECT_EQ(plan(request).error().code, Errc::invalid_argument);
  request = long_context();
  request.context_tokens = 1;
  request.sequences = 1 << 20;
  request.prefill_rows_max = UINT32_MAX;
  EXPECT_EQ(plan(request).error().component, "tails");
  request = long_context();
  request.demands = {{"draft", "weights", UINT64_MAX}};
  EXPECT_EQ(plan(request).error().component, "weights");
  request.demands = {{"draft", "", 1}};
  EXPECT_EQ(plan(request).error().code, Errc::invalid_argument);
  for (const char* own :
       {"resident pages", "ring", "tails", "split states", "accumulators", "workspace", "idle"}) {
    request.demands = {{"draft", own, 1 << 20}};
    const auto refused = plan(request);
    ASSERT_FALSE(refused) << own;
    EXPECT_EQ(refused.error().code, Errc::invalid_argument) << own;
    EXPECT_NE(refused.error().message.find(own), std::string::npos) << refused.error().message;
  }
  request = long_context();
  request.geometry.page_tokens = 32;
  request.geometry.layers.resize(1);
  request.geometry.layers[0].kv_heads = 1;
  request.geometry.layers[0].q_heads = 1U << 30;
  request.geometry.layers[0].head_size_v = 1U << 20;
  request.prefill_rows_max = request.prefill_rows_fixed = 1U << 14;
  EXPECT_EQ(plan(request).error().code, Errc::too_large);
  EXPECT_EQ(plan(request).error().component, "split states") << plan(request).error().message;
}

TEST(Budget, WorkspaceDoesNotGrowWithTheContext) {
  PlanRequest request = long_context();
  request.prefill_rows_fixed = 64;
  const auto near = plan(request);
  request.context_tokens = 4 * 262144;
  const auto far = plan(request);
  ASSERT_TRUE(near.has_value() && far.has_value());
  EXPECT_EQ(near->regions.states_bytes, far->regions.states_bytes);
  EXPECT_EQ(near->regions.workspace_bytes, far->regions.workspace_bytes);
  EXPECT_EQ(near->regions.slots_bytes, far->regions.slots_bytes);
}

// Attention that a backend offers in one phase only is no plan: the refusal names what is missing.
TEST(Budget, AttentionMissingInOnePhaseIsRefusedByLayerPhaseAndRows) {
  const auto refused_of = [](std::size_t layer_without, Phase phase_without) {
    PlanRequest request = long_context();
    request.prefill_rows_fixed = request.prefill_rows_max = 512;
    request.capabilities =
        [=](std::size_t layer, Phase phase, std::uint32_t) -> Result<kvspan_attention_caps_t> {
      if (layer == layer_without && phase == phase_without) {
        return tl::unexpected(error_of(Errc::unsupported, "no q8_0 x q4_0 kernel", "attention"));
      }
      return caps_of(32, 8, 0);
    };
    const auto refused = plan(request);
    EXPECT_FALSE(refused.has_value());
    return refused ? Error{Errc::internal, "planned"} : refused.error();
  };
  const Error decode = refused_of(3, Phase::decode);
  EXPECT_EQ(decode.code, Errc::unsupported);
  EXPECT_EQ(decode.message, "layer 3, decode of 1 row: no q8_0 x q4_0 kernel");
  const Error prefill = refused_of(15, Phase::prefill);
  EXPECT_EQ(prefill.code, Errc::unsupported);
  EXPECT_EQ(prefill.message, "layer 15, prefill of 512 rows: no q8_0 x q4_0 kernel");
}

TEST(Budget, WrongRequestsNameWhatIsWrong) {
  PlanRequest request = long_context();
  request.geometry.page_tokens = 48;
  auto refused = plan(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("granule of 32"), std::string::npos);
  request = long_context();
  request.decode_rows = 65;
  EXPECT_FALSE(plan(request).has_value());
  request = long_context();
  request.context_tokens = 0;
  EXPECT_FALSE(plan(request).has_value());
  request = long_context();
  request.geometry.layers.clear();
  EXPECT_FALSE(plan(request).has_value());
  request = long_context();
  request.geometry.layers[3].head_size_k = 80;
  refused = plan(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("80"), std::string::npos);
}

}  // namespace
}  // namespace kvspan::test
