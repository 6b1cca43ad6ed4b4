// SPDX-License-Identifier: Apache-2.0
// What the policy thinks that a change of the placement moves, against the copies that a plugin is
// handed: to the byte, with several sequences, windows that roll, and phases that take turns.
#include "moving_rig.hpp"
#include "watched_rig.hpp"

#include <cstdio>
#include <random>
#include <vector>

namespace kvspan::test {
namespace {

// The layer with a window.
std::size_t window_of(int seed) {
  return seed % 7 < 4 ? 0 : 2;
}

// Unlike layers on a link whose gap is worth covering. Every better placement is taken at once.
SessionOptions restless_options(const Backend& backend, int seed) {
  SessionOptions options = seed % 2 == 0 ? turning_options() : moving_options();
  options.sequences = 1 + static_cast<std::uint32_t>(seed % 3);
  if (window_of(seed) == 0) {  // layers behind it change, and it stays
    std::swap(options.geometry.layers.front(), options.geometry.layers.back());
  }
  options.stream.link_bytes_s = 1'000'000'000;
  options.stream.copy_ns = 200;
  options.stream.gap_ns = 5'000;
  options.placement.limits.gain_min = 0.0;
  options.placement.limits.grow_after = options.placement.limits.shrink_after = 1;
  options.placement.limits.cooldown_steps = 2;
  // Histories as long as they will be: all of the context, or as good as they are.
  options.placement.limits.horizon_steps = seed % 5 < 2 ? 1e9 : 10.0;
  // Of the history: where most of it fits, a window rolls in places of its own.
  const auto least = plan(plan_request(backend, options));
  const std::uint64_t parts[] = {20, 50, 75, 90};
  options.arena_bytes =
      least->minimum_arena_bytes + least->history_bytes * parts[seed / 2 % 4] / 100;
  return options;
}

// Counts what goes up to resident places.
class ResidentCopies {
 public:
  ResidentCopies()
      : rig_("stub", [this](std::span<const kvspan_segment_t> segments) {
          for (const kvspan_segment_t& segment : segments) {
            if (session != nullptr && WatchedRig::goes_up(segment) &&
                segment.target_offset < session->plan().regions.resident_bytes) {
              bytes += segment.bytes * segment.rows;
            }
          }
        }) {}

  [[nodiscard]] const Backend& backend() const { return rig_.backend(); }

  const Session* session = nullptr;  // counts while there is one
  std::uint64_t bytes = 0;

 private:
  WatchedRig rig_;
};

struct Changes {
  int seen = 0;
  int that_move = 0;
  int that_keep = 0;  // less than everything that is resident then
  int that_roll = 0;  // a window's pages among them
};

// A step of every sequence, so that each brings what it misses.
void step_all(Engine& engine, Session& session, const std::vector<SequenceId>& ids) {
  std::vector<EngineRows> parts;
  parts.reserve(ids.size());
  for (const SequenceId id : ids) {
    parts.push_back({id, 7, *session.tokens(id), 1});
  }
  ASSERT_TRUE(engine.step(parts, Phase::decode, nullptr).has_value());
}

void run_restless(int seed, Changes& changes) {
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  ResidentCopies copies;
  const SessionOptions options = restless_options(copies.backend(), seed);
  auto session = Session::open(copies.backend(), options);
  ASSERT_TRUE(session.has_value()) << session.error().message;
  copies.session = &*session;
  if (session->plan().mode == PlanMode::resident) {
    return;
  }
  Engine engine(copies.backend(), *session, options, 16);
  std::vector<SequenceId> ids;
  for (std::uint32_t sequence = 0; sequence < options.sequences; ++sequence) {
    ids.push_back(*session->add_sequence());
    ASSERT_TRUE(engine.prefill(ids.back(), 7, 0, 40 + random() % 120, 16, nullptr).has_value());
  }
  step_all(engine, *session, ids);
  for (int step = 0; step < 40; ++step) {
    StepObservation seen;
    seen.elapsed_ns = 1e6;
    seen.gap_ns = static_cast<double>(random() % 4) * 15'000.0;
    const auto decision = session->observe(seen);
    ASSERT_TRUE(decision.has_value()) << decision.error().message;
    copies.bytes = 0;
    std::uint64_t held_bytes = 0;
    for (const SequenceId id : ids) {
      const std::uint64_t pages = (*session->tokens(id) + kPage - 1) / kPage;
      for (std::size_t layer = 0; layer < session->plan().pages.size(); ++layer) {
        held_bytes += std::min<std::uint64_t>(pages, session->plan().resident_pages[layer]) *
                      session->plan().pages[layer].page_bytes;
      }
    }
    const std::uint64_t counted = session->counters().moved_bytes;
    step_all(engine, *session, ids);
    ASSERT_EQ(copies.bytes, decision->moved_bytes)
        << "step " << step << ", " << name(decision->reason);
    ASSERT_EQ(session->counters().moved_bytes - counted, decision->moved_bytes);
    changes.seen += decision->changed ? 1 : 0;
    changes.that_move += decision->moved_bytes != 0 ? 1 : 0;
    const std::size_t window = window_of(seed);
    const std::uint32_t rolling = session->plan().rolling_pages[window];
    changes.that_roll += decision->moved_bytes != 0 && rolling != 0 &&
                                 session->plan().resident_pages[window] >= rolling
                             ? 1
                             : 0;
    changes.that_keep += decision->changed && decision->moved_bytes < held_bytes ? 1 : 0;
  }
}

TEST(SessionPrice, AChangeMovesWhatItWasPricedAt) {
  Changes changes;
  const int sessions = KVSPAN_TEST_SANITIZED != 0 ? 12 : 120;
  for (int seed = 1; seed <= sessions; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_restless(seed, changes);
    ASSERT_FALSE(HasFailure());
  }
  std::printf(
      "%d sessions: %d changes, %d that move pages, %d that keep some, %d with a window that "
      "rolls\n",
      sessions,
      changes.seen,
      changes.that_move,
      changes.that_keep,
      changes.that_roll);
  EXPECT_GT(changes.that_move, sessions / 2);
  EXPECT_GT(changes.that_keep, sessions / 2);
  EXPECT_GE(changes.that_roll, sessions / 20);
}

}  // namespace
}  // namespace kvspan::test
