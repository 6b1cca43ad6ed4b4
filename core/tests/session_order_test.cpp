// SPDX-License-Identifier: Apache-2.0
// Decode with history fetched round robin over the splits, on the stub and on cpu: whatever the
// group, the ring, the width and the length, outputs have the bits of the resident run, the bytes
// on the link are those of the pages that are not resident, and the link has work between steps.
#include "decode_options.hpp"
#include "engine_rig.hpp"
#include "random_page.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kContext = 3000;

struct Decoded {
  Outputs outputs;
  Counters counters;
  Plan plan;
};

// `steps` steps of `width` rows behind a loaded history; accepts all rows but those told.
Decoded decode(const StubRig& rig,
               const SessionOptions& options,
               std::uint64_t tokens,
               std::uint32_t steps,
               std::uint32_t rejected = 0) {
  Decoded out;
  auto session = Session::open(rig.backend(), options);
  EXPECT_TRUE(session.has_value()) << session.error().message;
  const SequenceId sequence = *session->add_sequence();
  const auto loaded = session->load(sequence, tokens, random_page);
  EXPECT_TRUE(loaded.has_value()) << loaded.error().message;
  Engine engine(rig.backend(), *session, options, options.decode_rows);
  for (std::uint32_t step = 0; step < steps; ++step) {
    const std::uint64_t at = *session->tokens(sequence);
    const auto done = engine.step(
        {{sequence, 7, at, options.decode_rows}}, Phase::decode, &out.outputs, rejected);
    EXPECT_TRUE(done.has_value()) << done.error().message;
  }
  out.counters = session->counters();
  out.plan = session->plan();
  return out;
}

std::uint64_t minimum_arena(const Backend& backend, const SessionOptions& options) {
  return plan(plan_request(backend, options))->minimum_arena_bytes;
}

// The link's bytes of `steps` steps behind `tokens` tokens, all rows accepted. No layer has padding
// in its pages; windows leave out whole pages, and rows of splits that nobody sees.
std::uint64_t pages_behind(const Plan& plan,
                           const SessionOptions& options,
                           std::size_t layer,
                           std::uint64_t tokens) {
  const std::uint64_t window = options.geometry.layers[layer].window_tokens;
  const std::uint64_t first = window == 0 || tokens + 1 <= window ? 0 : (tokens + 1 - window) / 64;
  const std::uint64_t begin = std::max<std::uint64_t>(first, plan.resident_pages[layer]);
  return tokens / 64 > begin ? tokens / 64 - begin : 0;
}

class Ordered : public testing::TestWithParam<const char*> {};

TEST_P(Ordered, EveryGroupWidthAndLengthHasTheBitsOfTheResidentRun) {
  std::mt19937_64 random(51);
  const auto pick = [&](std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
  };
  for (int round = 0; round < seeds(40); ++round) {
    const auto width = static_cast<std::uint32_t>(round % 3 == 0 ? 1 : pick(1, 40));
    const std::uint64_t tokens = pick(1, 2600);
    SessionOptions options = decode_options(width, kContext);
    SCOPED_TRACE("seed 51, round " + std::to_string(round) + ", width " + std::to_string(width) +
                 ", " + std::to_string(tokens) + " tokens");
    const StubRig rig(StubRig::Plugin{GetParam()});
    const Decoded expected = decode(rig, options, tokens, 4);
    ASSERT_EQ(expected.plan.mode, PlanMode::resident);
    const std::uint64_t least = minimum_arena(rig.backend(), options);
    options.stream.group_pages = static_cast<std::uint32_t>(pick(0, 9));
    options.stream.resident_pages_max = static_cast<std::uint32_t>(pick(0, 12));
    options.arena_bytes = least + pick(0, 40) * 10000;
    const Decoded streamed = decode(rig, options, tokens, 4);
    ASSERT_TRUE(same_bits(streamed.outputs, expected.outputs));
    std::uint64_t pages = 0;
    std::uint64_t bytes = 0;
    for (std::uint64_t step = 0; step < 4; ++step) {
      for (std::size_t layer = 0; layer < 3; ++layer) {
        const std::uint64_t count =
            pages_behind(streamed.plan, options, layer, tokens + step * width);
        pages += count;
        bytes += count * streamed.plan.pages[layer].page_bytes;
      }
    }
    EXPECT_EQ(streamed.counters.streamed_pages, pages);
    EXPECT_EQ(streamed.counters.streamed_bytes, bytes);
    EXPECT_LE(streamed.counters.device_bytes_high_water, options.arena_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Ordered, testing::Values("stub", "cpu"));

// Every order of the stub's scheduler, with the smallest rings.
TEST(SessionOrder, EverySchedulerOrderGivesTheSameBits) {
  SessionOptions options = decode_options(3, kContext);
  options.context_tokens = 1200;
  StubRig calm;
  const Decoded expected = decode(calm, options, 1100, 3);
  options.arena_bytes = minimum_arena(calm.backend(), options);
  for (int seed = 1; seed <= seeds(60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    StubRig rig({{"queues", "shuffled"}, {"seed", std::to_string(seed)}});
    options.stream.group_pages = static_cast<std::uint32_t>(seed % 5);
    options.lanes.waits = seed % 2 == 0 ? WaitMode::strict : WaitMode::normal;
    options.arena_bytes += static_cast<std::uint64_t>(seed % 4) * 5000;
    ASSERT_TRUE(same_bits(decode(rig, options, 1100, 3).outputs, expected.outputs));
  }
}

// Rows that are not accepted: the next step begins where the accepted ones end, and what was
// fetched ahead for another length is not used.
TEST(SessionOrder, RejectedRowsGiveTheBitsOfTheResidentRun) {
  for (const std::uint32_t rejected : {1U, 5U, 9U}) {
    SCOPED_TRACE("rejected " + std::to_string(rejected));
    SessionOptions options = decode_options(9, kContext);
    StubRig rig({{"queues", "shuffled"}, {"seed", "3"}});
    const Decoded expected = decode(rig, options, 1530, 8, rejected);
    options.stream.resident_pages_max = 2;
    options.arena_bytes = minimum_arena(rig.backend(), options) + 60000;
    EXPECT_TRUE(same_bits(decode(rig, options, 1530, 8, rejected).outputs, expected.outputs));
  }
}

// The next step's first groups are fetched while this one's last layer computes, before commit, and
// are those that the next step wants.
TEST(SessionOrder, TheNextStepsFirstGroupsAreFetchedBeforeTheCommit) {
  SessionOptions options = decode_options(1, kContext);
  options.stream.group_pages = 4;
  options.stream.resident_pages_max = 0;
  StubRig rig;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  ASSERT_EQ(session->plan().ring_slots, 8U);
  const SequenceId sequence = *session->add_sequence();
  ASSERT_TRUE(session->load(sequence, 2000, random_page).has_value());
  Engine engine(rig.backend(), *session, options, 1);
  for (std::uint64_t token = 2000; token < 2040; ++token) {
    std::uint32_t in_flight = 0;
    engine.before_commit([&] { in_flight = session->counters().slots_in_flight; });
    ASSERT_TRUE(engine.step({{sequence, 7, token, 1}}, Phase::decode, nullptr).has_value());
    EXPECT_EQ(in_flight, 8U);
  }
  EXPECT_EQ(session->counters().primed_pages_dropped, 0U);
}

}  // namespace
}  // namespace kvspan::test
