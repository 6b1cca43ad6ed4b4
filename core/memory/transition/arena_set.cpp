// SPDX-License-Identifier: Apache-2.0
// Plans are opened, target and all, before anything is touched, so that a commit can be refused for
// leases only.
#include "memory/transition/arena_set.hpp"

#include "memory/guarded_call.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {
namespace {

bool contains(const std::vector<Region>& regions, const Region& region) {
  return std::find(regions.begin(), regions.end(), region) != regions.end();
}

std::string arena_name(const ArenaChange& change) {
  return "the arena of " + std::string(name(change.kind)) + " memory in domain " +
         std::to_string(change.domain);
}

// A plan of exactly these regions; rolled back where one does not fit.
Result<void> plan_of(Arena& arena, const std::vector<Region>& regions) {
  if (auto begun = arena.begin(); !begun) {
    return begun;
  }
  for (const Region& region : regions) {
    auto placed = guarded_call("planning", [&] {
      return arena.reserve_at(
          region.id, region.offset, region.bytes, region.alignment, {region.persistent});
    });
    if (!placed) {
      (void)arena.rollback();
      return tl::unexpected(std::move(placed).error());
    }
  }
  return {};
}

// What holds contents stays where it is; the rest is placed anew.
std::vector<FixedRegion> fixed_of(const LiveStage& stage, const ArenaChange& change) {
  std::vector<FixedRegion> fixed;
  for (const Region& region : change.former) {
    const auto live =
        std::find_if(stage.live.begin(), stage.live.end(), [&](const LiveResource& each) {
          return each.resource.id == region.id && each.resource.domain == change.domain &&
                 each.resource.kind == change.kind && each.holds_contents;
        });
    if (live != stage.live.end() && region.persistent) {
      fixed.push_back({change.domain, change.kind, region});
    }
  }
  return fixed;
}

Result<void> check_base(const TransitionArena& at, const PoolLayout& layout) {
  const std::uint64_t base = at.base_alignment == 0 ? at.arena->alignment() : at.base_alignment;
  if (layout.base_alignment <= base) {
    return {};
  }
  Error error{Errc::unsupported,
              "a region aligned to " + std::to_string(layout.base_alignment) +
                  " needs a parent aligned so, but it is aligned to " + std::to_string(base) +
                  "; allocate another or ask for less"};
  error.component = "arena";
  return tl::unexpected(std::move(error));
}

}  // namespace

bool ArenaChange::stays(const Region& region) const {
  return region.persistent && contains(former, region) && contains(target, region);
}

std::vector<Binding> ArenaChange::changing() const {
  std::vector<Binding> bindings;
  for (const std::vector<Region>* regions : {&former, &target}) {
    for (const Region& region : *regions) {
      if (!stays(region)) {
        bindings.push_back({arena->memory(), region});
      }
    }
  }
  return bindings;
}

const ArenaChange* StageChange::find(std::uint64_t domain, MemoryKind kind) const {
  const auto found = std::find_if(arenas.begin(), arenas.end(), [&](const ArenaChange& each) {
    return each.domain == domain && each.kind == kind;
  });
  return found == arenas.end() ? nullptr : &*found;
}

bool is_same_layout(const StageChange& change) {
  return std::all_of(change.arenas.begin(), change.arenas.end(), [](const ArenaChange& each) {
    return each.former == each.target;
  });
}

Result<StageChange> ArenaSet::change_to(const LiveStage& stage, LayoutSizes sizes) {
  StageChange change{stage.id, TransitionDirection::forward, {}};
  std::vector<MemoryPool> pools;
  std::vector<FixedRegion> fixed;
  std::vector<Progress> progress;
  for (const TransitionArena& at : arenas_) {
    pools.push_back({at.domain, at.kind, at.arena->capacity_bytes(), at.arena->alignment()});
    progress.push_back({at.arena->generation(), false, false});
    change.arenas.push_back({at.domain, at.kind, at.arena, at.arena->committed(), {}});
    const auto kept = fixed_of(stage, change.arenas.back());
    fixed.insert(fixed.end(), kept.begin(), kept.end());
  }
  auto layout = lay_out(stage, pools, fixed, sizes);
  if (!layout) {
    return tl::unexpected(std::move(layout).error());
  }
  for (std::size_t at = 0; at < arenas_.size(); ++at) {
    if (auto based = check_base(arenas_[at], layout->pools[at]); !based) {
      return tl::unexpected(std::move(based).error());
    }
    change.arenas[at].target = std::move(layout->pools[at].regions);
  }
  progress_ = std::move(progress);
  return change;
}

Result<void> ArenaSet::check_ours(const StageChange& change) const {
  for (std::size_t at = 0; at < arenas_.size(); ++at) {
    const ArenaChange& each = change.arenas[at];
    const std::vector<Region>& left = progress_[at].committed ? each.target : each.former;
    if (each.arena->generation() != progress_[at].generation || each.arena->committed() != left) {
      return tl::unexpected(
          Error{Errc::busy,
                arena_name(each) + " was changed by somebody else, and is left as it is; leave its "
                                   "regions to the transition"});
    }
  }
  return {};
}

Result<void> ArenaSet::open_plans(const StageChange& change) {
  Result<void> opened = check_ours(change);
  for (std::size_t at = 0; at < arenas_.size() && opened; ++at) {
    const ArenaChange& each = change.arenas[at];
    if (each.arena->admission() != Admission::open) {
      opened = tl::unexpected(
          Error{Errc::busy, arena_name(each) + " is quiesced by somebody else; reopen it first"});
    } else if (!each.changing().empty()) {  // else there is nothing to commit
      opened = plan_of(*each.arena, each.target);
      progress_[at].has_plan = opened.has_value();
    }
  }
  if (!opened) {
    close_plans();
  }
  return opened;
}

void ArenaSet::close_plans() {
  for (std::size_t at = 0; at < progress_.size(); ++at) {
    if (std::exchange(progress_[at].has_plan, false)) {
      (void)arenas_[at].arena->rollback();
    }
  }
}

Result<void> ArenaSet::commit() {
  for (std::size_t at = 0; at < arenas_.size(); ++at) {
    if (!progress_[at].has_plan) {
      continue;
    }
    if (auto committed = arenas_[at].arena->commit(); !committed) {
      return committed;
    }
    progress_[at] = {arenas_[at].arena->generation(), false, true};
  }
  return {};
}

Result<void> ArenaSet::restore(const StageChange& change) {
  for (std::size_t at = 0; at < arenas_.size(); ++at) {
    if (!progress_[at].committed) {
      continue;
    }
    Arena& arena = *arenas_[at].arena;
    Result<void> restored = plan_of(arena, change.arenas[at].former);
    if (restored) {
      restored = arena.commit();
      if (!restored) {
        (void)arena.rollback();
      }
    }
    if (!restored) {
      return restored;
    }
    progress_[at] = {arena.generation(), false, false};
  }
  return {};
}

void ArenaSet::quiesce() {
  for (const TransitionArena& at : arenas_) {
    at.arena->quiesce();
  }
}

void ArenaSet::reopen() {
  for (const TransitionArena& at : arenas_) {
    at.arena->reopen();
  }
}

}  // namespace kvspan
