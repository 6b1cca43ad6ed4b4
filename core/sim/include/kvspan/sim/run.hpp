// SPDX-License-Identifier: Apache-2.0
// Runs a scenario: a session of core over a simulated device, an engine that knows what must come
// out, and checkers that share nothing with core.
#pragma once

#include "kvspan/sim/call.hpp"
#include "kvspan/sim/scenario.hpp"

#include <cstdint>
#include <string>

namespace kvspan::sim {

// What was exercised, to be summed over seeds.
struct Tally {
  std::uint64_t steps = 0;
  std::uint64_t submits = 0;
  std::uint64_t checked_rows = 0;  // K or V rows that attention compared with what must be there
  std::uint64_t streamed_pages = 0;
  std::uint64_t failures = 0;       // calls of the session that failed as they had to
  std::uint64_t recoveries = 0;     // of those, behind planted faults
  std::uint64_t cancellations = 0;  // that the session answered
  std::uint64_t sessions = 0;       // opened
  std::uint64_t refused_opens = 0;
  std::uint64_t placements = 0;     // other ones, told or decided by the policy
  std::uint64_t decisions = 0;      // of those, by the policy
  std::uint64_t phases = 0;         // entered, where that lays the arena out anew
  std::uint64_t retired_pages = 0;  // given back behind windows

  void add(const Tally& other);
};

struct Outcome {
  std::string checker;  // empty: nothing was found
  std::string what;     // one sentence
  std::size_t op = 0;   // at which operation, ops.size() = afterwards
  Tally tally;

  [[nodiscard]] bool passed() const { return checker.empty(); }
};

// One thread, virtual time: the same scenario has the same outcome every time. `filter` may be
// null. Thread class: ANY.
[[nodiscard]] Outcome run(const Scenario& scenario, CallFilter* filter = nullptr);

}  // namespace kvspan::sim
