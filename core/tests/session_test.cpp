// SPDX-License-Identifier: Apache-2.0
// The session's promise on the stub: whatever the arena, the order of the scheduler, the waits, the
// neighbours and the history of truncations, failures and cancellations, the outputs have the bits
// of the resident run.
#include "kvspan/core/session/session.hpp"

#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace kvspan::test {
namespace {

constexpr std::uint32_t kPromptTokens = 90;
constexpr std::uint32_t kDecodeTokens = 12;

// Prompt in chunks of `chunk`, then single tokens; outputs of every step.
Result<Outputs> run(const Backend& backend,
                    const SessionOptions& options,
                    std::uint32_t chunk,
                    Counters* counters = nullptr) {
  auto session = Session::open(backend, options);
  if (!session) {
    return tl::unexpected(session.error());
  }
  const auto sequence = session->add_sequence();
  EXPECT_TRUE(sequence.has_value());
  Engine engine(backend, *session, options, 64);
  Outputs outputs;
  if (auto done = engine.prefill(*sequence, 7, 0, kPromptTokens, chunk, &outputs); !done) {
    return tl::unexpected(done.error());
  }
  const std::uint64_t end = kPromptTokens + kDecodeTokens;
  if (auto done = engine.decode(*sequence, 7, kPromptTokens, end, &outputs); !done) {
    return tl::unexpected(done.error());
  }
  if (counters != nullptr) {
    *counters = session->counters();
  }
  return outputs;
}

Outputs resident_run(std::uint32_t chunk) {
  StubRig rig;
  SessionOptions options = small_options();
  options.arena_bytes = kResidentArena;
  options.prefill_rows_fixed = chunk;
  auto outputs = run(rig.backend(), options, chunk);
  EXPECT_TRUE(outputs.has_value()) << outputs.error().message;
  return *outputs;
}

std::uint64_t minimum_arena(const Backend& backend, const SessionOptions& options) {
  const auto least = plan(plan_request(backend, options));
  EXPECT_TRUE(least.has_value());
  return least->minimum_arena_bytes;
}

TEST(Session, EveryArenaHasTheBitsOfTheResidentRun) {
  const std::uint32_t chunk = 11;
  const Outputs expected = resident_run(chunk);
  StubRig rig;
  SessionOptions options = small_options();
  options.prefill_rows_fixed = chunk;
  const std::uint64_t least = minimum_arena(rig.backend(), options);
  for (std::uint64_t extra = 0; extra < 30000; extra += 3001) {
    SCOPED_TRACE("arena " + std::to_string(least + extra));
    options.arena_bytes = least + extra;
    Counters counters;
    const auto outputs = run(rig.backend(), options, chunk, &counters);
    ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
    EXPECT_TRUE(same_bits(*outputs, expected));
    EXPECT_LE(counters.device_bytes_high_water, options.arena_bytes);
    EXPECT_LE(rig.counters().device_bytes_max, options.arena_bytes);
    EXPECT_GT(counters.streamed_pages, 0U);
    EXPECT_EQ(counters.slots_free + counters.slots_evictable + counters.slots_protected +
                  counters.slots_in_flight,
              counters.slots_total);
    EXPECT_EQ(counters.slots_protected, 0U) << "no step is open";
    EXPECT_GT(counters.slots_evictable, 0U) << "the begun pages";
  }
  kvspan_error_t error = empty_error();
  EXPECT_EQ(rig.close(&error), KVSPAN_OK) << error.message;
}

TEST(Session, OneByteBelowTheMinimumIsRefusedAndNamesTheShortfall) {
  StubRig rig;
  SessionOptions options = small_options();
  const std::uint64_t least = minimum_arena(rig.backend(), options);
  options.arena_bytes = least - 1;
  const auto refused = Session::open(rig.backend(), options);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::device_memory);
  EXPECT_EQ(refused.error().required, least);
  EXPECT_EQ(refused.error().missing, 1U);
  EXPECT_NE(refused.error().message.find("phase"), std::string::npos);
  EXPECT_EQ(rig.counters().device_bytes, 0U);
}

