// SPDX-License-Identifier: Apache-2.0
// Pages behind windows are given back, and nobody sees it: the bits are those of a session that
// keeps everything, host memory stays at its bound, and a truncation that would need them is
// refused with what can be done.
#include "kvspan/core/history/host_pages.hpp"
#include "kvspan/core/history/sequence_history.hpp"

#include "any_submit.hpp"
#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <utility>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kPage = 8;

// A full layer, two windows, one of them narrow; pages of 8 tokens.
SessionOptions windowed_options(std::uint64_t arena_bytes) {
  SessionOptions options;
  options.geometry.layers = {{KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 16, 8, 2, 4},
                             {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 32, 32, 2, 4, 21},
                             {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 16, 8, 2, 4, 5},
                             {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 16, 8, 2, 4, 21}};
  options.geometry.page_tokens = kPage;
  options.context_tokens = 700;
  options.prefill_rows_max = 16;
  options.prefill_rows_fixed = 16;
  options.rewind_tokens = 0;
  options.arena_bytes = arena_bytes;
  return options;
}

std::uint64_t minimum_of(const Backend& backend, const SessionOptions& options) {
  return plan(plan_request(backend, options))->minimum_arena_bytes;
}

// The first page of a layer that the row behind `tokens` tokens sees.
std::uint64_t first_seen(std::uint64_t tokens, std::uint64_t window) {
  return window == 0 || tokens + 1 <= window ? 0 : (tokens + 1 - window) / kPage;
}

// Prefill to 303 tokens, cut by 3, go on, decode to 420.
Outputs long_run(const Backend& backend, const SessionOptions& options, Counters* counters) {
  Outputs outputs;
  auto session = Session::open(backend, options);
  EXPECT_TRUE(session.has_value()) << session.error().message;
  const SequenceId sequence = *session->add_sequence();
  Engine engine(backend, *session, options, 16);
  EXPECT_TRUE(engine.prefill(sequence, 7, 0, 303, 16, &outputs).has_value());
  EXPECT_LE(*session->truncation_limit(sequence), 300U);
  EXPECT_TRUE(session->truncate(sequence, 300).has_value());
  EXPECT_TRUE(engine.decode(sequence, 9, 300, 420, &outputs).has_value());
  if (counters != nullptr) {
    *counters = session->counters();
    const Plan& plan = session->plan();
    EXPECT_LE(counters->host_bytes, plan.pinned_bytes);
    EXPECT_LE(counters->host_held_bytes, plan.history_bytes);
  }
  return outputs;
}

