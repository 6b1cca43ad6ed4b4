// SPDX-License-Identifier: Apache-2.0
// What an engine tells a session about a step, so that the policy can change the placement: core
// reads no clock. Plain data. Read next: policy/policy.hpp, session.hpp (observe).
#pragma once

#include "kvspan/core/policy/policy.hpp"

#include <cstdint>
#include <optional>

namespace kvspan {

// Since the last observation, or since the session was opened.
struct StepObservation {
  double elapsed_ns = 0.0;        // by any steady clock
  std::uint64_t late_groups = 0;  // that attention waited for, where the engine can tell
  // That the link was busy bringing groups, where the engine measured it. Otherwise the session's
  // own measurements count, if it makes any; with neither nothing is learnt about the link.
  std::optional<double> link_busy_ns;
  std::optional<double> gap_ns;  // before each layer's attention, instead of StreamOptions::gap_ns
};

// Whether and how a session's placement may change.
struct PlacementOptions {
  bool changes = false;          // the backend is prepared for groups of kGroupPagesMax
  bool measures_copies = false;  // groups are submitted to be measured, and observe() reads them
  // Prefill and decode have the arena one after the other, each with its own placement and scratch:
  // Session::enter(). For engines that take prompts and answers in turns; one that mixes both step
  // by step would only change.
  bool phases_take_turns = false;
  PolicyLimits limits;
};

}  // namespace kvspan