// Chunk width changes neither S nor the row's bits: it is the phase that tells the row class.
TEST(Session, ChunkWidthMovesNoBit) {
  const Outputs narrow = resident_run(1);
  const Outputs wide = resident_run(16);
  std::vector<float> narrow_rows[2];
  std::vector<float> wide_rows[2];
  for (std::size_t index = 0; index < narrow.size(); ++index) {
    narrow_rows[index % 2].insert(
        narrow_rows[index % 2].end(), narrow[index].begin(), narrow[index].end());
  }
  for (std::size_t index = 0; index < wide.size(); ++index) {
    wide_rows[index % 2].insert(wide_rows[index % 2].end(), wide[index].begin(), wide[index].end());
  }
  for (int layer = 0; layer < 2; ++layer) {
    EXPECT_TRUE(same_bits({narrow_rows[layer]}, {wide_rows[layer]})) << "layer " << layer;
  }
}

// Every order of the stub's scheduler, strict and normal waits.
TEST(Session, EverySchedulerOrderGivesTheSameBits) {
  const std::uint32_t chunk = 13;
  const Outputs expected = resident_run(chunk);
  for (int seed = 1; seed <= seeds(200); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    StubRig rig({{"queues", "shuffled"}, {"seed", std::to_string(seed)}});
    SessionOptions options = small_options();
    options.prefill_rows_fixed = chunk;
    options.lanes.waits = seed % 2 == 0 ? WaitMode::strict : WaitMode::normal;
    options.arena_bytes =
        minimum_arena(rig.backend(), options) + static_cast<std::uint64_t>(seed % 7) * 2500;
    const auto outputs = run(rig.backend(), options, chunk);
    ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
    ASSERT_TRUE(same_bits(*outputs, expected));
  }
}

// All of it queued, nothing waited for until the end: every lane may run as far ahead as its waits
// allow.
TEST(Session, AnEngineThatNeverWaitsGetsTheSameBits) {
  // One page a chunk leaves every page complete; 13 rows a chunk begin and end inside pages.
  const Outputs aligned = resident_run(8);
  const Outputs ragged = resident_run(13);
  for (int seed = 1; seed <= seeds(100); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::uint32_t chunk = seed % 2 == 0 ? 8 : 13;
    const Outputs& expected = seed % 2 == 0 ? aligned : ragged;
    StubRig rig({{"queues", "shuffled"},
                 {"seed", std::to_string(seed)},
                 {"delay_max_ticks", seed % 5 == 0 ? "50000" : "1000"}});
    SessionOptions options = small_options();
    options.prefill_rows_fixed = chunk;
    options.arena_bytes =
        minimum_arena(rig.backend(), options) + static_cast<std::uint64_t>(seed % 3) * 2000;
    {
      auto session = Session::open(rig.backend(), options);
      ASSERT_TRUE(session.has_value()) << session.error().message;
      const SequenceId sequence = *session->add_sequence();
      Engine engine(rig.backend(), *session, options, 16);
      engine.never_wait(rig.backend(), 16);
      const auto prompt = engine.prefill(sequence, 7, 0, kPromptTokens, chunk, nullptr);
      ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
      const auto tail =
          engine.decode(sequence, 7, kPromptTokens, kPromptTokens + kDecodeTokens, nullptr);
      ASSERT_TRUE(tail.has_value()) << tail.error().message;
      Outputs outputs;
      ASSERT_TRUE(engine.settle(&outputs).has_value());
      ASSERT_TRUE(same_bits(outputs, expected));
    }
    kvspan_error_t error = empty_error();
    ASSERT_EQ(rig.close(&error), KVSPAN_OK) << error.message;
  }
}

