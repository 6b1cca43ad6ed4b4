// SPDX-License-Identifier: Apache-2.0
// What a prefill on cpu holds and moves, counted: the ring against its formula, the streaming state
// from a short context to one of a million tokens, and arenas of ten sizes. The link is the plan's
// model: rates are never measured here.
#include "engine_rig.hpp"
#include "random_page.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kArenaPoints = 10;

SessionOptions options_of(std::uint64_t context_tokens) {
  SessionOptions options;
  options.geometry.layers.assign(3, {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 32, 32, 1, 2});
  options.geometry.page_tokens = 64;
  options.context_tokens = context_tokens;
  options.prefill_rows_fixed = options.prefill_rows_max = 128;
  options.stream.link_bytes_s = 2'000'000'000;
  options.stream.copy_ns = 2000;
  options.stream.gap_ns = 20'000;
  options.stream.jitter_ns = 3'000;
  options.stream.row_ns = 500;
  options.stream.row_bytes_s = 100'000'000'000;
  return options;
}

Plan planned(const Backend& backend, const SessionOptions& options, std::uint64_t arena_bytes) {
  PlanRequest request = plan_request(backend, options);
  request.arena_bytes = arena_bytes;
  auto found = plan(request);
  EXPECT_TRUE(found.has_value()) << found.error().message;
  return *found;
}

struct Ran {
  Counters counters;
  Plan plan;
  std::uint32_t slots_most = 0;  // in flight at once, seen between layers
};

// The last `rows` tokens but four of a context of which the others are loaded, then 4 decode steps.
Ran run_end(const Backend& backend, const SessionOptions& options, std::uint32_t rows) {
  Ran out;
  auto session = Session::open(backend, options);
  EXPECT_TRUE(session.has_value()) << session.error().message;
  const SequenceId sequence = *session->add_sequence();
  const std::uint64_t loaded = (options.context_tokens - rows - 4) / 64 * 64;
  EXPECT_TRUE(session->load(sequence, loaded, random_page).has_value());
  Engine engine(backend, *session, options, 128);
  engine.before_commit(
      [&] { out.slots_most = std::max(out.slots_most, session->counters().slots_in_flight); });
  const std::uint64_t end = loaded + rows;
  EXPECT_TRUE(engine.prefill(sequence, 1, loaded, end, 128, nullptr).has_value());
  EXPECT_TRUE(engine.decode(sequence, 1, end, end + 4, nullptr).has_value());
  out.counters = session->counters();
  out.plan = session->plan();
  return out;
}

// Two groups, and what arrives in gap and jitter: 2 GB/s for 23 us are 46,000 bytes, 14 pages of
// 3,328.
TEST(PrefillArena, TheRingKeepsToItsFormulaInEveryArena) {
  const StubRig rig(StubRig::Plugin{"cpu"});
  const SessionOptions options = options_of(8192);
  const Plan least = planned(rig.backend(), options, 0);
  for (std::uint64_t point = 0; point < kArenaPoints; ++point) {
    const Plan found = planned(
        rig.backend(), options, least.minimum_arena_bytes + least.history_bytes * point / 10);
    ASSERT_EQ(found.slot_bytes, 3328U);
    EXPECT_LE(found.ring_slots, 2 * found.group_pages + 14) << point;
  }
}

// Nothing resident; the last `rows` tokens and four more are computed, since each walks over all.
Ran run_streamed(const Backend& backend, SessionOptions options, std::uint32_t rows) {
  SCOPED_TRACE(std::to_string(options.context_tokens) + " tokens");
  options.stream.resident_pages_max = 0;
  options.arena_bytes = planned(backend, options, 0).minimum_arena_bytes + 64 * 3328;
  Ran ran = run_end(backend, options, rows);
  EXPECT_GT(ran.slots_most, 0U);
  EXPECT_LE(ran.slots_most, ran.plan.ring_slots);
  EXPECT_EQ(ran.counters.resident_attended_pages, 0U);
  return ran;
}

