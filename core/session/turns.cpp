// SPDX-License-Identifier: Apache-2.0
// Read first: turns.hpp. The device is asked for one thing only, to finish what is in flight, and
// that before anything is given back: the way back asks it for nothing.
#include "turns.hpp"

#include "stages.hpp"

#include <algorithm>
#include <string>
#include <vector>

namespace kvspan {

namespace {

WorkPhase work_phase(Phase phase) {
  return phase == Phase::prefill ? WorkPhase::prefill : WorkPhase::decode;
}

Result<void> acquire(Arena& arena, std::uint64_t id, Lease& lease) {
  auto acquired = arena.acquire(id);
  if (!acquired) {
    return tl::unexpected(std::move(acquired).error());
  }
  lease = std::move(*acquired);
  return {};
}

// Everything that knows places, for the next plan beside that of this one. Made ahead, so that
// nothing is left to fail when they change places.
class PagesPreparation : public Preparation {
 public:
  PagesPreparation(SessionState& state, const Plan& next)
      : state_(&state), plan_(next), places_(state.places_of(next)) {
    for (std::uint32_t sequence = 0; sequence < state.sequences.size(); ++sequence) {
      resident_.emplace_back(places_.resident_count);
      missing_.push_back(state.sequences[sequence].missing);
      for (std::size_t layer = 0; layer < plan_.pages.size(); ++layer) {
        mark_moved(sequence, layer);
      }
    }
  }

  [[nodiscard]] Result<void> step(TransitionStep step, const StageChange& change) override {
    const bool forward = change.direction == TransitionDirection::forward;
    switch (step) {
      case TransitionStep::drain:
        return forward ? drain() : Result<void>();
      case TransitionStep::release:
        release(change.arenas.front());
        return {};
      case TransitionStep::acquire:
        return acquire_all(forward ? change.arenas.front().target : change.arenas.front().former,
                           forward || swapped_ ? plan_ : state_->plan);
      case TransitionStep::bind:
        if (forward != swapped_) {
          swap();
        }
        return {};
      case TransitionStep::prepare:
      case TransitionStep::quiesce:
      case TransitionStep::invalidate:
      case TransitionStep::commit:
      case TransitionStep::activate:
        break;
    }
    return {};
  }

  [[nodiscard]] Result<void> can_restore() const override { return {}; }

 private:
  // Pages that will have other places than now, or that have none now, come from the host.
  void mark_moved(std::uint32_t sequence, std::size_t layer) {
    const SessionState& state = *state_;
    PageRange& missing = missing_[sequence][layer];
    const std::uint64_t after = plan_.resident_pages[layer];
    const std::uint64_t from =
        first_moved(state.plan, plan_, state.options.sequences, sequence, layer);
    if (from == after) {
      return;
    }
    if (from == 0) {
      missing = kAllPages;
    } else {
      missing = missing.begin == missing.end
                    ? PageRange{from, after}
                    : PageRange{std::min<std::uint64_t>(missing.begin, from), UINT64_MAX};
    }
  }

  // Nothing is in flight afterwards, and what is on the host is there.
  Result<void> drain() {
    SessionState& state = *state_;
    if (auto drained = state.lanes->drain(); !drained) {
      return drained;
    }
    if (auto healthy = state.lanes->health(); !healthy) {
      return healthy;
    }
    if (state.prefetch) {
      state.drop_primed();
    }
    return {};
  }

  void release(const ArenaChange& change) {
    for (Lease* lease : {&state_->kept_lease, &state_->resident_lease, &state_->slots_lease}) {
      if (*lease && !change.stays(lease->region())) {
        lease->release();
      }
    }
  }

  // Leases of what is committed and not held yet.
  Result<void> acquire_all(const std::vector<Region>& regions, const Plan& target) {
    for (const Region& region : regions) {
      Lease& lease = region.id == kResidentRegion ? state_->resident_lease
                     : region.id == kSlotsRegion  ? state_->slots_lease
                                                  : state_->kept_lease;
      if (region.id != kScratchRegion && !lease) {
        if (auto acquired = acquire(*state_->arena, region.id, lease); !acquired) {
          return acquired;
        }
      }
    }
    return check_order(target);
  }

  // Places are worked out by the regions' order: what is kept first, then what the phase has.
  [[nodiscard]] Result<void> check_order(const Plan& target) const {
    const std::uint64_t first = kept_bytes(target, state_->options.sequences);
    if (state_->kept_lease.range().offset == 0 &&
        (!state_->resident_lease || state_->resident_lease.range().offset == first)) {
      return {};
    }
    return tl::unexpected(error_of(
        Errc::internal, "resident pages do not begin the arena; report this bug", "session"));
  }

  void swap() {
    swapped_ = !swapped_;
    SessionState& state = *state_;
    std::swap(state.plan, plan_);
    state.swap_places(places_);
    for (std::size_t sequence = 0; sequence < state.sequences.size(); ++sequence) {
      state.sequences[sequence].resident.swap(resident_[sequence]);
      state.sequences[sequence].missing.swap(missing_[sequence]);
    }
  }

  SessionState* state_;
  Plan plan_;
  Places places_;
  std::vector<std::vector<Hazard>> resident_;
  std::vector<std::vector<PageRange>> missing_;
  bool swapped_ = false;
};

class ScratchPreparation : public Preparation {
 public:
  ScratchPreparation(SessionState& state, const Plan& next)
      : state_(&state), former_(state.plan.regions), next_(next.regions) {}

  [[nodiscard]] Result<void> step(TransitionStep step, const StageChange& change) override {
    const bool forward = change.direction == TransitionDirection::forward;
    if (step == TransitionStep::release) {
      Lease given = state_->scratch.detach();
      given.release();
    } else if (step == TransitionStep::acquire) {
      return grant(forward ? next_ : former_);
    }
    return {};
  }