// Six layers share the tail slots of one, so every chunk that begins inside a page gets that page
// back from the host, into a slot whose last reader may still run.
TEST(Session, ABegunPageThatLostItsSlotComesBackBehindItsReaders) {
  SessionOptions options = small_options();
  const std::vector<LayerGeometry> pair = options.geometry.layers;
  for (int copies = 0; copies < 2; ++copies) {
    options.geometry.layers.insert(options.geometry.layers.end(), pair.begin(), pair.end());
  }
  options.prefill_rows_fixed = 14;
  options.prefill_rows_max = 14;
  const auto prefilled =
      [&](const Backend& backend, std::uint64_t arena_bytes, Counters* counters) {
        options.arena_bytes = arena_bytes;
        Outputs outputs;
        auto session = Session::open(backend, options);
        EXPECT_TRUE(session.has_value()) << session.error().message;
        const SequenceId sequence = *session->add_sequence();
        Engine engine(backend, *session, options, 16);
        engine.never_wait(backend, 16);
        EXPECT_TRUE(engine.prefill(sequence, 7, 0, kPromptTokens, 14, nullptr).has_value());
        EXPECT_TRUE(engine.settle(&outputs).has_value());
        *counters = session->counters();
        return outputs;
      };
  Counters counters;
  StubRig resident;
  const Outputs expected = prefilled(resident.backend(), kResidentArena, &counters);
  for (int seed = 1; seed <= seeds(60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    StubRig rig({{"queues", "shuffled"}, {"seed", std::to_string(seed)}});
    // A larger arena keeps more of the head resident. Where the begun page follows it directly,
    // nothing else is fetched that could hold the page back by accident.
    const std::uint64_t least = minimum_arena(rig.backend(), options);
    const Outputs outputs =
        prefilled(rig.backend(), least + static_cast<std::uint64_t>(seed % 12) * 5000, &counters);
    ASSERT_TRUE(same_bits(outputs, expected));
    ASSERT_GT(counters.refetched_tail_bytes, 0U);
  }
}

TEST(Session, StreamsExactlyTheVisiblePagesThatAreNotResident) {
  StubRig rig;
  SessionOptions options = small_options();
  options.prefill_rows_fixed = 8;
  options.arena_bytes = minimum_arena(rig.backend(), options) + 9000;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const auto sequence = session->add_sequence();
  Engine engine(rig.backend(), *session, options, 64);
  const Plan& plan = session->plan();
  std::uint64_t pages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t published = 0;
  // In decode a page that lies in two splits comes in two parts, without the padding between K and
  // V.
  const auto is_cut = [&](std::uint64_t page, std::uint64_t split) {
    return split >= 16 && (page * 8 + 7) / split * split > page * 8;
  };
  const auto expect_step = [&](std::uint64_t token, std::uint32_t rows) {
    const std::uint64_t split = rows == 1 ? split_tokens(token + 1, 4, 4) : 0;
    for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
      const PageLayout& layout = plan.pages[layer];
      for (std::uint64_t page = plan.resident_pages[layer]; page < token / 8; ++page) {
        ++pages;
        bytes += is_cut(page, split) ? 8 * (layout.k_token_bytes + layout.v_token_bytes)
                                     : layout.page_bytes;
      }
      // A whole page goes down with its padding.
      published +=
          rows == 8 ? layout.page_bytes : rows * (layout.k_token_bytes + layout.v_token_bytes);
    }
  };
  std::uint64_t token = 0;
  for (; token < 96; token += 8) {
    expect_step(token, 8);
    ASSERT_TRUE(engine.step({{*sequence, 1, token, 8}}, Phase::prefill, nullptr).has_value());
  }
  for (; token < 110; ++token) {
    expect_step(token, 1);
    ASSERT_TRUE(engine.step({{*sequence, 1, token, 1}}, Phase::decode, nullptr).has_value());
  }
  const Counters counters = session->counters();
  EXPECT_EQ(counters.streamed_pages, pages);
  EXPECT_EQ(counters.streamed_bytes, bytes);
  EXPECT_EQ(counters.published_bytes, published);
  EXPECT_EQ(counters.refetched_tail_bytes, 0U);
  EXPECT_EQ(counters.steps, 12U + 14U);
}

TEST(Session, AllocatesNothingOnTheDeviceAfterOpen) {
  StubRig rig;
  SessionOptions options = small_options();
  options.arena_bytes = minimum_arena(rig.backend(), options) + 5000;
  options.prefill_rows_fixed = 0;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value());
  const auto sequence = session->add_sequence();
  Engine engine(rig.backend(), *session, options, 64);
  const std::uint64_t before = rig.counters().device_bytes;
  for (std::uint64_t token = 0; token < 150; ++token) {
    ASSERT_TRUE(engine.step({{*sequence, 1, token, 1}}, Phase::decode, nullptr).has_value());
  }
  EXPECT_EQ(rig.counters().device_bytes, before);
  EXPECT_EQ(rig.counters().device_bytes_max, before);
}

