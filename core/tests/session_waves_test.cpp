// SPDX-License-Identifier: Apache-2.0
// How a layer's attention is cut into submits: one where the ring holds what a sequence streams
// beside as much again and what follows, else a wave a group. Calls are counted in front of the
// stub and of cpu; whatever the cut, outputs have the bits of the resident run.
#include "decode_options.hpp"
#include "engine_rig.hpp"
#include "random_page.hpp"
#include "watched_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace kvspan::test {
namespace {

// r: run, a: advance, f: fold, F: finish, u: a copy up, e: encode, d: a copy down.
struct Watch {
  bool is_on = false;
  std::string calls;
  std::uint64_t segments_up = 0;
};

Watch& watch() {
  static Watch seen;
  return seen;
}

void note(char what) {
  if (watch().is_on) {
    watch().calls.push_back(what);
  }
}

kvspan_result_t run(kvspan_queue_t* queue,
                    const kvspan_attention_args_t* args,
                    const kvspan_submit_t* submit,
                    kvspan_error_t* error) noexcept {
  note('r');
  return WatchedRig::inner().attention->run(queue, args, submit, error);
}

kvspan_result_t advance(kvspan_queue_t* queue,
                        const kvspan_attention_args_t* args,
                        const kvspan_advance_item_t* items,
                        std::uint32_t count,
                        const kvspan_submit_t* submit,
                        kvspan_error_t* error) noexcept {
  note('a');
  return WatchedRig::inner().attention->advance(queue, args, items, count, submit, error);
}

kvspan_result_t fold(kvspan_queue_t* queue,
                     const kvspan_attention_args_t* args,
                     const kvspan_fold_item_t* items,
                     std::uint32_t count,
                     const kvspan_submit_t* submit,
                     kvspan_error_t* error) noexcept {
  note('f');
  return WatchedRig::inner().attention->fold(queue, args, items, count, submit, error);
}

kvspan_result_t finish(kvspan_queue_t* queue,
                       const kvspan_attention_args_t* args,
                       const kvspan_state_t* accumulators,
                       const kvspan_submit_t* submit,
                       kvspan_error_t* error) noexcept {
  note('F');
  return WatchedRig::inner().attention->finish(queue, args, accumulators, submit, error);
}

void see(std::span<const kvspan_segment_t> segments) {
  if (!segments.empty()) {
    const bool up = WatchedRig::goes_up(segments.front());
    note(up ? 'u' : 'd');
    watch().segments_up += up ? segments.size() : 0;
  }
}

// A plugin whose calls are seen.
class CountingRig : public WatchedRig {
 public:
  explicit CountingRig(const std::string& plugin) : WatchedRig(plugin, see) {
    attention().run = run;
    attention().advance = advance;
    attention().fold = fold;
    attention().finish = finish;
  }
};

SessionOptions options_of(std::uint32_t width, std::uint32_t group_pages, std::uint32_t ring) {
  SessionOptions options = decode_options(width, 2200);
  options.stream.group_pages = group_pages;
  // A second of a link of one slot a second holds one slot more.
  constexpr std::uint64_t kSlotBytes = 64ULL * 2 * 2 * 32 * 2;
  options.stream.link_bytes_s = kSlotBytes * 1000;
  options.stream.gap_ns = (ring - 2 * group_pages) * 1'000'000ULL;
  return options;
}

struct Decoded {
  Outputs outputs;
  Counters counters;
  std::string calls;  // of the last step, encodes left out
  Plan plan;
};

Decoded decode(const CountingRig& rig, const SessionOptions& options, std::uint64_t tokens) {
  Decoded out;
  auto session = Session::open(rig.backend(), options);
  EXPECT_TRUE(session.has_value()) << session.error().message;
  const kvspan_memory_t* const arena = WatchedRig::arena();
  const SequenceId sequence = *session->add_sequence();
  EXPECT_TRUE(session->load(sequence, tokens, random_page).has_value());
  Engine engine(rig.backend(), *session, options, options.decode_rows);
  WatchedRig::set_arena(arena);
  for (int step = 0; step < 3; ++step) {
    watch().calls.clear();
    watch().is_on = true;
    engine.before_commit([] { watch().is_on = false; });
    const auto done = engine.step({{sequence, 7, *session->tokens(sequence), options.decode_rows}},
                                  Phase::decode,
                                  &out.outputs);
    EXPECT_TRUE(done.has_value()) << done.error().message;
  }
  watch().is_on = false;
  out.calls = watch().calls;
  out.counters = session->counters();
  out.plan = session->plan();
  return out;
}

std::size_t count(const Decoded& decoded, char what) {
  return static_cast<std::size_t>(std::count(decoded.calls.begin(), decoded.calls.end(), what));
}

// 1,280 tokens: 20 pages in the layers that see all; 11 or 12 in the window's.
TEST(SessionWaves, WhatFitsTheRingTwiceIsOneSubmit) {
  CountingRig rig("stub");
  SessionOptions options = options_of(1, 4, 60);
  options.stream.resident_pages_max = 3;
  const Decoded at_once = decode(rig, options, 1280);
  ASSERT_EQ(at_once.plan.ring_slots, 60U);
  EXPECT_EQ(count(at_once, 'r'), 3U) << at_once.calls;
  EXPECT_EQ(count(at_once, 'a') + count(at_once, 'f') + count(at_once, 'F'), 0U) << at_once.calls;
}

TEST(SessionWaves, ARingOfTwoGroupsIsWalkedGroupByGroup) {
  CountingRig rig("stub");
  SessionOptions options = options_of(1, 4, 8);
  options.stream.resident_pages_max = 3;
  const Decoded waves = decode(rig, options, 1280);
  ASSERT_EQ(waves.plan.ring_slots, 8U);
  EXPECT_EQ(count(waves, 'r'), 0U) << waves.calls;
  EXPECT_EQ(count(waves, 'F'), 3U) << waves.calls;
  // A wave at least for each four of 17, 17 and 8 pages and more.
  EXPECT_GE(count(waves, 'a'), 5U + 5U + 2U) << waves.calls;
}

// Residents take no submit of their own: they go with the waves, whether splits are whole tiles or,
// as with tiles of 64 of a backend that cuts finer, end in the midst of one.
TEST(SessionWaves, ResidentsAreDealtOutOverTheWaves) {
  CountingRig rig("stub");
  SessionOptions options = options_of(1, 4, 8);
  options.geometry.layers.resize(1);
  options.geometry.tile_tokens_max = 1;
  options.stream.resident_pages_max = 0;
  const Decoded none = decode(rig, options, 1280);
  options.stream.resident_pages_max = 9;
  const Decoded dealt = decode(rig, options, 1280);
  ASSERT_EQ(dealt.plan.resident_pages.front(), 9U);
  EXPECT_TRUE(same_bits(dealt.outputs, none.outputs));
  // A wave a group of four of 20 pages, and of 11 pages, a page in two splits being two units.
  EXPECT_EQ(count(dealt, 'a'), count(dealt, 'u')) << dealt.calls;
  options.geometry.tile_tokens_max = 64;
  const Decoded coarse = decode(rig, options, 1280);
  options.stream.resident_pages_max = 0;
  EXPECT_TRUE(same_bits(coarse.outputs, decode(rig, options, 1280).outputs));
  EXPECT_EQ(count(coarse, 'a'), count(coarse, 'u')) << coarse.calls;
}

// The ring that just holds a layer twice is enough; with a slot less there are waves.
TEST(SessionWaves, TheRuleHoldsToTheSlot) {
  CountingRig rig("stub");
  const auto with = [&](std::uint32_t ring) {
    SessionOptions options = options_of(1, 1, ring);
    options.geometry.layers.resize(1);
    options.stream.resident_pages_max = 4;
    options.stream.link_bytes_s = 64ULL * 2 * (34 + 18) * 1000;
    Decoded decoded = decode(rig, options, 1281);
    EXPECT_EQ(decoded.plan.ring_slots, ring);
    return decoded;
  };
  const Decoded least = with(2);
  // A copy a unit, of which pages in two splits have two.
  const auto units = static_cast<std::uint32_t>(count(least, 'u'));
  ASSERT_GE(units, 16U);
  const Decoded one_less = with(2 * units - 1);
  EXPECT_EQ(count(one_less, 'r'), 0U) << one_less.calls;
  const Decoded enough = with(2 * units);
  EXPECT_EQ(count(enough, 'r'), 1U) << enough.calls;
  // Two groups a copy: no wave waits for the first of them.
  EXPECT_EQ(count(one_less, 'u'), units) << one_less.calls;
  EXPECT_EQ(count(enough, 'u'), (units + 1) / 2) << enough.calls;
  EXPECT_TRUE(same_bits(one_less.outputs, least.outputs));
  EXPECT_TRUE(same_bits(enough.outputs, least.outputs));
}

kvspan_result_t query_of_short_lists(kvspan_device_t* device,
                                     const kvspan_attention_shape_t* shape,
                                     kvspan_attention_caps_t* out,
                                     kvspan_error_t* error) noexcept {
  const kvspan_result_t result = WatchedRig::inner().attention->query(device, shape, out, error);
  out->span_pages_max = 6;
  return result;
}

// A wave of four pages of four tiles, and one submit of twenty, list more than six tiles.
TEST(SessionWaves, NoSpanListsMoreThanTheBackendTakes) {
  CountingRig rig("stub");
  for (const std::uint32_t ring : {8U, 60U}) {
    SessionOptions options = options_of(1, 4, ring);
    options.geometry.tile_tokens_max = 16;
    options.checks = Checks::calls;
    options.stream.resident_pages_max = 3;
    rig.attention().query = WatchedRig::inner().attention->query;
    const Decoded whole = decode(rig, options, 1280);
    rig.attention().query = query_of_short_lists;
    const Decoded cut = decode(rig, options, 1280);
    EXPECT_TRUE(same_bits(cut.outputs, whole.outputs)) << ring;
  }
}

// Nobody waits for copies that only refill the ring: they come behind what completes the outputs.
TEST(SessionWaves, OutputsAreSubmittedBeforeTheLastSlotsAreFilledAgain) {
  CountingRig rig("stub");
  for (const std::uint32_t ring : {8U, 60U}) {
    SessionOptions options = options_of(1, 4, ring);
    options.stream.resident_pages_max = 3;
    const Decoded decoded = decode(rig, options, 1280);
    for (std::size_t at = 0; at < decoded.calls.size(); ++at) {
      if (decoded.calls[at] == 'F') {
        // Backwards over folds to the last wave: no copy in between.
        std::size_t before = at;
        while (before != 0 && decoded.calls[before] != 'a') {
          EXPECT_NE(decoded.calls[before], 'u') << decoded.calls;
          --before;
        }
      }
    }
    EXPECT_GT(count(decoded, 'u'), 0U) << decoded.calls;
  }
}

// Pages of a layer that follow each other lie so on the host, up to the end of a chunk of 16, and
// in the ring: one segment of a copy.
TEST(SessionWaves, NeighboursComeInOneSegment) {
  CountingRig rig("stub");
  for (const std::uint32_t group : {7U, 16U, 32U}) {
    SCOPED_TRACE("groups of " + std::to_string(group));
    SessionOptions options = options_of(1, group, 2 * group);
    options.geometry.layers.resize(1);
    options.context_tokens = 20000;
    options.stream.resident_pages_max = 0;
    watch().segments_up = 0;
    const Decoded decoded = decode(rig, options, 256 * 64);
    ASSERT_TRUE(decoded.counters.streamed_pages >= 3 * 256U);
    const std::uint64_t run = std::max(1U, group / 8);
    // A run may end with a chunk, with the ring, with a split, and with a group.
    EXPECT_LE(watch().segments_up, decoded.counters.streamed_pages * 2 / run + 3 * 70);
    EXPECT_GE(watch().segments_up, decoded.counters.streamed_pages / run / 2);
  }
}

class Cut : public testing::TestWithParam<const char*> {};

TEST_P(Cut, EveryRingHasTheBitsOfTheResidentRunAndTheSameCounters) {
  std::mt19937_64 random(61);
  const auto pick = [&](std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
  };
  std::size_t at_once = 0;
  std::size_t in_waves = 0;
  for (int round = 0; round < seeds(60); ++round) {
    const auto width = static_cast<std::uint32_t>(round % 2 == 0 ? 1 : pick(1, 20));
    const std::uint64_t tokens = pick(64, 2100);
    const auto group = static_cast<std::uint32_t>(pick(1, 6));
    const auto ring = static_cast<std::uint32_t>(pick(2 * group, 90));
    SCOPED_TRACE("seed 61, round " + std::to_string(round) + ", width " + std::to_string(width) +
                 ", " + std::to_string(tokens) + " tokens, groups of " + std::to_string(group) +
                 ", ring " + std::to_string(ring));
    const CountingRig rig(GetParam());
    SessionOptions options = options_of(width, group, ring);
    SessionOptions all = options;
    all.stream = {};
    const Decoded expected = decode(rig, all, tokens);
    ASSERT_EQ(expected.plan.mode, PlanMode::resident);
    options.stream.resident_pages_max = static_cast<std::uint32_t>(pick(0, 9));
    const Decoded streamed = decode(rig, options, tokens);
    ASSERT_TRUE(same_bits(streamed.outputs, expected.outputs));
    EXPECT_EQ(streamed.counters.attended_pages, expected.counters.attended_pages);
    options.stream.link_bytes_s = 0;  // two groups
    const Decoded least = decode(rig, options, tokens);
    ASSERT_TRUE(same_bits(least.outputs, expected.outputs));
    EXPECT_EQ(streamed.counters.streamed_pages, least.counters.streamed_pages);
    EXPECT_EQ(streamed.counters.streamed_bytes, least.counters.streamed_bytes);
    at_once += count(streamed, 'r');
    in_waves += count(least, 'F');
  }
  EXPECT_GT(at_once, 0U);
  EXPECT_GT(in_waves, 0U);
}

INSTANTIATE_TEST_SUITE_P(Backends, Cut, testing::Values("stub", "cpu"));

}  // namespace
}  // namespace kvspan::test