  [[nodiscard]] Result<void> can_restore() const override { return {}; }

 private:
  // The grant is exact, and cut into the plan's pieces.
  Result<void> grant(const PlanRegions& sizes) {
    Lease lease;
    if (auto acquired = acquire(*state_->arena, kScratchRegion, lease); !acquired) {
      return acquired;
    }
    if (auto attached = state_->scratch.attach(lease, sizes.scratch_bytes(), Grant::exact);
        !attached) {
      return attached;
    }
    const std::pair<std::uint64_t, kvspan_range_t*> pieces[] = {
        {sizes.states_bytes, &state_->states},
        {sizes.accumulators_bytes, &state_->accumulators},
        {sizes.workspace_bytes, &state_->workspace}};
    for (const auto& [bytes, range] : pieces) {
      if (bytes == 0) {
        *range = {};
      } else {
        auto piece = state_->scratch.take({bytes, state_->plan.alignment});
        if (!piece) {
          return tl::unexpected(std::move(piece).error());
        }
        *range = *piece;
      }
    }
    return {};
  }

  SessionState* state_;
  PlanRegions former_;
  PlanRegions next_;
};

}  // namespace

Result<std::unique_ptr<Preparation>> PagesConsumer::prepare(const StageChange& /*change*/) {
  return std::make_unique<PagesPreparation>(*state_, *state_->next_plan);
}

Result<std::unique_ptr<Preparation>> ScratchConsumer::prepare(const StageChange& /*change*/) {
  return std::make_unique<ScratchPreparation>(*state_, *state_->next_plan);
}

Turns::Turns(SessionState& state) : state_(&state), pages_(state), scratch_(state) {}

Result<PhaseOwner> Turns::owner_of(const Plan& plan, std::uint64_t kept_region) {
  const std::uint32_t sequences = state_->options.sequences;
  auto stages = plan_stages(stages_of(plan, sequences, kept_region));
  if (!stages) {
    return tl::unexpected(std::move(stages).error());
  }
  const bool is_one = plan.rooms.empty();
  const auto stage = [is_one](Phase phase) {
    return static_cast<std::uint64_t>(is_one ? Phase::decode : phase) + 1;
  };
  return PhaseOwner::create(
      *transition_,
      std::move(*stages),
      {{WorkPhase::prefill, stage(Phase::prefill), plan.prefill_rows, sequences},
       {WorkPhase::decode, stage(Phase::decode), plan.decode_rows, sequences}},
      LayoutSizes::minimum);
}

// Whatever comes of a change, thrown or answered: one that is neither done nor taken back closes.
class Turns::Closing {
 public:
  explicit Closing(Turns& turns) : turns_(&turns) {}

  Closing(const Closing&) = delete;
  Closing& operator=(const Closing&) = delete;
  Closing(Closing&&) = delete;
  Closing& operator=(Closing&&) = delete;

  ~Closing() {
    const TransitionState state = turns_->transition_->state();
    turns_->closed_ = state != TransitionState::idle && state != TransitionState::executing;
    turns_->state_->next_plan = nullptr;
  }

 private:
  Turns* turns_;
};

// The consumers make ready for `next`.
Result<void> Turns::change(PhaseOwner& owner, Phase phase, const Plan& next) {
  const Closing closing(*this);
  state_->next_plan = &next;
  auto entered = owner.enter(work_phase(phase));
  return entered ? Result<void>() : tl::unexpected(std::move(entered).error());
}

Result<void> Turns::begin() {
  auto transition = Transition::create(
      {{kStageDomain, MemoryKind::device, &*state_->arena, state_->plan.alignment}},
      {&pages_, &scratch_});
  if (!transition) {
    return tl::unexpected(std::move(transition).error());
  }
  transition_.emplace(std::move(*transition));
  auto owner = owner_of(state_->plan, kept_region_);
  if (!owner) {
    return tl::unexpected(std::move(owner).error());
  }
  owner_.emplace(std::move(*owner));
  return change(*owner_, state_->plan.phase, Plan(state_->plan));
}

bool Turns::is_in(Phase phase) const {
  return owner_->identity().phase == work_phase(phase) &&
         transition_->state() == TransitionState::idle;
}

Result<void> Turns::enter(Phase phase) {
  return state_->plan.rooms.empty() ? change(*owner_, phase, state_->plan)
                                    : change(*owner_, phase, entered(state_->plan, phase));
}

Result<void> Turns::relay(const Plan& next) {
  const std::uint32_t sequences = state_->options.sequences;
  const bool keeps = kept_bytes(next, sequences) == kept_bytes(state_->plan, sequences);
  const std::uint64_t kept_region = keeps ? kept_region_ : kept_region_ + 1;
  auto owner = owner_of(next, kept_region);
  if (!owner) {
    return tl::unexpected(std::move(owner).error());
  }
  const Phase phase =
      owner_->identity().phase == WorkPhase::prefill ? Phase::prefill : Phase::decode;
  if (auto changed = change(*owner, phase, next); !changed) {
    return changed;
  }
  owner_ = std::move(*owner);
  kept_region_ = kept_region;
  return {};
}

Result<StepWork> Turns::admit(std::uint32_t rows, std::uint32_t sequences) {
  auto work = owner_->begin(owner_->identity(), {rows, sequences});
  if (!work) {
    return tl::unexpected(std::move(work).error());
  }
  return StepWork(*transition_, *work);
}

Result<void> Turns::check_open() const {
  if (!closed_) {
    return {};
  }
  return tl::unexpected(error_of(Errc::internal,
                                 "a change of phase failed and could not be taken back; end the "
                                 "session and open another",
                                 "session"));
}

}  // namespace kvspan