TEST(Session, SeveralSequencesKeepTheirOwnHistories) {
  const std::uint32_t chunk = 11;
  const Outputs expected = resident_run(chunk);
  StubRig rig({{"queues", "shuffled"}, {"seed", "5"}});
  SessionOptions options = small_options();
  options.sequences = 3;
  options.prefill_rows_fixed = chunk;
  options.arena_bytes = minimum_arena(rig.backend(), options) + 6000;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  std::vector<SequenceId> ids;
  for (int index = 0; index < 3; ++index) {
    ids.push_back(*session->add_sequence());
  }
  EXPECT_EQ(session->add_sequence().error().code, Errc::too_large);
  Engine engine(rig.backend(), *session, options, 64);
  // Sequence 1 has the content of the expected run, its neighbours others; they advance at
  // different speeds.
  Outputs outputs;
  std::uint64_t token = 0;
  std::uint64_t others[2] = {0, 0};
  const auto own_rows = [&](const Outputs& step, std::uint32_t before, std::uint32_t rows) {
    for (std::size_t layer = 0; layer < step.size(); ++layer) {
      const LayerGeometry& geometry = options.geometry.layers[layer];
      const std::size_t row = geometry.q_heads * geometry.head_size_v;
      outputs.emplace_back(
          step[layer].begin() + static_cast<std::ptrdiff_t>(before * row),
          step[layer].begin() + static_cast<std::ptrdiff_t>((before + rows) * row));
    }
  };
  while (token < kPromptTokens) {
    const auto rows =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk, kPromptTokens - token));
    Outputs step;
    ASSERT_TRUE(engine
                    .step({{ids[0], 100, others[0], 3},
                           {ids[1], 7, token, rows},
                           {ids[2], 200, others[1], 7}},
                          Phase::prefill,
                          &step)
                    .has_value());
    own_rows(step, 3, rows);
    others[0] += 3;
    others[1] += 7;
    token += rows;
  }
  for (std::uint32_t index = 0; index < kDecodeTokens; ++index, ++token) {
    Outputs step;
    if (index % 2 == 0) {
      ASSERT_TRUE(
          engine.step({{ids[2], 200, others[1], 1}, {ids[1], 7, token, 1}}, Phase::decode, &step)
              .has_value());
      own_rows(step, 1, 1);
      ++others[1];
    } else {
      ASSERT_TRUE(engine.step({{ids[1], 7, token, 1}}, Phase::decode, &step).has_value());
      own_rows(step, 0, 1);
    }
  }
  EXPECT_TRUE(same_bits(outputs, expected));
}

// All K = 0, so every token weighs the same; V is 1024 in one token of 256 and 0 in the others:
// exactly 4.0 whichever page holds it, through two ring slots. A page lost, stale, doubled or
// misplaced gives another number.
TEST(Session, FindsTheNeedleInEveryPage) {
  for (std::uint64_t needle_page = 0; needle_page < 64; ++needle_page) {
    SCOPED_TRACE("page " + std::to_string(needle_page));
    StubRig rig({{"queues", "shuffled"}, {"seed", std::to_string(needle_page + 1)}});
    SessionOptions options;
    options.geometry.layers = {{KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 8, 8, 1, 2}};
    options.geometry.page_tokens = 4;
    options.context_tokens = 256;
    options.prefill_rows_fixed = 5;
    options.arena_bytes = minimum_arena(rig.backend(), options);
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    ASSERT_EQ(session->plan().ring_slots, 2U);
    const SequenceId sequence = *session->add_sequence();
    Engine engine(rig.backend(), *session, options, 8);
    const std::uint64_t needle = needle_page * 4 + needle_page % 4;
    engine.set_content(
        [needle](
            std::uint64_t what, std::uint64_t, std::uint64_t, std::uint64_t token, std::uint64_t) {
          return what == 3 && token == needle ? 1024.0F : (what == 1 ? 1.0F : 0.0F);
        });
    ASSERT_TRUE(engine.prefill(sequence, 1, 0, 255, 5, nullptr).has_value());
    Outputs outputs;
    ASSERT_TRUE(engine.step({{sequence, 1, 255, 1}}, Phase::decode, &outputs).has_value());
    for (const float value : outputs.front()) {
      ASSERT_EQ(value, 4.0F);
    }
  }
}

