// SPDX-License-Identifier: Apache-2.0
// The chunk that a plan chooses for prefill, and why: the narrowest whose work covers the stream,
// as far as the arena allows; every arena; and sessions that move what the plan predicted.
#include "budget_requests.hpp"
#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace kvspan::test {
namespace {

// The published geometry on a link of 49.2 GB/s: a row attends 20 TB/s of K/V, and takes 40 us of
// other work.
PromptTime time_of(const PlanRequest& request) {
  const auto found = plan(request);
  EXPECT_TRUE(found.has_value()) << found.error().message;
  return found->prompt.time;
}

PlanRequest on_a_link() {
  PlanRequest request = long_context();
  request.stream.link_bytes_s = 49'200'000'000;
  request.stream.copy_ns = 2450;
  request.stream.row_ns = 40'000;
  request.stream.row_bytes_s = 20'000'000'000'000;
  request.prefill_rows_max = 8192;
  request.arena_bytes = 5'000'000'000;
  return request;
}

TEST(BudgetChunk, TheNarrowestThatCoversTheStream) {
  PlanRequest request = on_a_link();
  const auto found = plan(request);
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_EQ(found->prompt.limit, ChunkLimit::work) << found->prompt.why;
  EXPECT_TRUE(found->prompt.time.covered());
  EXPECT_NE(found->prompt.why.find("the narrowest whose work covers the stream"),
            std::string::npos);
  request.prefill_rows_fixed = found->prefill_rows / 2;
  EXPECT_FALSE(time_of(request).covered());
  EXPECT_GT(time_of(request).time_ns, found->prompt.time.time_ns);
  request.prefill_rows_fixed = found->prefill_rows;
  EXPECT_EQ(time_of(request).time_ns, found->prompt.time.time_ns);
}

TEST(BudgetChunk, EachLimitIsNamed) {
  const auto limit = [](const PlanRequest& request) {
    const auto found = plan(request);
    EXPECT_TRUE(found.has_value()) << found.error().message;
    EXPECT_NE(found->prompt.why.find("chunks of " + std::to_string(found->prefill_rows) + " rows"),
              std::string::npos);
    return std::string(name(found->prompt.limit));
  };
  PlanRequest request = on_a_link();
  EXPECT_EQ(limit(request), "work");
  request.prefill_rows_max = 64;
  EXPECT_EQ(limit(request), "asked");
  request = on_a_link();
  request.prefill_rows_fixed = 512;
  EXPECT_EQ(limit(request), "asked");
  request = on_a_link();
  request.stream.row_ns = 1;
  request.stream.row_bytes_s = 1'000'000'000'000'000;
  request.arena_bytes = 400'000'000;
  EXPECT_EQ(limit(request), "arena");
  request.arena_bytes = 8'000'000'000;
  EXPECT_EQ(limit(request), "nothing streams");
  request = on_a_link();
  request.geometry.page_tokens = 32;
  request.context_tokens = 300;
  request.stream.row_ns = 1;
  request.stream.row_bytes_s = 0;
  request.stream.resident_pages_max = 1;
  request.arena_bytes = 800'000'000;
  EXPECT_EQ(limit(request), "prompt");
}

// Without a time for rows nothing is compared: the widest, as ever, but its traffic is told.
TEST(BudgetChunk, WithoutRowsTheWidestAndWithoutALinkNothing) {
  PlanRequest request = on_a_link();
  request.stream.row_ns = request.stream.row_bytes_s = 0;
  const auto found = plan(request);
  ASSERT_TRUE(found.has_value());
  PlanRequest without = request;
  without.stream = {};
  const auto plain = plan(without);
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(found->prefill_rows, plain->prefill_rows);
  EXPECT_GT(found->prompt.time.up_bytes, 0U);
  EXPECT_EQ(plain->prompt.time.up_bytes, 0U);
  EXPECT_TRUE(plain->prompt.why.empty());
}

// A random machine and geometry.
PlanRequest random_request(std::mt19937_64& random) {
  const auto pick = [&](std::uint64_t low, std::uint64_t high) {
    return low + random() % (high - low + 1);
  };
  PlanRequest request = on_a_link();
  request.geometry.layers.resize(pick(1, 5));
  request.geometry.layers.back().window_tokens = pick(0, 2) == 0 ? 3000 : 0;
  request.geometry.layers.front().v_type = KVSPAN_TYPE_F16;
  request.geometry.page_tokens = 64;
  request.context_tokens = pick(1000, 30000);
  request.sequences = static_cast<std::uint32_t>(pick(1, 3));
  request.decode_rows = static_cast<std::uint32_t>(pick(1, 8));
  request.prefill_rows_max = 4096;
  request.stream.gap_ns = pick(0, 1) * pick(0, 1'000'000);
  request.stream.wave_ns = pick(0, 1) * pick(0, 20'000);
  request.stream.attend_bytes_s = pick(0, 1) * 4'620'000'000'000;
  request.stream.row_ns = pick(0, 2) * pick(1, 20'000);
  request.stream.row_bytes_s = pick(1, 40) * 1'000'000'000'000;
  return request;
}

// Against every width of the ladder at the same arena: none is faster, and narrower ones are
// slower.
TEST(BudgetChunk, NoOtherChunkIsFasterAndNarrowerOnesAreSlower) {
  std::mt19937_64 random(7600);
  int chosen_by_work = 0;
  for (int round = 0; round < (KVSPAN_TEST_SANITIZED != 0 ? 4 : 40); ++round) {
    PlanRequest request = random_request(random);
    SCOPED_TRACE("seed 7600, round " + std::to_string(round));
    request.arena_bytes = 0;
    const auto least = plan(request);
    ASSERT_TRUE(least.has_value()) << least.error().message;
    request.arena_bytes = least->minimum_arena_bytes + least->history_bytes / 8 * (random() % 8);
    const auto found = plan(request);
    ASSERT_TRUE(found.has_value()) << found.error().message;
    if (found->mode == PlanMode::resident) {
      continue;
    }
    if (found->prompt.limit == ChunkLimit::work) {
      ++chosen_by_work;
      EXPECT_TRUE(found->prompt.time.covered());  // the link is never waited for
    }
    for (std::uint32_t rows = 1; rows <= request.prefill_rows_max; rows *= 2) {
      PlanRequest other = request;
      other.prefill_rows_fixed = rows;
      const auto fixed = plan(other);
      if (!fixed || fixed->mode == PlanMode::resident || rows > request.context_tokens) {
        continue;
      }
      const std::uint64_t scratch_bytes =
          fixed->regions.scratch_bytes() + fixed->tail_slots * fixed->slot_bytes;
      if (rows < found->prefill_rows) {
        EXPECT_GT(fixed->prompt.time.time_ns, found->prompt.time.time_ns) << rows;
      } else if (scratch_bytes * 8 < request.arena_bytes) {
        EXPECT_GE(fixed->prompt.time.time_ns, found->prompt.time.time_ns) << rows;
      }
    }
  }
  EXPECT_GT(chosen_by_work, KVSPAN_TEST_SANITIZED != 0 ? 0 : 5);
}

TEST(BudgetChunk, MoreArenaNeverPredictsASlowerPrompt) {
  std::mt19937_64 random(7500);
  for (int round = 0; round < (KVSPAN_TEST_SANITIZED != 0 ? 5 : 60); ++round) {
    PlanRequest request = random_request(random);
    SCOPED_TRACE("seed 7500, round " + std::to_string(round));
    request.arena_bytes = 0;
    const auto least = plan(request);
    ASSERT_TRUE(least.has_value()) << least.error().message;
    PromptTime before;
    before.time_ns = 1e300;
    for (std::uint64_t point = 0; point < 10; ++point) {
      request.arena_bytes = least->minimum_arena_bytes + least->history_bytes * point / 8;
      const auto found = plan(request);
      ASSERT_TRUE(found.has_value()) << found.error().message;
      const PromptTime& now = found->prompt.time;
      EXPECT_LE(now.time_ns, before.time_ns * (1.0 + 1e-9))
          << "point " << point << ", " << found->prefill_rows << " rows, ring "
          << found->ring_slots;
      // Not every ring is tried: decode's placement may be a little better by chance.
      EXPECT_LE(now.time_ns, found->prompt.as_placed.time_ns * 1.05);
      before = now;
    }
  }
}

// Over a whole prompt a session moves what the plan says: as it opened, and placed for the prompt.
TEST(BudgetChunk, SessionsMoveWhatIsPredicted) {
  std::uint64_t streamed_bytes = 0;
  std::uint64_t placed_bytes = 0;
  std::mt19937_64 random(7700);
  for (int round = 0; round < seeds(30); ++round) {
    SCOPED_TRACE("seed 7700, round " + std::to_string(round));
    const StubRig rig;
    SessionOptions options = small_options();
    options.geometry.layers.push_back({KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 16, 16, 1, 4, 50});
    options.context_tokens = 8 * (1 + random() % 30);
    options.sequences = static_cast<std::uint32_t>(1 + random() % 3);
    options.prefill_rows_max = 64;
    options.placement.changes = true;
    options.stream.link_bytes_s = 1'000'000'000;
    options.stream.row_ns = random() % 1000;
    options.stream.row_bytes_s = 1 + random() % 20'000'000'000;
    const auto least = plan(plan_request(rig.backend(), options));
    ASSERT_TRUE(least.has_value()) << least.error().message;
    options.arena_bytes = least->minimum_arena_bytes + random() % (least->history_bytes + 1);
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    Engine engine(rig.backend(), *session, options, options.sequences * 64);
    const PromptPlan prompt = session->plan().prompt;
    const std::uint32_t chunk = session->plan().prefill_rows;
    bool placed = round % 2 == 1 && session->plan().mode == PlanMode::streaming;
    if (placed) {
      // What decode's placement left of the arena, less than a page of each sequence, was not
      // allocated.
      const auto moved = session->place(prompt.placement);
      ASSERT_TRUE(moved.has_value() ||
                  moved.error().missing < options.sequences * session->plan().slot_bytes)
          << moved.error().message;
      placed = moved.has_value();
      placed_bytes += placed ? prompt.time.up_bytes : 0;
    }
    std::vector<EngineRows> parts;
    for (std::uint32_t index = 0; index < options.sequences; ++index) {
      parts.push_back({*session->add_sequence(), index, 0, chunk});
    }
    for (std::uint64_t at = 0; at < options.context_tokens; at += chunk) {
      for (EngineRows& part : parts) {
        part.first_token = at;
        part.rows =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk, options.context_tokens - at));
      }
      ASSERT_TRUE(engine.step(parts, Phase::prefill, nullptr).has_value());
    }
    const Counters counters = session->counters();
    const PromptTime& told = placed ? prompt.time : prompt.as_placed;
    EXPECT_EQ(counters.steps, told.chunks);
    EXPECT_EQ(counters.streamed_bytes, told.up_bytes);
    EXPECT_LE(counters.published_bytes, told.down_bytes);
    if (chunk % options.geometry.page_tokens == 0) {
      EXPECT_EQ(counters.published_bytes, told.down_bytes);
    }
    streamed_bytes += counters.streamed_bytes;
  }
  EXPECT_GT(streamed_bytes, placed_bytes);
  EXPECT_GT(placed_bytes, 0U);
}

}  // namespace
}  // namespace kvspan::test
