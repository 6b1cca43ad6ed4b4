// SPDX-License-Identifier: Apache-2.0
// The arenas of a transition and how far each has come: planned, committed, taken back.
// Private to core/memory. Read next: arena_set.cpp, transition.cpp.
#pragma once

#include "kvspan/core/memory/transition.hpp"

#include <cstdint>
#include <vector>

namespace kvspan {

class ArenaSet {
 public:
  explicit ArenaSet(std::vector<TransitionArena> arenas) : arenas_(std::move(arenas)) {}

  // From what is committed to the layout of a stage. Errors: Transition::prepare()'s of the layout.
  [[nodiscard]] Result<StageChange> change_to(const LiveStage& stage, LayoutSizes sizes);

  // Opens a plan of the target in every arena that changes. All or nothing. Errors: busy and as
  // Arena::begin().
  [[nodiscard]] Result<void> open_plans(const StageChange& change);

  // Forgets open plans.
  void close_plans();

  // Commits the open plans, one after another; those behind a failure stay open. Errors:
  // Arena::commit()'s.
  [[nodiscard]] Result<void> commit();

  // Whether every arena is as this left it. Errc::busy: one is not.
  [[nodiscard]] Result<void> check_ours(const StageChange& change) const;

  // Commits the former regions of the arenas that were committed. Errors: Arena's.
  [[nodiscard]] Result<void> restore(const StageChange& change);

  void quiesce();
  void reopen();

 private:
  struct Progress {
    std::uint64_t generation = 0;  // that this left
    bool has_plan = false;
    bool committed = false;
  };

  std::vector<TransitionArena> arenas_;
  std::vector<Progress> progress_;
};

// Whether the layouts are the same, region by region.
[[nodiscard]] bool is_same_layout(const StageChange& change);

}  // namespace kvspan