// Positions alone name no row: all K are 0, V is the sequence's own number.
TEST(Session, SequencesAtTheSamePositionsSeeTheirOwnRows) {
  StubRig rig({{"queues", "shuffled"}, {"seed", "4"}});
  SessionOptions options;
  options.geometry.layers = {{KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 8, 8, 1, 2}};
  options.geometry.page_tokens = 4;
  options.context_tokens = 16;
  options.sequences = 2;
  options.prefill_rows_fixed = 8;
  options.arena_bytes = minimum_arena(rig.backend(), options);
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const SequenceId one = *session->add_sequence();
  const SequenceId two = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  engine.set_content([](std::uint64_t what, std::uint64_t tag, auto...) {
    return what == 3 ? static_cast<float>(tag) : (what == 1 ? 1.0F : 0.0F);
  });
  const auto all = [&](const std::vector<EngineRows>& parts, Phase phase, auto... values) {
    Outputs outputs;
    EXPECT_TRUE(engine.step(parts, phase, &outputs).has_value());
    std::vector<float> expected;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      expected.insert(expected.end(), 16 * parts[part].rows, std::array{values...}[part]);
    }
    EXPECT_EQ(outputs.front(), expected);
  };
  all({{one, 1, 0, 8}, {two, 2, 0, 8}}, Phase::prefill, 1.0F, 2.0F);
  all({{one, 1, 8, 1}}, Phase::decode, 1.0F);
  all({{one, 1, 9, 1}}, Phase::decode, 1.0F);
  all({{two, 2, 8, 1}}, Phase::decode, 2.0F);
  all({{two, 2, 9, 1}, {one, 1, 10, 1}}, Phase::decode, 2.0F, 1.0F);
}

TEST(Session, TruncateThenAppendEqualsTheRunThatNeverWentAstray) {
  StubRig rig({{"queues", "shuffled"}, {"seed", "9"}});
  SessionOptions options = small_options();
  options.prefill_rows_fixed = 11;
  options.arena_bytes = minimum_arena(rig.backend(), options) + 4000;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value());
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 64);
  const auto append =
      [&](std::uint64_t tag, std::uint64_t from, std::uint64_t to, Outputs* outputs) {
        const auto done = engine.prefill(sequence, tag, from, to, 11, outputs);
        ASSERT_TRUE(done.has_value()) << done.error().message;
      };
  Outputs straight;
  append(7, 0, 60, nullptr);
  append(7, 60, 82, &straight);
  for (const std::uint64_t cut : {60U, 57U, 48U, 9U, 1U, 0U}) {
    SCOPED_TRACE("cut " + std::to_string(cut));
    ASSERT_TRUE(session->truncate(sequence, cut).has_value());
    append(99, cut, cut + 25, nullptr);  // another branch, thrown away
    ASSERT_TRUE(session->truncate(sequence, cut).has_value());
    append(7, cut, 60, nullptr);
    Outputs again;
    append(7, 60, 82, &again);
    EXPECT_TRUE(same_bits(again, straight));
  }
  EXPECT_EQ(session->truncate(sequence, 83).error().code, Errc::invalid_argument);
}

// What is written behind a range that is too small is the engine's own.
TEST(Session, ARangeForLseThatIsTooSmallIsRefusedAndTheStepGoesOn) {
  StubRig rig;
  SessionOptions options = small_options();
  options.geometry.layers.resize(1);
  options.attention_options = KVSPAN_OPTION_LSE;
  options.arena_bytes = kResidentArena;
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session) << session.error().message;
  const StepRows part{*session->add_sequence(), 3};
  ASSERT_TRUE(session->begin_step({&part, 1}, Phase::prefill));
  const Buffer q = make_buffer(rig.backend(), 3, 4, 16);
  const Buffer kv = make_buffer(rig.backend(), 3, 2, 16);
  const Buffer out = make_buffer(rig.backend(), 3, 4, 8);
  const Buffer lse = make_buffer(rig.backend(), 3, 4, 1);
  WriteRows write;
  write.k = kv.rows();
  write.v = kv.rows();
  write.v.head_stride = 8 * sizeof(float);
  ASSERT_TRUE(session->write(0, write));
  AttendRows attend;
  attend.q = q.rows();
  attend.out = out.rows();
  attend.scale = 0.25F;
  attend.lse = {lse.memory.get(), 0, 3 * 4 * sizeof(float) - 1};
  const auto refused = session->attend(0, attend);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::invalid_argument);
  EXPECT_NE(refused.error().message.find("48"), std::string::npos) << refused.error().message;
  attend.lse.bytes = 3 * 4 * sizeof(float);
  const auto point = session->attend(0, attend);
  ASSERT_TRUE(point) << point.error().message;
  ASSERT_TRUE(session->wait(*point));
  const std::uint32_t accepted = 3;
  EXPECT_TRUE(session->commit({&accepted, 1}));
}

}  // namespace
}  // namespace kvspan::test
