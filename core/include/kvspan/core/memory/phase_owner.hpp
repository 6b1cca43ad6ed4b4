// SPDX-License-Identifier: Apache-2.0
// Which phase the memory is in. A phase is told, never guessed from a number of rows: a prompt of
// one token is prefill. Entering another one is a transition; entering the same again is nothing.
// Not the work of a phase. Read next: transition.hpp, budget.hpp (what phases cost).
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/memory/requirement.hpp"
#include "kvspan/core/memory/stage_layout.hpp"
#include "kvspan/core/memory/transition.hpp"

#include <cstdint>
#include <vector>

namespace kvspan {

enum class WorkPhase : std::uint8_t {
  prefill,
  decode,
  verify,    // drafted rows at once
  catch_up,  // a draft model reads what the target wrote
  draft,
  spill,    // recurrent state to the host
  restore,  // and back
  lent      // to the engine
};
inline constexpr std::uint32_t kWorkPhaseCount = 8;

[[nodiscard]] const char* name(WorkPhase phase);

// What a phase may do, and the stage of memory that it does it in. Several may share a stage.
struct PhaseRule {
  WorkPhase phase = WorkPhase::prefill;
  std::uint64_t stage = 0;
  std::uint32_t rows_max = 0;  // a sequence and step; 0: it has no rows
  std::uint32_t sequences_max = 1;
};

// The phase as of its last entry. Work names it, so that what was planned for another phase is
// seen.
struct PhaseIdentity {
  WorkPhase phase = WorkPhase::prefill;
  std::uint64_t generation = 0;  // of entries that changed something; 0: none was entered

  friend bool operator==(const PhaseIdentity&, const PhaseIdentity&) = default;
};

struct PhaseWork {
  std::uint32_t rows = 0;  // the most of any sequence
  std::uint32_t sequences = 1;
};

// Thread class: SYNC(owner).
class PhaseOwner {
 public:
  // `transition` is borrowed and outlives it. Errc::invalid_argument: a phase twice, or a stage
  // that the plan does not have.
  [[nodiscard]] static Result<PhaseOwner> create(Transition& transition,
                                                 StagePlan plan,
                                                 std::vector<PhaseRule> rules,
                                                 LayoutSizes sizes);

  // Enters a phase. The same phase again, or one of the same stage, moves nothing. Errors leave
  // phase and identity as they are: Errc::unsupported: no rule has this phase; Errc::busy: work is
  // under way; prepare()'s and activate()'s of the transition. Where activating fails it is taken
  // back; where that fails too, Errc::internal from now on: closed for good.
  [[nodiscard]] Result<PhaseIdentity> enter(WorkPhase phase);

  // Begins work planned for `identity`; returns its number. Errc::invalid_argument: another phase
  // or generation by now, or more rows or sequences than the phase has (0 rows where it has some,
  // too). Errc::busy: other work is under way.
  [[nodiscard]] Result<std::uint64_t> begin(const PhaseIdentity& identity, const PhaseWork& work);

  // Errc::invalid_argument: this work is not under way.
  [[nodiscard]] Result<void> finish(std::uint64_t work);

  // Other needs from the next entry on. Errc::invalid_argument: a rule's stage is missing.
  // Errc::busy: the present phase's needs differ; enter another phase first.
  [[nodiscard]] Result<void> replan(StagePlan plan);

  [[nodiscard]] const PhaseIdentity& identity() const { return identity_; }

 private:
  PhaseOwner(Transition& transition,
             StagePlan plan,
             std::vector<PhaseRule> rules,
             LayoutSizes sizes)
      : transition_(&transition), plan_(std::move(plan)), rules_(std::move(rules)), sizes_(sizes) {}

  [[nodiscard]] Result<PhaseRule> rule(WorkPhase phase) const;
  [[nodiscard]] Result<void> change_to(std::uint64_t stage);

  Transition* transition_;
  StagePlan plan_;
  std::vector<PhaseRule> rules_;
  LayoutSizes sizes_;
  PhaseIdentity identity_;
};

}  // namespace kvspan
