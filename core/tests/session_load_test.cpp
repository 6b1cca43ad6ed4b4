// SPDX-License-Identifier: Apache-2.0
// A loaded history is the history that an engine would have written, resident or not; a load that
// fails leaves the sequence empty.
#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kTokens = 75;

// f32 rows are their own encoding.
SessionOptions plain_options(std::uint64_t arena_bytes) {
  SessionOptions options;
  options.geometry.layers = {{KVSPAN_TYPE_F32, KVSPAN_TYPE_F32, 16, 16, 2, 4},
                             {KVSPAN_TYPE_F32, KVSPAN_TYPE_F32, 16, 16, 2, 4}};
  options.geometry.page_tokens = 8;
  options.context_tokens = 120;
  options.prefill_rows_max = 16;
  options.arena_bytes = arena_bytes;
  return options;
}

// What the engine writes for tag 7, page by page.
PageSource engine_pages(const Geometry& geometry) {
  return [geometry](
             std::uint32_t layer, std::uint64_t page, std::span<std::byte> bytes) -> Result<void> {
    const PageLayout layout = (*page_layouts(geometry))[layer];
    for (std::uint64_t row = 0; row < 8; ++row) {
      for (std::uint64_t element = 0; element < 32; ++element) {
        const float k = noise(2, 7, layer, page * 8 + row, element);
        const float v = noise(3, 7, layer, page * 8 + row, element);
        const LayerGeometry& of = geometry.layers[layer];
        const std::uint64_t k_head = element / of.head_size_k;
        const std::uint64_t v_head = element / of.head_size_v;
        std::memcpy(
            bytes.data() + k_row_offset(layout, row, k_head) + element % of.head_size_k * 4, &k, 4);
        std::memcpy(
            bytes.data() + v_row_offset(layout, row, v_head) + element % of.head_size_v * 4, &v, 4);
      }
    }
    return {};
  };
}

Outputs decoded(Engine& engine, SequenceId sequence) {
  Outputs outputs;
  for (std::uint64_t token = kTokens; token < kTokens + 12; ++token) {
    EXPECT_TRUE(engine.step({{sequence, 7, token, 1}}, Phase::decode, &outputs).has_value());
  }
  return outputs;
}

Outputs written_then_decoded() {
  StubRig rig;
  const SessionOptions options = plain_options(kResidentArena);
  auto session = Session::open(rig.backend(), options);
  EXPECT_TRUE(session.has_value());
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  for (std::uint64_t token = 0; token < kTokens; token += 15) {
    EXPECT_TRUE(engine.step({{sequence, 7, token, 15}}, Phase::prefill, nullptr).has_value());
  }
  return decoded(engine, sequence);
}

