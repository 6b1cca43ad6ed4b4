// SPDX-License-Identifier: Apache-2.0
// The session's phases as stages of memory: who has leases of the arena (pages, scratch), and the
// transition that moves both from one layout to the next, or takes them back together. Private to
// core/session. Read next: memory/phase_owner.hpp, docs/design/memory.md.
#pragma once

#include "kvspan/core/memory/phase_owner.hpp"
#include "kvspan/core/memory/transition.hpp"

#include "state.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace kvspan {

// Resident pages, ring and tails: three leases, and everything that knows places in them.
class PagesConsumer : public TransitionConsumer {
 public:
  explicit PagesConsumer(SessionState& state) : state_(&state) {}

  [[nodiscard]] std::string_view name() const override { return "pages"; }

  [[nodiscard]] Result<std::unique_ptr<Preparation>> prepare(const StageChange& change) override;

 private:
  SessionState* state_;
};

// States, accumulators and workspace: pieces of one lease.
class ScratchConsumer : public TransitionConsumer {
 public:
  explicit ScratchConsumer(SessionState& state) : state_(&state) {}

  [[nodiscard]] std::string_view name() const override { return "scratch"; }

  [[nodiscard]] Result<std::unique_ptr<Preparation>> prepare(const StageChange& change) override;

 private:
  SessionState* state_;
};

// Thread class: SYNC(session). Borrows the state, whose arena and plan it changes.
class Turns {
 public:
  explicit Turns(SessionState& state);

  // Lays the arena out for the first time, as the state's plan has it. Errors: the arena's.
  [[nodiscard]] Result<void> begin();

  // Whether begin_step of this phase would move nothing.
  [[nodiscard]] bool is_in(Phase phase) const;

  // Enters a phase; the plan is that phase's then. Nothing moves where both share a layout. Errors
  // leave plan, addresses and pages as they were: what is in flight failed; or, once what failed
  // could not be taken back either, Errc::internal for good.
  [[nodiscard]] Result<void> enter(Phase phase);

  // Another plan for the same bytes, in the present phase. Errors: as enter().
  [[nodiscard]] Result<void> relay(const Plan& next);

  // Begins the work of a step of the present phase; it is under way while the number lives.
  [[nodiscard]] Result<StepWork> admit(std::uint32_t rows, std::uint32_t sequences);

  // Errc::internal: closed for good.
  [[nodiscard]] Result<void> check_open() const;

 private:
  class Closing;

  [[nodiscard]] Result<PhaseOwner> owner_of(const Plan& plan, std::uint64_t kept_region);
  [[nodiscard]] Result<void> change(PhaseOwner& owner, Phase phase, const Plan& next);

  SessionState* state_;
  PagesConsumer pages_;
  ScratchConsumer scratch_;
  std::optional<Transition> transition_;
  std::optional<PhaseOwner> owner_;
  std::uint64_t kept_region_ = kKeptRegion;
  bool closed_ = false;
};

}  // namespace kvspan
