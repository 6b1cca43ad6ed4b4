// SPDX-License-Identifier: Apache-2.0
// The policy's placement inside a plan: exact bytes, the published run with both rules, and every
// arena between the minimum and everything.
#include "budget_requests.hpp"
#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

namespace kvspan::test {
namespace {

PlanRequest on_a_link() {
  PlanRequest request = long_context();
  request.stream.link_bytes_s = 49'200'000'000;
  request.stream.copy_ns = 2450;
  request.stream.gap_ns = 1'500'000;
  request.stream.attend_bytes_s = 4'620'000'000'000;
  request.prefill_rows_fixed = 256;
  return request;
}

std::uint64_t resident_of(const Plan& plan) {
  return std::accumulate(plan.resident_pages.begin(), plan.resident_pages.end(), 0ULL);
}

// An arena with a pool of exactly 5,484 pages for ring and residents.
PlanRequest published_run() {
  PlanRequest request = on_a_link();
  const auto least = plan(request);
  EXPECT_TRUE(least.has_value()) << least.error().message;
  request.arena_bytes = least->minimum_arena_bytes + (5484ULL - 2) * 425984 + 512;
  return request;
}

TEST(BudgetPlacing, BothRulesPlaceThePublishedRun) {
  PlanRequest request = published_run();
  request.stream.rule = PlacementRule::overlap;
  const auto theirs = plan(request);
  ASSERT_TRUE(theirs.has_value()) << theirs.error().message;
  EXPECT_EQ(theirs->ring_slots, 812U);
  EXPECT_EQ(resident_of(*theirs), 292U * 16);
  EXPECT_EQ(theirs->predicted.streamed_bytes, 11712ULL * 425984);
  request.stream.rule = PlacementRule::automatic;
  const auto ours = plan(request);
  ASSERT_TRUE(ours.has_value()) << ours.error().message;
  EXPECT_EQ(ours->ring_slots + resident_of(*ours), 5484U);
  EXPECT_LE(ours->ring_slots, 2 * ours->group_pages + 174U);  // 1.5 ms are 174 pages
  EXPECT_LE(ours->ring_slots, ring_need(step_load(request, *ours), placement_of(*ours)).pages);
  EXPECT_LT(ours->predicted.step_ns, 0.96 * theirs->predicted.step_ns);
  EXPECT_EQ(ours->predicted.streamed_bytes, (16384 - resident_of(*ours)) * 425984);
}

TEST(BudgetPlacing, WithoutALinkNothingIsPredicted) {
  PlanRequest request = published_run();
  request.stream = {};
  const auto found = plan(request);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->predicted.step_ns, 0.0);
}

// What is said of a ring by hand, where every layer streams: two groups, and what comes in gap and
// jitter; and in as much attention of residents and the last wave as takes longer than the link's
// group but for a page. Bytes and rates as they are asked for, not the model's.
std::uint64_t ring_of_formula(const PlanRequest& request, const Plan& plan) {
  const StreamOptions& stream = request.stream;
  const double page_bytes = static_cast<double>(plan.slot_bytes);
  const double attend_bytes_s = static_cast<double>(stream.attend_bytes_s);
  const double link_bytes_s = static_cast<double>(stream.link_bytes_s);
  const std::uint64_t resident =
      *std::max_element(plan.resident_pages.begin(), plan.resident_pages.end());
  const double attended_s =
      attend_bytes_s == 0.0
          ? 0.0
          : static_cast<double>(resident + plan.group_pages) * page_bytes / attend_bytes_s;
  const double group_s = static_cast<double>(plan.group_pages - 1) * page_bytes / link_bytes_s;
  const double idle_s = static_cast<double>(stream.gap_ns + stream.jitter_ns) * 1e-9 +
                        std::max(0.0, attended_s - group_s);
  return 2 * plan.group_pages +
         static_cast<std::uint64_t>(std::ceil(idle_s * link_bytes_s / page_bytes));
}

// Plans of equal layers over links, gaps, attention and arenas: no ring is above its formula.
TEST(BudgetPlacing, NoPlansRingIsAboveItsFormula) {
  std::mt19937_64 random(5160);
  const auto pick = [&](std::uint64_t low, std::uint64_t high) {
    return low + random() % (high - low + 1);
  };
  const std::uint64_t gaps[] = {0, 0, 100'000, 400'000, 1'500'000};
  const std::uint64_t attends[] = {4'620, 4'620, 1'200, 300, 60, 10, 0};
  int streaming = 0;
  int plain = 0;  // attention within a group's time
  const int rounds = KVSPAN_TEST_SANITIZED != 0 ? 40 : 600;
  for (int round = 0; round < rounds; ++round) {
    PlanRequest request = on_a_link();
    request.geometry.layers.resize(pick(1, 16));
    request.context_tokens = 256 * pick(16, 1024);
    request.stream.gap_ns = gaps[pick(0, 4)];
    request.stream.jitter_ns = pick(0, 1) * pick(0, 300'000);
    request.stream.link_bytes_s = pick(2, 60) * 1'000'000'000;
    request.stream.attend_bytes_s = attends[pick(0, 6)] * 1'000'000'000;
    SCOPED_TRACE("seed 5160, round " + std::to_string(round));
    const auto least = plan(request);
    ASSERT_TRUE(least.has_value()) << least.error().message;
    request.arena_bytes = least->minimum_arena_bytes + least->history_bytes * pick(0, 95) / 100;
    const auto found = plan(request);
    ASSERT_TRUE(found.has_value()) << found.error().message;
    if (found->mode != PlanMode::streaming) {
      continue;
    }
    ++streaming;
    const StepLoad load = step_load(request, *found);
    const Placement placement = placement_of(*found);
    const RingNeed need = ring_need(load, placement);
    ASSERT_LE(found->ring_slots, need.pages);
    ASSERT_GE(found->ring_slots, 2 * found->group_pages);
    bool all = true;
    for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
      all = all && streamed_pages(load, placement, layer) != 0;
    }
    if (!all || request.stream.attend_bytes_s < request.stream.link_bytes_s) {
      continue;  // several gaps in a stretch, or attention is the slower one
    }
    ASSERT_LE(found->ring_slots, ring_of_formula(request, *found));
    ++plain;
  }
  std::printf(
      "seed 5160: %d plans, %d that stream, %d of them by the formula\n", rounds, streaming, plain);
  EXPECT_GT(plain, rounds / 4);
}

// 262,144 tokens on three links and with two speeds of attention: the formula's pages by hand.
TEST(BudgetPlacing, FastAttentionAsksForNoMoreThanGapAndGroups) {
  struct Case {
    std::uint64_t gap_ns;
    std::uint64_t link_bytes_s;
    std::uint64_t attend_bytes_s;
    std::uint64_t most;  // ceil(link x gap / page) + 64
  };

  for (const Case& of : {Case{0, 55'400'000'000, 4'620'000'000'000, 64},
                         Case{1'500'000, 55'400'000'000, 4'620'000'000'000, 260},
                         Case{1'500'000, 49'200'000'000, 1'200'000'000'000, 238},
                         Case{400'000, 49'200'000'000, 4'620'000'000'000, 111},
                         Case{100'000, 49'200'000'000, 4'620'000'000'000, 76}}) {
    PlanRequest request = published_run();
    request.stream.gap_ns = of.gap_ns;
    request.stream.link_bytes_s = of.link_bytes_s;
    request.stream.attend_bytes_s = of.attend_bytes_s;
    const auto found = plan(request);
    ASSERT_TRUE(found.has_value()) << found.error().message;
    EXPECT_LE(found->ring_slots, of.most) << of.gap_ns << " ns, " << of.link_bytes_s;
    EXPECT_NEAR(found->predicted.step_ns, found->predicted.link_ns, 0.001 * 1e8);
  }
}

// Every arena: fits, conserves, and at one chunk width more memory is never predicted slower.
TEST(BudgetPlacing, EveryArenaOfRandomRequests) {
  std::mt19937_64 random(5150);
  const auto pick = [&](std::uint64_t low, std::uint64_t high) {
    return low + random() % (high - low + 1);
  };
  for (int round = 0; round < (KVSPAN_TEST_SANITIZED != 0 ? 10 : 150); ++round) {
    PlanRequest request = on_a_link();
    request.geometry.layers.resize(pick(1, 5));
    request.geometry.layers.back().window_tokens = pick(0, 2) == 0 ? 3000 : 0;
    request.geometry.layers.front().v_type = KVSPAN_TYPE_F16;
    request.geometry.page_tokens = 64;
    if (pick(0, 1) == 0) {  // pages that no region's alignment divides
      for (LayerGeometry& layer : request.geometry.layers) {
        layer.head_size_k = layer.head_size_v = 32;
        layer.kv_heads = 1;
      }
      request.geometry.page_tokens = 32;
    }
    request.geometry.alignment = pick(0, 1) == 0 ? 128 : 1;
    request.context_tokens = pick(1, 30000);
    request.sequences = static_cast<std::uint32_t>(pick(1, 3));
    request.stream.gap_ns = pick(0, 1) * pick(0, 1'000'000);
    request.stream.wave_ns = pick(0, 20'000);
    request.prefill_rows_fixed = static_cast<std::uint32_t>(pick(1, 128));
    SCOPED_TRACE("seed 5150, round " + std::to_string(round));
    const auto least = plan(request);
    ASSERT_TRUE(least.has_value()) << least.error().message;
    double before_ns = least->predicted.step_ns;
    for (request.arena_bytes = least->minimum_arena_bytes;
         request.arena_bytes < least->minimum_arena_bytes + least->history_bytes * 5 / 4;
         request.arena_bytes += pick(1, least->history_bytes / 6 + 1)) {
      const auto found = plan(request);
      ASSERT_TRUE(found.has_value()) << found.error().message;
      ASSERT_LE(found->total_bytes(), request.arena_bytes);
      ASSERT_LE(found->predicted.step_ns, before_ns * (1.0 + 1e-9)) << request.arena_bytes;
      before_ns = found->predicted.step_ns;
      if (found->mode == PlanMode::streaming) {
        ASSERT_GE(found->ring_slots, 2 * found->group_pages);
      }
    }
  }
}

TEST(BudgetPlacing, TheOverlapRuleRefusesWhatItDoesNotKnow) {
  PlanRequest request = published_run();
  request.stream.rule = PlacementRule::overlap;
  request.sequences = 2;
  EXPECT_NE(plan(request).error().message.find("1 sequence"), std::string::npos);
  request.sequences = 1;
  request.geometry.layers[5].v_type = KVSPAN_TYPE_F16;
  EXPECT_NE(plan(request).error().message.find("layer 5"), std::string::npos);
  request = published_run();
  request.stream.rule = PlacementRule::overlap;
  request.stream.link_bytes_s = 0;
  EXPECT_EQ(plan(request).error().code, Errc::invalid_argument);
}

// A session runs what the policy and the overlap rule place, with the bits of the resident run.
TEST(BudgetPlacing, SessionsRunWhatIsPlaced) {
  const auto run = [](const SessionOptions& options, Counters* counters) {
    StubRig rig({{"queues", "shuffled"}, {"seed", "11"}});
    auto session = Session::open(rig.backend(), options);
    EXPECT_TRUE(session.has_value()) << session.error().message;
    Outputs outputs;
    const SequenceId sequence = *session->add_sequence();
    Engine engine(rig.backend(), *session, options, 16);
    EXPECT_TRUE(engine.prefill(sequence, 1, 0, 170, 11, &outputs).has_value());
    EXPECT_TRUE(engine.decode(sequence, 1, 170, 190, &outputs).has_value());
    *counters = session->counters();
    return outputs;
  };
  SessionOptions options = small_options();
  options.geometry.layers[1] = options.geometry.layers[0];
  options.prefill_rows_fixed = 11;
  options.arena_bytes = kResidentArena;
  Counters counters;
  const Outputs expected = run(options, &counters);
  EXPECT_EQ(counters.streamed_pages, 0U);
  StubRig rig;
  const PlanRequest request = plan_request(rig.backend(), options);
  options.stream.link_bytes_s = 1'000'000;
  options.stream.gap_ns = 2'000'000;
  const std::uint64_t least = plan(request)->minimum_arena_bytes;
  for (const PlacementRule rule : {PlacementRule::automatic, PlacementRule::overlap}) {
    options.stream.rule = rule;
    for (std::uint64_t pages = 3; pages < 40; pages += 5) {
      SCOPED_TRACE(pages);
      options.arena_bytes = least + pages * 768 + 512;
      EXPECT_TRUE(same_bits(run(options, &counters), expected));
      EXPECT_GT(counters.streamed_pages, 0U);
    }
  }
}

}  // namespace
}  // namespace kvspan::test
