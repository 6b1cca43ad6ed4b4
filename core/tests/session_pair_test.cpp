// SPDX-License-Identifier: Apache-2.0
// Two sessions of one device, as a target and its draft are: each has the outputs that it has
// alone, whatever the other asked the device to be ready for.
#include "kvspan/core/backend/reservations.hpp"

#include "engine_rig.hpp"
#include "failing_new.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <vector>

namespace kvspan::test {
namespace {

constexpr int kSteps = 40;

// Encodes for three sequences in a submit.
SessionOptions target_options() {
  SessionOptions options = small_options();
  options.sequences = 3;
  return options;
}

// For one, and has other shapes.
SessionOptions draft_options() {
  SessionOptions options = small_options();
  options.geometry.layers = {{KVSPAN_TYPE_F32, KVSPAN_TYPE_F32, 8, 8, 1, 1}};
  return options;
}

// A session with its engine and as many sequences as it takes.
struct Player {
  Player(const Backend& backend, SessionOptions options, std::uint64_t extra_bytes)
      : session(opened(backend, options, extra_bytes)), engine(backend, *session, options, 16) {
    for (std::uint32_t index = 0; index < options.sequences; ++index) {
      parts.push_back({*session->add_sequence(), index, 0, 3});
    }
  }

  static Result<Session> opened(const Backend& backend,
                                SessionOptions& options,
                                std::uint64_t extra_bytes) {
    options.prefill_rows_fixed = 3;
    options.arena_bytes = 1;
    const auto refused = Session::open(backend, options);
    options.arena_bytes = refused.error().required + extra_bytes;
    return Session::open(backend, options);
  }

  // A step; of one row at last.
  void play() {
    const bool decodes = parts.front().first_token >= 48;
    for (EngineRows& part : parts) {
      part.rows = decodes ? 1 : 3;
    }
    const auto done = engine.step(parts, decodes ? Phase::decode : Phase::prefill, &outputs);
    EXPECT_TRUE(done.has_value()) << done.error().message;
    for (EngineRows& part : parts) {
      part.first_token += part.rows;
    }
  }

  Result<Session> session;
  Engine engine;
  std::vector<EngineRows> parts;
  Outputs outputs;
};

Outputs alone(const SessionOptions& options) {
  StubRig rig;
  Player player(rig.backend(), options, 4000);
  for (int step = 0; step < kSteps; ++step) {
    player.play();
  }
  return player.outputs;
}

TEST(SessionPair, EachHasTheOutputsThatItHasAlone) {
  const Outputs target = alone(target_options());
  const Outputs draft = alone(draft_options());
  for (const bool draft_first : {false, true}) {
    SCOPED_TRACE(draft_first);
    StubRig rig;
    Player first(rig.backend(), draft_first ? draft_options() : target_options(), 4000);
    Player second(rig.backend(), draft_first ? target_options() : draft_options(), 4000);
    for (int step = 0; step < kSteps; ++step) {
      first.play();
      second.play();
    }
    EXPECT_TRUE(same_bits(first.outputs, draft_first ? draft : target));
    EXPECT_TRUE(same_bits(second.outputs, draft_first ? target : draft));
  }
}

TEST(SessionPair, TheOneThatStaysKeepsWhatItWasPromised) {
  StubRig rig;
  Player target(rig.backend(), target_options(), 4000);
  for (int round = 0; round < 4; ++round) {
    const Player draft(rig.backend(), draft_options(), 4000);
    for (int step = 0; step < 12; ++step) {
      target.play();
    }
  }
}

TEST(SessionPair, ASecondOneThatNeedsMoreIsRefusedWhileTheFirstWorks) {
  StubRig rig;
  Player draft(rig.backend(), draft_options(), 4000);
  draft.engine.never_wait(rig.backend(), 16);
  draft.play();
  SessionOptions more = target_options();
  more.arena_bytes = kResidentArena;
  const auto refused = Session::open(rig.backend(), more);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::busy) << refused.error().message;
  Outputs outputs;
  ASSERT_TRUE(draft.engine.settle(&outputs).has_value());
  EXPECT_TRUE(Session::open(rig.backend(), more).has_value());
  draft.play();
  ASSERT_TRUE(draft.engine.settle(&outputs).has_value());  // its buffers go before the session does
}

// A device that takes as many bytes as it is asked for segments.
kvspan_result_t KVSPAN_CALL take_bytes(kvspan_device_t*,
                                       const kvspan_prepare_t* request,
                                       kvspan_prepared_t* prepared,
                                       kvspan_error_t*) noexcept {
  prepared->device_bytes = request->segments_max;
  return KVSPAN_OK;
}

// An owner whose reservation did not come to an end is told all bytes by the next try.
TEST(Reservations, AnyAllocationMayFail) {
  kvspan_device_table_t table{};
  table.prepare = take_bytes;
  bool fired = true;
  for (std::uint64_t nth = 1; fired; ++nth) {
    SCOPED_TRACE("allocation " + std::to_string(nth));
    Reservations reservations;
    const int owners[2] = {};
    ReservedSubmits asked;
    asked.limits.segments_max = 100;
    asked.shapes.resize(1);
    ASSERT_EQ(reservations.reserve(table, nullptr, &owners[0], asked).value(), 100U);
    asked.limits.segments_max = 350;
    fail_new(nth);
    try {
      (void)reservations.reserve(table, nullptr, &owners[1], asked);
    } catch (const std::bad_alloc&) {
    }
    fired = new_has_failed();
    fail_new(0);
    EXPECT_EQ(reservations.reserve(table, nullptr, &owners[1], asked).value(), 250U);
  }
}

}  // namespace
}  // namespace kvspan::test
