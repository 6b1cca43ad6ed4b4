// SPDX-License-Identifier: Apache-2.0
// Parts of a copy keep the limits and move the same bytes; sessions on devices that take little a
// submit.
#include "session/copy_parts.hpp"

#include "engine_rig.hpp"
#include "watched_rig.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <vector>

namespace kvspan::test {
namespace {

constexpr std::uint32_t kSeed = 6117;

// Target byte -> source byte.
std::map<std::uint64_t, std::uint64_t> moved(std::span<const kvspan_segment_t> segments) {
  std::map<std::uint64_t, std::uint64_t> out;
  for (const kvspan_segment_t& one : segments) {
    for (std::uint64_t row = 0; row < one.rows; ++row) {
      for (std::uint64_t at = 0; at < one.bytes; ++at) {
        const auto placed = out.emplace(one.target_offset + row * one.target_pitch + at,
                                        one.source_offset + row * one.source_pitch + at);
        EXPECT_TRUE(placed.second) << "a byte is written twice";
      }
    }
  }
  return out;
}

TEST(CopyParts, KeepTheLimitsAndMoveTheSameBytes) {
  SCOPED_TRACE("seed 6117");
  std::mt19937_64 random(kSeed);
  const auto up_to = [&random](std::uint64_t most) { return 1 + random() % most; };
  for (int round = 0; round < 2000; ++round) {
    const std::uint64_t unit = std::uint64_t{1} << (random() % 5);
    kvspan_copy_limits_t limits{};
    limits.segments_max = static_cast<std::uint32_t>(up_to(4));
    limits.source_alignment = limits.target_alignment = unit;
    limits.bytes_alignment = limits.pitch_alignment = unit;
    limits.bytes_max = unit * up_to(40) + random() % unit;
    std::vector<kvspan_segment_t> segments;
    std::uint64_t target = 0;
    for (std::uint64_t count = up_to(6); count != 0; --count) {
      kvspan_segment_t one{};
      one.bytes = unit * (random() % 30);
      one.rows = up_to(6);
      one.source_pitch = one.bytes + unit * (random() % 3);
      one.target_pitch = one.bytes + unit * (random() % 3);
      one.source_offset = unit * (random() % 1000);
      one.target_offset = target;
      target += one.rows * one.target_pitch + unit;
      segments.push_back(one);
    }
    std::vector<kvspan_segment_t> all;
    const auto parts = copy_parts(segments, limits);
    for (const std::vector<kvspan_segment_t>& part : parts) {
      ASSERT_TRUE(fits_one_copy(part, limits)) << round;
      ASSERT_FALSE(part.empty()) << round;
      for (const kvspan_segment_t& one : part) {
        ASSERT_EQ((one.source_offset | one.target_offset | one.bytes) % unit, 0U) << round;
        all.push_back(one);
      }
    }
    ASSERT_EQ(moved(all), moved(segments)) << round;
  }
}

kvspan_result_t small_limits(kvspan_device_t* device,
                             kvspan_copy_limits_t* out,
                             kvspan_error_t* error) noexcept {
  const kvspan_result_t result = WatchedRig::inner().copy->limits(device, out, error);
  out->segments_max = 3;
  out->bytes_max = 700;
  return result;
}

// Two sequences' rows make more segments than a submit takes, and pages are larger than one.
TEST(CopyParts, SessionsCutWhatASubmitDoesNotTake) {
  for (const char* plugin : {"stub", "cpu"}) {
    SCOPED_TRACE(plugin);
    std::uint64_t most_segments = 0;
    std::uint64_t most_bytes = 0;
    WatchedRig rig(plugin, [&](std::span<const kvspan_segment_t> segments) {
      std::uint64_t bytes = 0;
      for (const kvspan_segment_t& one : segments) {
        bytes += one.rows * one.bytes;
      }
      most_segments = std::max<std::uint64_t>(most_segments, segments.size());
      most_bytes = std::max(most_bytes, bytes);
    });
    SessionOptions options = small_options();
    options.geometry.page_tokens = 32;
    options.sequences = 2;
    options.prefill_rows_fixed = 11;
    const auto run = [&](std::uint64_t arena_bytes) {
      options.arena_bytes = arena_bytes;
      auto session = Session::open(rig.backend(), options);
      EXPECT_TRUE(session) << session.error().message;
      Outputs outputs;
      if (!session) {
        return outputs;
      }
      Engine engine(rig.backend(), *session, options, 64);
      std::vector<EngineRows> rows;
      for (std::uint64_t tag = 7; tag < 9; ++tag) {
        const auto sequence = session->add_sequence();
        EXPECT_TRUE(engine.prefill(*sequence, tag, 0, 80, 11, &outputs));
        rows.push_back({*sequence, tag, 80, 1});
      }
      EXPECT_TRUE(engine.step(rows, Phase::decode, &outputs));
      return outputs;
    };
    const Outputs expected = run(kResidentArena);
    EXPECT_GT(most_segments, 3U);
    EXPECT_GT(most_bytes, 700U);
    most_segments = most_bytes = 0;
    rig.copies().limits = small_limits;
    const std::uint64_t least =
        plan(plan_request(rig.backend(), options)).value().minimum_arena_bytes;
    EXPECT_TRUE(same_bits(run(least), expected));
    EXPECT_LE(most_segments, 3U);
    EXPECT_LE(most_bytes, 700U);
  }
}

}  // namespace
}  // namespace kvspan::test