TEST(SessionLoad, ALoadedHistoryHasTheBitsOfAWrittenOne) {
  const Outputs expected = written_then_decoded();
  for (const std::uint64_t arena_bytes : {30'000ULL, 40'000ULL, 60'000ULL, 1ULL << 30}) {
    SCOPED_TRACE("arena " + std::to_string(arena_bytes));
    StubRig rig({{"queues", "shuffled"}, {"seed", "8"}});
    const SessionOptions options = plain_options(arena_bytes);
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    const SequenceId sequence = *session->add_sequence();
    Engine engine(rig.backend(), *session, options, 16);
    const auto loaded = session->load(sequence, kTokens, engine_pages(options.geometry));
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
    EXPECT_EQ(*session->tokens(sequence), kTokens);
    EXPECT_TRUE(same_bits(decoded(engine, sequence), expected));
    // Again in the place of the truncated past, whose copies may still run.
    ASSERT_TRUE(session->truncate(sequence, 0).has_value());
    ASSERT_TRUE(session->load(sequence, kTokens, engine_pages(options.geometry)).has_value());
    EXPECT_TRUE(same_bits(decoded(engine, sequence), expected));
  }
}

// Rows that a given-up step wrote into the page in which the loaded history will end.
TEST(SessionLoad, ALoadAfterAStepThatWasGivenUpHasItsOwnRows) {
  constexpr std::uint64_t kFew = 5;
  SessionOptions options = plain_options(30'000);
  options.stream.resident_pages_max = 0;
  std::vector<Outputs> runs;
  for (const int given_up : {0, 1}) {
    StubRig rig;
    auto session = Session::open(rig.backend(), options);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    const SequenceId sequence = *session->add_sequence();
    Engine engine(rig.backend(), *session, options, 16);
    const StepRows part{sequence, 1};
    if (given_up != 0) {
      Buffer rows = make_buffer(rig.backend(), 16, 2, 16);
      WriteRows write;
      write.k = write.v = rows.rows();
      for (std::uint32_t element = 0; element < 32; ++element) {
        rows.row(0)[element] = 100.0F;
      }
      ASSERT_TRUE(session->begin_step({&part, 1}, Phase::decode).has_value());
      ASSERT_TRUE(session->write(0, write).has_value());
      session->cancel_step();
    }
    ASSERT_TRUE(session->load(sequence, kFew, engine_pages(options.geometry)).has_value());
    ASSERT_TRUE(
        engine.step({{sequence, 7, kFew, 1}}, Phase::decode, &runs.emplace_back()).has_value());
  }
  EXPECT_TRUE(same_bits(runs[0], runs[1]));
}

TEST(SessionLoad, WhatFailsLeavesAnEmptySequence) {
  StubRig rig;
  const SessionOptions options = plain_options(30'000);
  auto session = Session::open(rig.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const PageSource pages = engine_pages(options.geometry);
  EXPECT_EQ(session->load(0, 8, pages).error().code, Errc::not_found);
  const SequenceId sequence = *session->add_sequence();
  const auto too_long = session->load(sequence, 121, pages);
  EXPECT_EQ(too_long.error().code, Errc::too_large);
  EXPECT_EQ(too_long.error().missing, 1U);
  const auto broken = session->load(
      sequence,
      kTokens,
      [&](std::uint32_t layer, std::uint64_t page, std::span<std::byte> bytes) -> Result<void> {
        return page == 5 ? tl::unexpected(Error{Errc::io, "the file ended"})
                         : pages(layer, page, bytes);
      });
  EXPECT_EQ(broken.error().code, Errc::io);
  EXPECT_EQ(*session->tokens(sequence), 0U);
  rig.plant(KVSPAN_FAULT_SUBMIT, 1, KVSPAN_E_FAILED);
  const bool resident = session->plan().resident_pages.front() != 0;
  EXPECT_EQ(session->load(sequence, kTokens, pages).has_value(), !resident);
  rig.plant(0, 0, KVSPAN_OK);
  ASSERT_TRUE(resident) << "the arena keeps a page resident, so that the load has work to fail";
  EXPECT_EQ(*session->tokens(sequence), 0U);
  ASSERT_TRUE(session->load(sequence, kTokens, pages).has_value());
  EXPECT_EQ(session->load(sequence, 8, pages).error().code, Errc::invalid_argument);
  const StepRows part{sequence, 1};
  ASSERT_TRUE(session->begin_step({&part, 1}, Phase::decode).has_value());
  EXPECT_EQ(session->load(sequence, 8, pages).error().code, Errc::busy);
  session->cancel_step();
  Engine engine(rig.backend(), *session, options, 16);
  EXPECT_TRUE(same_bits(decoded(engine, sequence), written_then_decoded()));
}

// A source that throws is one that fails. The sequence is empty then and takes rows from the first
// on, also where a window would have kept pages from a later one on only.
TEST(SessionLoad, WhatASourceThrowsIsAnError) {
  SessionOptions options = plain_options(60'000);
  options.geometry.layers[1].window_tokens = 9;
  options.rewind_tokens = 8;
  const auto decoded_from_0 = [&options](Session& session, SequenceId sequence, StubRig& rig) {
    Outputs outputs;
    Engine engine(rig.backend(), session, options, 16);
    EXPECT_TRUE(engine.prefill(sequence, 7, 0, kTokens, 16, nullptr).has_value());
    EXPECT_TRUE(engine.decode(sequence, 7, kTokens, kTokens + 5, &outputs).has_value());
    return outputs;
  };
  const std::vector<std::pair<std::function<void()>, Errc>> throws = {
      {[] {}, Errc::io},
      {[] { throw std::bad_alloc(); }, Errc::host_memory},
      {[] { throw std::runtime_error("the file is gone"); }, Errc::internal},
      {[] { throw 7; }, Errc::internal}};
  Outputs expected;
  for (const auto& [does, code] : throws) {
    SCOPED_TRACE(static_cast<int>(code));
    StubRig rig;
    {
      auto session = Session::open(rig.backend(), options);
      ASSERT_TRUE(session.has_value()) << session.error().message;
      const SequenceId sequence = *session->add_sequence();
      const auto loaded = session->load(
          sequence,
          kTokens,
          [&, does = does](std::uint32_t layer, std::uint64_t page, std::span<std::byte>) {
            if (layer == 1 && page == 8) {
              does();
              return Result<void>(tl::unexpected(Error{Errc::io, "the file ended"}));
            }
            EXPECT_TRUE(layer == 0 || page > 6) << "behind the window";
            return Result<void>();
          });
      EXPECT_EQ(loaded.error().code, code);
      EXPECT_FALSE(loaded.error().message.empty());
      EXPECT_EQ(*session->tokens(sequence), 0U);
      EXPECT_EQ(session->counters().host_held_bytes, 0U);
      const Outputs outputs = decoded_from_0(*session, sequence, rig);
      expected = expected.empty() ? outputs : expected;
      EXPECT_TRUE(same_bits(outputs, expected));
    }
    kvspan_error_t error = empty_error();
    EXPECT_EQ(rig.close(&error), KVSPAN_OK) << error.message;
  }
}

}  // namespace
}  // namespace kvspan::test
