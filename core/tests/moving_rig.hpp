// SPDX-License-Identifier: Apache-2.0
// Sessions whose placement changes while they run: unlike layers, drawn placements, what a step
// then streams, and the bits of a session that holds everything.
#pragma once

#include "engine_rig.hpp"
#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

namespace kvspan::test {

inline constexpr std::uint64_t kPage = 8;
inline constexpr std::uint64_t kPrompt = 170;
inline constexpr std::uint64_t kEnd = 230;

// Unlike layers, one of them with a window.
inline SessionOptions moving_options() {
  SessionOptions options = small_options();
  options.geometry.layers.push_back({KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 16, 8, 2, 4, 21});
  options.context_tokens = 250;
  options.prefill_rows_fixed = 16;
  options.rewind_tokens = 30;
  options.placement.changes = true;
  return options;
}

// The same whose phases take turns.
inline SessionOptions turning_options() {
  SessionOptions options = moving_options();
  options.placement.phases_take_turns = true;
  return options;
}

inline std::uint64_t minimum_of(const Backend& backend, const SessionOptions& options) {
  return plan(plan_request(backend, options))->minimum_arena_bytes;
}

// A placement that the arena holds: drawn numbers, cut until they fit.
inline Placement drawn_placement(const Plan& plan,
                                 std::uint32_t sequences,
                                 std::mt19937_64& random) {
  const auto pick = [&](std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
  };
  Placement out;
  out.group_pages = static_cast<std::uint32_t>(pick(1, 4));
  out.ring_slots = static_cast<std::uint32_t>(std::max<std::uint64_t>(2, out.group_pages)) +
                   static_cast<std::uint32_t>(pick(0, 6));
  for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
    const bool rolls = plan.rolling_pages[layer] != 0 && pick(0, 1) != 0;
    out.resident_pages.push_back(rolls ? plan.rolling_pages[layer] + pick(0, 2)
                                       : pick(0, plan.pages_a_sequence));
  }
  while (!replaced(plan, sequences, out)) {
    out.group_pages = 1;
    out.ring_slots = std::max(2U, out.ring_slots / 2);
    for (std::uint64_t& pages : out.resident_pages) {
      pages = pages * 3 / 4;
    }
  }
  return out;
}

// Pages that a decode step behind `tokens` tokens brings.
inline std::uint64_t streamed(const Plan& plan,
                              const SessionOptions& options,
                              std::uint64_t tokens) {
  std::uint64_t total = 0;
  for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
    const std::uint64_t window = options.geometry.layers[layer].window_tokens;
    const std::uint64_t first =
        window == 0 || tokens + 1 <= window ? 0 : (tokens + 1 - window) / kPage;
    const bool rolls =
        plan.rolling_pages[layer] != 0 && plan.resident_pages[layer] >= plan.rolling_pages[layer];
    const std::uint64_t from = std::max<std::uint64_t>(first, plan.resident_pages[layer]);
    total += rolls || tokens / kPage < from ? 0 : tokens / kPage - from;
  }
  return total;
}

inline Outputs resident_run(const SessionOptions& moving) {
  SessionOptions options = moving;
  options.arena_bytes = kResidentArena;
  StubRig rig;
  auto session = Session::open(rig.backend(), options);
  EXPECT_TRUE(session.has_value()) << session.error().message;
  const SequenceId sequence = *session->add_sequence();
  Engine engine(rig.backend(), *session, options, 16);
  Outputs outputs;
  EXPECT_TRUE(engine.prefill(sequence, 7, 0, kPrompt, 16, &outputs).has_value());
  EXPECT_TRUE(engine.decode(sequence, 7, kPrompt, kEnd, &outputs).has_value());
  return outputs;
}

}  // namespace kvspan::test
