// SPDX-License-Identifier: Apache-2.0
// A session whose arena is larger than 2^32 bytes, on the stub's virtual memory: resident pages,
// ring and tails all lie where 32 bits do not reach, and the outputs keep their bits.
#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

namespace kvspan::test {
namespace {

constexpr std::uint64_t kFourGibibytes = 1ULL << 32;
constexpr std::uint32_t kManySequences = 1500;
constexpr std::uint32_t kPromptTokens = 165;
constexpr std::uint32_t kDecodeTokens = 4;

// 128 KiB a page and layer: 1,500 half resident sequences of 25 pages make more than 4 GiB.
SessionOptions wide_options(std::uint32_t sequences) {
  SessionOptions options;
  options.geometry.layers = {
      {KVSPAN_TYPE_F32, KVSPAN_TYPE_F32, 256, 256, 8, 8},
      {KVSPAN_TYPE_F32, KVSPAN_TYPE_F32, 256, 256, 8, 8},
  };
  options.geometry.page_tokens = 8;
  options.context_tokens = 200;
  options.prefill_rows_max = 15;
  options.prefill_rows_fixed = 15;
  options.sequences = sequences;
  options.arena_bytes = 1ULL << 36;
  return options;
}

// Outputs of the last of all sequences.
Outputs run_last(const Backend& backend, Session& session, const SessionOptions& options) {
  SequenceId last = 0;
  for (std::uint32_t index = 0; index < options.sequences; ++index) {
    const auto added = session.add_sequence();
    EXPECT_TRUE(added.has_value());
    last = *added;
  }
  Engine engine(backend, session, options, 16);
  Outputs outputs;
  const auto prompt = engine.prefill(last, 7, 0, kPromptTokens, 15, &outputs);
  EXPECT_TRUE(prompt.has_value()) << prompt.error().message;
  const auto tail = engine.decode(last, 7, kPromptTokens, kPromptTokens + kDecodeTokens, &outputs);
  EXPECT_TRUE(tail.has_value()) << tail.error().message;
  return outputs;
}

TEST(SessionOffsets, PagesBeyondFourGibibytesKeepTheirBits) {
  StubRig rig;
  const SessionOptions one = wide_options(1);
  auto small = Session::open(rig.backend(), one);
  ASSERT_TRUE(small.has_value()) << small.error().message;
  const Outputs expected = run_last(rig.backend(), *small, one);
  ASSERT_EQ(expected.size(), 2U * (kPromptTokens / 15 + kDecodeTokens));

  SessionOptions many = wide_options(kManySequences);
  std::uint64_t whole = 0;
  {
    auto session = Session::open(rig.backend(), many);
    ASSERT_TRUE(session.has_value()) << session.error().message;
    whole = session->plan().regions.total_bytes();
  }
  many.arena_bytes = whole / 10 * 6;
  auto session = Session::open(rig.backend(), many);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  const Plan& plan = session->plan();
  ASSERT_GT((kManySequences - 1) * plan.resident_sequence_bytes, kFourGibibytes);
  ASSERT_GT(plan.regions.resident_bytes, kFourGibibytes) << "the ring begins behind it";
  const Outputs outputs = run_last(rig.backend(), *session, many);
  EXPECT_TRUE(same_bits(outputs, expected));
  EXPECT_GT(session->counters().streamed_pages, 0U);
}

}  // namespace
}  // namespace kvspan::test
