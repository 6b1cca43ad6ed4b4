// SPDX-License-Identifier: Apache-2.0
// A device whose copies move whole units only. Rows of its history lie in units of their own: what
// a failed copy leaves undefined is never a committed row (the simulator spoils it). Copies are
// looked at in front of stub and cpu; outputs have the bits of rows without padding.
#include "engine_rig.hpp"
#include "watched_rig.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>

namespace kvspan::test {
namespace {

constexpr std::uint32_t kSequenceTag = 7;
constexpr std::uint64_t kPromptTokens = 90;
constexpr std::uint64_t kTokens = 102;

std::uint64_t& unit_bytes() {
  static std::uint64_t bytes = 1;
  return bytes;
}

kvspan_result_t limits_of_units(kvspan_device_t* device,
                                kvspan_copy_limits_t* out,
                                kvspan_error_t* error) noexcept {
  const kvspan_result_t result = WatchedRig::inner().copy->limits(device, out, error);
  out->target_alignment = unit_bytes();
  out->source_alignment = unit_bytes() / 2;
  return result;
}

class SessionAlignment : public ::testing::TestWithParam<const char*> {
 protected:
  SessionAlignment()
      : rig_(GetParam(), [this](std::span<const kvspan_segment_t> segments) { look(segments); }) {
    rig_.copies().limits = limits_of_units;
  }

  // Rows of 34 and 18 bytes where nothing is padded, of all heads.
  static SessionOptions options() {
    SessionOptions options = small_options();
    options.geometry.layers = {{KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 32, 32, 2, 4},
                               {KVSPAN_TYPE_Q4_0, KVSPAN_TYPE_Q4_0, 32, 32, 1, 4}};
    options.geometry.page_tokens = 32;
    options.prefill_rows_fixed = 11;
    return options;
  }

  Outputs run(const SessionOptions& options) {
    auto session = Session::open(rig_.backend(), options);
    EXPECT_TRUE(session) << session.error().message;
    if (!session) {
      return {};
    }
    Engine engine(rig_.backend(), *session, options, 64);
    const auto sequence = session->add_sequence();
    Outputs outputs;
    EXPECT_TRUE(engine.prefill(*sequence, kSequenceTag, 0, kPromptTokens, 11, &outputs));
    EXPECT_TRUE(engine.decode(*sequence, kSequenceTag, kPromptTokens, kTokens, &outputs));
    streamed_ = session->counters().streamed_pages;
    return outputs;
  }

  std::uint64_t streamed_ = 0;
  std::uint64_t odd_ = 0;  // segments that are no whole units
  std::uint64_t segments_ = 0;
  WatchedRig rig_;

 private:
  void look(std::span<const kvspan_segment_t> segments) {
    for (const kvspan_segment_t& one : segments) {
      const std::uint64_t pitches = one.rows > 1 ? one.source_pitch | one.target_pitch : 0;
      const std::uint64_t all = one.source_offset | one.target_offset | one.bytes | pitches;
      odd_ += all % unit_bytes() != 0 ? 1U : 0U;
      ++segments_;
    }
  }
};

TEST_P(SessionAlignment, CopiesAreOfWholeUnitsAndMoveNoBit) {
  unit_bytes() = 1;
  SessionOptions options = SessionAlignment::options();
  options.arena_bytes = kResidentArena;
  const Outputs expected = run(options);
  ASSERT_FALSE(expected.empty());
  for (const std::uint64_t unit : {4U, 16U, 64U, 256U}) {
    SCOPED_TRACE(unit);
    unit_bytes() = unit;
    odd_ = segments_ = 0;
    auto aligned = aligned_for(rig_.backend(), options.geometry);
    ASSERT_TRUE(aligned) << aligned.error().message;
    EXPECT_EQ(aligned->row_alignment, unit);
    SessionOptions asked = options;
    asked.geometry = *aligned;
    asked.arena_bytes = plan(plan_request(rig_.backend(), asked)).value().minimum_arena_bytes;
    EXPECT_TRUE(same_bits(run(asked), expected));
    EXPECT_GT(streamed_, 0U);
    EXPECT_GT(segments_, 0U);
    EXPECT_EQ(odd_, 0U);
  }
}

TEST_P(SessionAlignment, RowsThatShareAUnitAreRefusedByName) {
  unit_bytes() = 16;
  SessionOptions options = SessionAlignment::options();
  options.arena_bytes = kResidentArena;
  options.geometry.row_alignment = 8;
  const auto refused = Session::open(rig_.backend(), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::invalid_argument);
  EXPECT_NE(refused.error().message.find("units of 16 bytes"), std::string::npos)
      << refused.error().message;
  EXPECT_NE(refused.error().message.find("row_alignment"), std::string::npos);
  options.geometry.row_alignment = 32;
  EXPECT_TRUE(Session::open(rig_.backend(), options));
  unit_bytes() = 256;  // more than tiles are aligned to
  EXPECT_FALSE(Session::open(rig_.backend(), options));
}

INSTANTIATE_TEST_SUITE_P(Plugins, SessionAlignment, ::testing::Values("stub", "cpu"));

}  // namespace
}  // namespace kvspan::test
