// SPDX-License-Identifier: Apache-2.0
// Another placement or phase between two steps. Everything in flight settles, then regions, slots
// and places are laid out anew in the same arena (turns.cpp); pages that are not where they were
// come from the host when the next step of their sequence begins (resident.cpp). Read next:
// observe.cpp (who asks for it).
#include "calls.hpp"
#include "state.hpp"
#include "turns.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {

// What a change answers: where it failed because work before it did, sequences fall back.
Result<void> SessionState::settled_or(Result<void> changed) {
  if (changed) {
    return changed;
  }
  if (!lanes->health()) {
    return tl::unexpected(fail_behind(std::move(changed).error()));
  }
  return changed;
}

Result<void> SessionState::place(const Placement& placement) {
  auto next = replaced(plan, options.sequences, placement);
  if (!next) {
    return tl::unexpected(std::move(next).error());
  }
  const std::uint32_t group_max = group_pages_max(plan, options.placement);
  if (placement.group_pages > group_max) {
    return tl::unexpected(Error{Errc::too_large,
                                "groups of " + std::to_string(placement.group_pages) +
                                    " pages are more than the " + std::to_string(group_max) +
                                    " that the backend was prepared for",
                                placement.group_pages,
                                group_max,
                                placement.group_pages - group_max,
                                "placement"});
  }
  if (auto healthy = check_health(); !healthy) {
    return healthy;
  }
  if (auto changed = settled_or(turns->relay(*next)); !changed) {
    return changed;
  }
  ++counters.placement_changes;
  return {};
}

Result<void> SessionState::enter(Phase phase) {
  if (turns->is_in(phase)) {
    return {};
  }
  const bool moves = !plan.rooms.empty();
  if (auto changed = settled_or(turns->enter(phase)); !changed) {
    return changed;
  }
  counters.phase_changes += moves ? 1U : 0U;
  return {};
}

Result<void> unguarded::place(SessionState& state, const Placement& placement) {
  if (auto between = state.check_between_steps(); !between) {
    return between;
  }
  if (!state.options.placement.changes) {
    return tl::unexpected(error_of(Errc::invalid_argument,
                                   "the session was opened with a fixed placement; open it with "
                                   "placement.changes",
                                   "placement"));
  }
  return state.place(placement);
}

Result<void> unguarded::enter(SessionState& state, Phase phase) {
  if (auto between = state.check_between_steps(); !between) {
    return between;
  }
  if (auto healthy = state.check_health(); !healthy) {
    return healthy;
  }
  return state.enter(phase);
}

}  // namespace kvspan