TEST(SessionWindow, WhatRetiresMovesNoBit) {
  StubRig calm;
  SessionOptions keeps = windowed_options(kResidentArena);
  keeps.rewind_tokens = keeps.context_tokens;
  Counters kept;
  const Outputs expected = long_run(calm.backend(), keeps, &kept);
  EXPECT_EQ(kept.retired_pages, 0U);
  for (int seed = 1; seed <= seeds(60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    StubRig rig({{"queues", "shuffled"}, {"seed", std::to_string(seed)}});
    SessionOptions options = windowed_options(0);
    options.rewind_tokens = static_cast<std::uint64_t>(seed % 3) * 5;
    options.stream.group_pages = static_cast<std::uint32_t>(seed % 4);
    options.lanes.waits = seed % 2 == 0 ? WaitMode::strict : WaitMode::normal;
    options.arena_bytes =
        minimum_of(rig.backend(), options) + static_cast<std::uint64_t>(seed % 5) * 9000;
    Counters counters;
    ASSERT_TRUE(same_bits(long_run(rig.backend(), options, &counters), expected));
    EXPECT_GT(counters.retired_pages, 3 * 40U);
  }
}

// A page comes free when the work that last touched it has settled, and not with the commit.
TEST(SessionWindow, APageRetiresWithItsLastReaderAndItsLastCopy) {
  HostClass of{8, 8, {0, 1}, {}};
  of.chunk = {64, 4, 256};
  StubRig rig;
  HostPages pages(rig.backend(), {{32, 32}, {of}, UINT64_MAX});
  SequenceHistory history({of}, 4);
  ASSERT_TRUE(history.reserve(pages, 16).has_value());
  EXPECT_EQ(pages.held_bytes(), 4 * 64U);
  history.commit(16, Moment::at(LaneId::download, 5));
  history.hazard(1, 1).read = Moment::at(LaneId::upload, 9);
  const auto settled = [](std::uint64_t upload, std::uint64_t download) {
    Moment moment = Moment::at(LaneId::upload, upload);
    moment.merge(Moment::at(LaneId::download, download));
    return moment;
  };
  const auto retired = [&](const Moment& moment) {
    history.prove(moment);
    return history.retire(pages, moment);
  };
  // The next row sees tokens 9 to 16: pages 0 and 1 are behind it, once the rows are on the host.
  EXPECT_EQ(retired(settled(0, 4)), 0U);
  EXPECT_EQ(history.awaited()->of(LaneId::download), 5U);
  EXPECT_EQ(retired(settled(8, 5)), 2U) << "page 0 of both layers; page 1 is still read";
  EXPECT_EQ(history.first_page(1), 1U);
  EXPECT_EQ(history.awaited()->of(LaneId::upload), 9U);
  EXPECT_EQ(retired(settled(9, 5)), 2U);
  EXPECT_EQ(pages.held_bytes(), 2 * 64U);
  EXPECT_FALSE(history.awaited().has_value());
}

// What a failure falls back to sees its whole window.
TEST(SessionWindow, ACommitThatMayFallKeepsWhatTheOneBeforeItSees) {
  HostClass of{8, 8, {0}, {}};
  of.chunk = {32, 4, 128};
  StubRig rig;
  HostPages pages(rig.backend(), {{32}, {of}, UINT64_MAX});
  SequenceHistory history({of}, 4);
  ASSERT_TRUE(history.reserve(pages, 40).has_value());
  history.commit(8, Moment::at(LaneId::download, 1));
  history.commit(32, Moment::at(LaneId::download, 2));
  const Moment one = Moment::at(LaneId::download, 1);
  history.prove(one);
  EXPECT_EQ(history.retire(pages, one), 0U);
  EXPECT_EQ(history.truncation_limit(), 8 * 4U + 7) << "what was committed is promised at once";
  history.fall_back(one);
  EXPECT_EQ(history.committed_tokens(), 8U);
  EXPECT_EQ(history.first_page(0), 0U);
  EXPECT_EQ(history.truncation_limit(), 0U);
}

TEST(SessionWindow, ATruncationBehindAWindowIsRefusedWithWhatCanBeLeft) {
  for (const std::uint64_t rewind : {0ULL, 1ULL, 13ULL, 100ULL}) {
    SCOPED_TRACE("rewind " + std::to_string(rewind));
    SessionOptions options = windowed_options(0);
    options.rewind_tokens = rewind;
    StubRig rig;
    options.arena_bytes = minimum_of(rig.backend(), options) + 20000;
    SessionOptions keeps = windowed_options(kResidentArena);
    keeps.rewind_tokens = keeps.context_tokens;
    auto session = Session::open(rig.backend(), options);
    StubRig other_rig;  // a device is prepared for one session
    auto full = Session::open(other_rig.backend(), keeps);
    ASSERT_TRUE(session.has_value() && full.has_value());
    const SequenceId sequence = *session->add_sequence();
    const SequenceId other = *full->add_sequence();
    Engine engine(rig.backend(), *session, options, 16);
    Engine oracle(other_rig.backend(), *full, keeps, 16);
    std::uint64_t tokens = 0;
    for (const std::uint64_t to : {30ULL, 160ULL, 333ULL}) {
      const auto written = engine.prefill(sequence, 7, tokens, to, 16, nullptr);
      ASSERT_TRUE(written.has_value()) << written.error().message;
      ASSERT_TRUE(oracle.prefill(other, 7, tokens, to, 16, nullptr).has_value());
      const std::uint64_t limit = *session->truncation_limit(sequence);
      std::uint64_t expected = 0;
      for (const std::uint64_t window : {21ULL, 5ULL}) {
        const std::uint64_t page = first_seen(to > rewind ? to - rewind : 0, window);
        expected = std::max(expected, page == 0 ? 0 : page * kPage + window - 1);
      }
      EXPECT_EQ(limit, expected);
      EXPECT_LE(limit, to - std::min(to, rewind));
      if (limit > 1) {
        const auto refused = session->truncate(sequence, limit - 1);
        ASSERT_FALSE(refused.has_value());
        EXPECT_EQ(refused.error().code, Errc::too_large);
        EXPECT_EQ(refused.error().required, limit);
        EXPECT_NE(refused.error().message.find(std::to_string(limit)), std::string::npos);
        EXPECT_EQ(*session->tokens(sequence), to);
      }
      tokens = std::max<std::uint64_t>(limit, to > 40 ? to - 40 : 1);
      ASSERT_TRUE(session->truncate(sequence, tokens).has_value());
      ASSERT_TRUE(full->truncate(other, tokens).has_value());
      Outputs found;
      Outputs wanted;
      ASSERT_TRUE(engine.decode(sequence, 11, tokens, tokens + 9, &found).has_value());
      ASSERT_TRUE(oracle.decode(other, 11, tokens, tokens + 9, &wanted).has_value());
      EXPECT_TRUE(same_bits(found, wanted));
      tokens += 9;
    }
    // To nothing always: the sequence begins anew.
    ASSERT_TRUE(session->truncate(sequence, 0).has_value());
    ASSERT_TRUE(full->truncate(other, 0).has_value());
    EXPECT_EQ(*session->truncation_limit(sequence), 0U);
    Outputs found;
    Outputs wanted;
    ASSERT_TRUE(engine.prefill(sequence, 3, 0, 120, 16, &found).has_value());
    ASSERT_TRUE(oracle.prefill(other, 3, 0, 120, 16, &wanted).has_value());
    EXPECT_TRUE(same_bits(found, wanted));
  }
}

// Everything resident: windows roll in a few pages, and go back behind a cut.
TEST(SessionWindow, AWindowRollsInItsResidentPages) {
  StubRig calm;
  for (const std::uint64_t window : {1ULL, 5ULL, 21ULL, 64ULL}) {
    SCOPED_TRACE("window " + std::to_string(window));
    SessionOptions options = windowed_options(kResidentArena);
    options.rewind_tokens = 90;
    options.geometry.layers[2].window_tokens = window;
    SessionOptions streams = options;
    streams.stream.resident_pages_max = 0;
    streams.arena_bytes = minimum_of(calm.backend(), streams);
    const auto run = [&](const SessionOptions& of, Counters* counters, Plan* plan) {
      StubRig rig({{"queues", "shuffled"}, {"seed", std::to_string(window)}});
      auto session = Session::open(rig.backend(), of);
      EXPECT_TRUE(session.has_value()) << session.error().message;
      const SequenceId sequence = *session->add_sequence();
      Engine engine(rig.backend(), *session, of, 16);
      Outputs outputs;
      std::uint64_t tokens = 0;
      for (const std::uint64_t to : {100ULL, 400ULL, 411ULL, 430ULL}) {
        EXPECT_TRUE(engine.prefill(sequence, 7, tokens, to, 16, &outputs).has_value());
        EXPECT_TRUE(engine.decode(sequence, 8, to, to + 12, &outputs).has_value());
        tokens = to + 12 - 70;
        EXPECT_TRUE(session->truncate(sequence, tokens).has_value());
      }
      *counters = session->counters();
      *plan = session->plan();
      return outputs;
    };
    Counters resident;
    Counters streamed;
    Plan rolling;
    Plan minimum;
    EXPECT_TRUE(same_bits(run(options, &resident, &rolling), run(streams, &streamed, &minimum)));
    EXPECT_EQ(rolling.mode, PlanMode::resident);
    EXPECT_EQ(rolling.resident_pages[0], rolling.pages_a_sequence);
    EXPECT_EQ(rolling.resident_pages[2], visible_pages(700, window, 16, kPage));
    EXPECT_EQ(resident.streamed_pages, 0U);
    EXPECT_GT(resident.moved_bytes, 0U) << "pages that had rolled on come back behind each cut";
    EXPECT_GT(streamed.streamed_pages, 0U);
    EXPECT_EQ(streamed.moved_bytes, 0U);
  }
}

// However long a history becomes and however far the engine runs ahead, the host holds what the
// plan says.
TEST(SessionWindow, HostBytesStayAtTheirBound) {
  SessionOptions options = windowed_options(0);
  options.geometry.layers.erase(options.geometry.layers.begin());
  options.context_tokens = 6000;
  for (const bool waits : {true, false}) {
    StubRig rig({{"queues", "shuffled"}, {"seed", "5"}});
    options.arena_bytes = minimum_of(rig.backend(), options);
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    const Plan& plan = session->plan();
    // 21 tokens and two chunks of 16 touch 8 pages of 8, 5 tokens 6.
    EXPECT_EQ(plan.host_pages, (std::vector<std::uint32_t>{8, 6}));
    EXPECT_EQ(
        plan.history_bytes,
        8 * (plan.pages[0].page_bytes + plan.pages[2].page_bytes) + 6 * plan.pages[1].page_bytes);
    const SequenceId sequence = *session->add_sequence();
    Engine engine(rig.backend(), *session, options, 16);
    if (!waits) {
      engine.never_wait(rig.backend(), 16);
    }
    for (std::uint64_t at = 0; at < (waits ? 5900U : 1500U); at += 16) {
      ASSERT_TRUE(engine.step({{sequence, 7, at, 16}}, Phase::prefill, nullptr).has_value());
      ASSERT_LE(session->counters().host_held_bytes, plan.history_bytes);
      ASSERT_LE(session->counters().host_bytes, plan.pinned_bytes);
    }
    Outputs outputs;
    ASSERT_TRUE(engine.settle(&outputs).has_value());
  }
}

// A history that was kept elsewhere: nobody is asked for what no row sees.
TEST(SessionWindow, ALoadAsksForWhatIsSeenAndHasTheBitsOfAWrittenHistory) {
  constexpr std::uint64_t kTokens = 203;
  SessionOptions options = windowed_options(0);
  for (LayerGeometry& layer : options.geometry.layers) {
    layer.k_type = layer.v_type = KVSPAN_TYPE_F32;
    layer.head_size_k = layer.head_size_v = 16;
  }
  const std::vector<PageLayout> layouts = *page_layouts(options.geometry);
  std::vector<std::set<std::uint64_t>> asked(4);
  const PageSource source =
      [&](std::uint32_t layer, std::uint64_t page, std::span<std::byte> bytes) -> Result<void> {
    asked[layer].insert(page);
    for (std::uint64_t row = 0; row < kPage; ++row) {
      for (std::uint64_t element = 0; element < 32; ++element) {
        const float k = noise(2, 7, layer, page * kPage + row, element);
        const float v = noise(3, 7, layer, page * kPage + row, element);
        std::memcpy(
            bytes.data() + k_row_offset(layouts[layer], row, element / 16) + element % 16 * 4,
            &k,
            4);
        std::memcpy(
            bytes.data() + v_row_offset(layouts[layer], row, element / 16) + element % 16 * 4,
            &v,
            4);
      }
    }
    return {};
  };
  StubRig rig({{"queues", "shuffled"}, {"seed", "8"}});
  options.arena_bytes = minimum_of(rig.backend(), options) + 40000;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  Outputs written;
  ASSERT_TRUE(engine.prefill(sequence, 7, 0, kTokens, 16, nullptr).has_value());
  ASSERT_TRUE(engine.decode(sequence, 7, kTokens, kTokens + 60, &written).has_value());
  ASSERT_TRUE(session->truncate(sequence, 0).has_value());
  ASSERT_TRUE(session->load(sequence, kTokens, source).has_value());
  for (std::size_t layer = 0; layer < 4; ++layer) {
    const std::uint64_t first = first_seen(kTokens, options.geometry.layers[layer].window_tokens);
    EXPECT_EQ(*asked[layer].begin(), first);
    EXPECT_EQ(asked[layer].size(), (kTokens + kPage - 1) / kPage - first);
  }
  EXPECT_EQ(*session->truncation_limit(sequence), first_seen(kTokens, 21) * kPage + 20);
  Outputs loaded;
  ASSERT_TRUE(engine.decode(sequence, 7, kTokens, kTokens + 60, &loaded).has_value());
  EXPECT_TRUE(same_bits(loaded, written));
}

// Whichever submit fails, what is left goes on with the bits of a run without a failure.
TEST(SessionWindow, AnySubmitMayFailAmongRetiringPages) {
  SessionOptions options = windowed_options(0);
  StubRig calm;
  options.arena_bytes = minimum_of(calm.backend(), options) + 9000;
  const auto run = [&](StubRig& rig, std::uint64_t nth) {
    Outputs last;
    auto session = Session::open(rig.backend(), options);
    EXPECT_TRUE(session.has_value());
    const SequenceId sequence = *session->add_sequence();
    Engine engine(rig.backend(), *session, options, 16);
    EXPECT_TRUE(engine.prefill(sequence, 7, 0, 96, 16, nullptr).has_value());
    if (nth != 0) {
      rig.plant(KVSPAN_FAULT_SUBMIT, nth, KVSPAN_E_FAILED);
    }
    int failures = 0;
    for (;;) {
      const std::uint64_t at = *session->tokens(sequence);
      if (at >= 160) {
        break;
      }
      Outputs now;
      if (engine.step({{sequence, 7, at, 1}}, Phase::decode, &now)) {
        last = std::move(now);
      } else if (++failures > 3) {
        ADD_FAILURE() << "no way on";
        break;
      }
    }
    return last;
  };
  expect_same_whichever_submit_fails(1200, 3, run);
}

}  // namespace
}  // namespace kvspan::test