// The streaming state knows no context.
void expect_the_same_state(const Ran& near, const Ran& far) {
  EXPECT_EQ(near.counters.device_bytes_high_water, far.counters.device_bytes_high_water);
  EXPECT_EQ(near.plan.regions.total_bytes(), far.plan.regions.total_bytes());
  EXPECT_EQ(near.plan.regions.scratch_bytes(), far.plan.regions.scratch_bytes());
  EXPECT_EQ(near.plan.ring_slots, far.plan.ring_slots);
  EXPECT_EQ(near.slots_most, far.slots_most);
}

TEST(PrefillArena, TheHighWaterIsTheSameAtEveryContext) {
  const StubRig rig(StubRig::Plugin{"cpu"});
  const Ran near = run_streamed(rig.backend(), options_of(8192), 256);
  const Ran far = run_streamed(rig.backend(), options_of(32768), 256);
  expect_the_same_state(near, far);
  EXPECT_GT(far.counters.streamed_bytes, 3 * near.counters.streamed_bytes);
}

// 32K and 1M tokens, of one layer and few rows; a sanitizer sees no more in a million.
TEST(PrefillArena, TheHighWaterIsTheSameAtAMillionTokens) {
  const StubRig rig(StubRig::Plugin{"cpu"});
  const auto run = [&](std::uint64_t context_tokens) {
    SessionOptions options = options_of(context_tokens);
    options.geometry.layers = {{KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 32, 32, 1, 1}};
    return run_streamed(rig.backend(), options, 8);
  };
  const Ran near = run(32768);
  const Ran far = run(KVSPAN_TEST_SANITIZED != 0 ? 65536 : 1 << 20);
  expect_the_same_state(near, far);
  EXPECT_GT(far.counters.streamed_bytes, near.counters.streamed_bytes);
}

// A whole prompt in ten arenas of one chunk: no more bytes up than in the one before, the same
// bytes down, each page once, and never predicted slower; nor a tenth above work or link alone.
TEST(PrefillArena, LargerArenasNeverMoveMoreNorArePredictedSlower) {
  const StubRig rig(StubRig::Plugin{"cpu"});
  SessionOptions options = options_of(2048);
  const Plan least = planned(rig.backend(), options, 0);
  std::uint64_t before_bytes = UINT64_MAX;
  double before_ns = 1e300;
  double before_step_ns = 1e300;
  for (std::uint64_t point = 0; point < kArenaPoints; ++point) {
    SCOPED_TRACE("arena " + std::to_string(point));
    options.arena_bytes = least.minimum_arena_bytes + least.history_bytes * point / 9;
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    Engine engine(rig.backend(), *session, options, 128);
    ASSERT_TRUE(engine.prefill(*session->add_sequence(), 1, 0, 2048, 128, nullptr).has_value());
    const Counters counters = session->counters();
    const Plan& plan = session->plan();
    EXPECT_EQ(counters.streamed_bytes, plan.prompt.as_placed.up_bytes);
    EXPECT_EQ(counters.published_bytes, plan.history_bytes);
    EXPECT_EQ(counters.refetched_tail_bytes + counters.primed_pages_dropped, 0U);
    EXPECT_LE(counters.streamed_bytes, before_bytes);
    EXPECT_LE(plan.prompt.time.time_ns,
              1.1 * std::max(plan.prompt.time.work_ns, plan.prompt.time.link_ns));
    EXPECT_LE(plan.prompt.time.time_ns, before_ns * (1.0 + 1e-9));
    EXPECT_LE(plan.predicted.step_ns, before_step_ns * (1.0 + 1e-9));
    before_bytes = counters.streamed_bytes;
    before_ns = plan.prompt.time.time_ns;
    before_step_ns = plan.predicted.step_ns;
  }
  EXPECT_EQ(before_bytes, 0U);  // the last arena holds everything
}

}  // namespace
}  // namespace kvspan::test
