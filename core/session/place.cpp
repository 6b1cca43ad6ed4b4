// SPDX-License-Identifier: Apache-2.0
// Another placement between two steps. Everything in flight settles, then regions, slots and places
// are laid out anew in the same arena; pages that are not where they were come from the host when
// the next step of their sequence begins (resident.cpp). Read next: observe.cpp (who asks for it).
#include "state.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {

// Nothing names the regions: all work has settled. On failure they are as they were.
Result<void> SessionState::move_regions(const PlanRegions& regions) {
  for (Lease* lease :
       {&resident_lease, &slots_lease, &states_lease, &accumulators_lease, &workspace_lease}) {
    *lease = {};
  }
  auto committed = commit_regions(regions);
  if (!committed) {
    (void)arena->rollback();
  }
  if (auto acquired = acquire_regions(committed ? regions : plan.regions); !acquired) {
    return acquired;
  }
  return committed;
}

// Which resident pages the next plan has elsewhere than this one, or did not have.
void SessionState::mark_moved(const Plan& next) {
  for (std::uint32_t sequence = 0; sequence < sequences.size(); ++sequence) {
    for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
      PageRange& missing = sequences[sequence].missing[layer];
      const std::uint32_t before = plan.resident_pages[layer];
      const std::uint32_t now = next.resident_pages[layer];
      const bool stays = sequence * plan.resident_sequence_bytes + plan.resident_offsets[layer] ==
                         sequence * next.resident_sequence_bytes + next.resident_offsets[layer];
      if (!stays || (before != now && plan.rolling_pages[layer] != 0)) {
        missing = kAllPages;
      } else if (now > before) {
        missing = missing.begin == missing.end
                      ? PageRange{before, now}
                      : PageRange{std::min<std::uint64_t>(missing.begin, before), UINT64_MAX};
      }
    }
  }
}

Result<void> SessionState::place(const Placement& placement) {
  auto next = replaced(plan, options.sequences, placement);
  if (!next) {
    return tl::unexpected(std::move(next).error());
  }
  const std::uint32_t group_max =
      options.placement.changes ? std::max(kGroupPagesMax, plan.group_pages) : plan.group_pages;
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
  if (auto drained = lanes->drain(); !drained) {
    return drained;
  }
  if (auto healthy = lanes->health(); !healthy) {
    return tl::unexpected(fail_behind(std::move(healthy).error()));
  }
  if (auto moved = move_regions(next->regions); !moved) {
    return moved;
  }
  drop_primed();
  mark_moved(*next);
  plan = std::move(*next);
  make_slots();
  ++counters.placement_changes;
  return {};
}

Result<void> Session::place(const Placement& placement) {
  SessionState& state = *state_;
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

}  // namespace kvspan
