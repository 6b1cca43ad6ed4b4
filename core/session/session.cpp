// SPDX-License-Identifier: Apache-2.0
// The life of a session: open (plan, one allocation, leases, streams), sequences, cancellation,
// recovery.
#include "kvspan/core/session/session.hpp"

#include "calls.hpp"
#include "memory/guarded_call.hpp"
#include "state.hpp"
#include "turns.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {

Session::Session(std::unique_ptr<SessionState> state) : state_(std::move(state)) {}

Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

SessionState::SessionState(Backend device_backend, SessionOptions session_options)
    : backend(std::move(device_backend)), options(std::move(session_options)) {}

SessionState::~SessionState() {
  if (lanes) {
    (void)lanes->drain();
  }
  give_back_fences();
  backend.reservations().release(this);
}

Result<std::unique_ptr<SessionState>> unguarded::open(const Backend& backend,
                                                      const SessionOptions& options) {
  auto state = std::make_unique<SessionState>(backend, options);
  if (options.arena_bytes == 0) {
    return tl::unexpected(error_of(Errc::invalid_argument,
                                   "the arena has 0 bytes; give the device memory that may be used",
                                   "session"));
  }
  auto done = state->lay_out();
  if (done) {
    done = state->check_alignment();
  }
  if (done) {
    done = state->make_arena();
  }
  if (done) {
    done = state->make_streams();
  }
  if (done) {
    state->turns = std::make_unique<Turns>(*state);
    done = state->turns->begin();
  }
  if (!done) {
    return tl::unexpected(std::move(done).error());
  }
  return state;
}

// After a failure every fence of the session may have failed for good: settle everything, start
// fresh timelines, fall back to the last complete commits. Resident pages keep their committed
// rows: only dead rows of them were the destination of work that may have failed.
Result<void> SessionState::recover() {
  if (auto drained = lanes->drain(); !drained) {
    return drained;
  }
  const Moment settled = reached();
  Moment last;
  for (const LaneId lane : kLanes) {
    last.merge(Moment::at(lane, lanes->last(lane)));
  }
  auto fresh = Lanes::create(backend, options.lanes, last);
  if (!fresh) {
    return tl::unexpected(std::move(fresh).error());
  }
  named_fences.reserve(named_fences.size() + kLaneCount);
  past_points.add(lanes->point(LaneId::compute, 0).fence,
                  settled.of(LaneId::compute),
                  last.of(LaneId::compute));
  // Nothing fails from here on.
  ++recoveries;
  for (Sequence& sequence : sequences) {
    const std::uint64_t tokens = sequence.history.committed_tokens();
    sequence.history.fall_back(settled);
    falls += sequence.history.committed_tokens() != tokens ? 1U : 0U;
    std::fill(sequence.resident.begin(), sequence.resident.end(), Hazard{});
    if (settled.of(LaneId::upload) < sequence.filled) {
      std::fill(sequence.missing.begin(), sequence.missing.end(), kAllPages);
    }
  }
  drop_primed();
  ring->reset();
  tails->reset();
  replace_lanes(std::move(*fresh));
  failed = false;
  return {};
}

// A cancellation that came too late for the old lanes goes over to the new ones. The old ones end
// outside the lock: that waits for the device, and cancel() does not.
void SessionState::replace_lanes(Lanes fresh) {
  std::optional<Lanes> old(std::move(fresh));
  {
    const std::lock_guard lock(lanes_mutex);
    lanes.swap(old);
    if (cancel_untold.load()) {
      lanes->request_cancel();
    }
  }
  give_back_fences();
  old->close(named_fences);
}

// The engine's own work may wait for a point of attend that fell: its fence lives until that work
// has settled.
void SessionState::give_back_fences() {
  std::erase_if(named_fences, [this](kvspan_fence_t* fence) {
    return backend.tables().fence->destroy(fence, nullptr) != KVSPAN_E_BUSY;
  });
}

// The open step is over. Everything in flight settles first: the engine's rows are its own again
// when the call returns, and tokens() already tells what is left.
Error SessionState::fail_step(Error error) {
  const bool cancelled = cancel_untold.exchange(false);
  step.reset();
  failed = true;
  // If even this fails (a lost device), begin_step tries again and returns why.
  (void)guarded_call("recovering", [this] { return recover(); });
  return cancelled ? cancelled_or(std::move(error)) : error;
}

Result<void> SessionState::check_cancelled() {
  if (!cancel_untold.load()) {
    return {};
  }
  return tl::unexpected(fail_step(cancelled_or({})));
}

// A call threw, and `falls` were counted before it. An open step is over as by any other failure;
// where sequences fell in this call, it is what nobody has told.
Error SessionState::fail_thrown(Error error, std::uint64_t falls_before) {
  if (step) {
    error = fail_step(std::move(error));
  }
  if (falls != falls_before && error.code != Errc::cancelled) {
    error = told(Errc::wait_failed,
                 {error.message,
                  "; sequences fell back to their last complete commits, ask for their tokens"},
                 "session");
  }
  return error;
}

// A lost device is worse news than a cancellation.
Error SessionState::cancelled_or(Error error) {
  if (error.code == Errc::device_lost) {
    return error;
  }
  return told(
      Errc::cancelled, {"the step was cancelled; every sequence is at its last commit"}, "session");
}

Result<SequenceId> unguarded::add_sequence(SessionState& state) {
  const std::size_t resident = state.resident_firsts.empty() ? 0
                                                             : state.resident_firsts.back() +
                                                                   state.plan.resident_pages.back();
  for (SequenceId id = 0; id < state.sequences.size(); ++id) {
    if (!state.sequences[id].live) {
      state.sequences[id].missing.assign(state.plan.pages.size(), PageRange{});
      state.sequences[id].live = true;
      state.sequences[id].observed_tokens = 0;
      state.sequences[id].growth_tokens = 0.0;
      return id;
    }
  }
  if (state.sequences.size() >= state.options.sequences) {
    return tl::unexpected(error_of(Errc::too_large,
                                   "the session was opened for " +
                                       std::to_string(state.options.sequences) +
                                       " sequences; remove one or open it for more",
                                   "session"));
  }
  Sequence sequence{SequenceHistory(state.plan.host_classes, state.page_tokens()),
                    std::vector<Hazard>(resident),
                    std::vector<PageRange>(state.plan.pages.size()),
                    0,
                    true,
                    0,
                    0.0};
  state.sequences.push_back(std::move(sequence));
  return static_cast<SequenceId>(state.sequences.size() - 1);
}

Result<void> SessionState::check_sequence(std::uint32_t sequence) const {
  if (sequence < sequences.size() && sequences[sequence].live) {
    return {};
  }
  return tl::unexpected(
      error_of(Errc::not_found, "there is no sequence " + std::to_string(sequence), "session"));
}

Result<void> SessionState::check_between_steps() const {
  if (!step) {
    return {};
  }
  return tl::unexpected(
      error_of(Errc::busy, "a step is open; commit or cancel it first", "session"));
}

Result<void> unguarded::remove_sequence(SessionState& state, SequenceId sequence) {
  if (auto known = state.check_sequence(sequence); !known) {
    return known;
  }
  if (auto between = state.check_between_steps(); !between) {
    return between;
  }
  if (auto drained = state.lanes->drain(); !drained) {
    return drained;
  }
  state.drop_primed();
  state.tails->forget(sequence, 0);
  state.sequences[sequence].history.release(*state.host);
  state.sequences[sequence].live = false;
  return {};
}

Result<std::uint64_t> Session::tokens(SequenceId sequence) const {
  const auto check = [&] { return state_->check_sequence(sequence); };
  if (auto known = guarded_call("asking for tokens", check); !known) {
    return tl::unexpected(std::move(known).error());
  }
  return state_->sequences[sequence].history.committed_tokens();
}

Result<void> unguarded::truncate(SessionState& state, SequenceId sequence, std::uint64_t tokens) {
  if (auto known = state.check_sequence(sequence); !known) {
    return known;
  }
  if (auto between = state.check_between_steps(); !between) {
    return between;
  }
  SequenceHistory& history = state.sequences[sequence].history;
  if (tokens > history.committed_tokens()) {
    return tl::unexpected(error_of(Errc::invalid_argument,
                                   "sequence " + std::to_string(sequence) + " has " +
                                       std::to_string(history.committed_tokens()) +
                                       " tokens and cannot be cut to " + std::to_string(tokens),
                                   "session"));
  }
  const std::uint64_t limit = history.truncation_limit();
  if (tokens != 0 && tokens < limit) {
    return tl::unexpected(Error{Errc::too_large,
                                "sequence " + std::to_string(sequence) + " cannot be cut to " +
                                    std::to_string(tokens) + " tokens: a window would see pages " +
                                    "that were given up; cut it to 0 or to at least " +
                                    std::to_string(limit) +
                                    ", or open the session with more rewind_tokens than " +
                                    std::to_string(state.options.rewind_tokens),
                                limit,
                                tokens,
                                limit - tokens,
                                "history"});
  }
  if (tokens == 0 && history.has_retired()) {
    // Pages from the first on are taken anew: nothing may still touch those that go back.
    if (auto drained = state.lanes->drain(); !drained) {
      return drained;
    }
    history.release(*state.host);
  }
  const std::uint64_t page = state.page_tokens();
  history.truncate(tokens);
  state.tails->forget(sequence, (tokens + page - 1) / page);
  state.drop_primed();
  return {};
}

Result<std::uint64_t> Session::truncation_limit(SequenceId sequence) const {
  const auto check = [&] { return state_->check_sequence(sequence); };
  if (auto known = guarded_call("asking for the limit", check); !known) {
    return tl::unexpected(std::move(known).error());
  }
  return state_->sequences[sequence].history.truncation_limit();
}

void Session::cancel() {
  const std::lock_guard lock(state_->lanes_mutex);
  state_->cancel_untold.store(true);
  state_->lanes->request_cancel();
}

void Session::cancel_step() {
  if (state_->step) {
    // Rows of the step that were encoded are dead; its ring groups were for this step only. The
    // engine's rows are its own again afterwards.
    state_->step.reset();
    (void)state_->lanes->drain();
    state_->tails->unpin_all();
    state_->drop_primed();
  }
}

const Plan& Session::plan() const {
  return state_->plan;
}

Counters Session::counters() const {
  const SessionState& state = *state_;
  Counters counters = state.counters;
  counters.device_bytes_high_water = state.arena->peak_bytes() + state.prepared_device_bytes;
  counters.host_bytes = state.host->allocated_bytes();
  counters.host_held_bytes = state.host->held_bytes();
  counters.slots_total = state.ring->count() + state.tails->count();
  counters.slots_in_flight = state.ring->taken();
  counters.slots_protected = state.tails->held();
  counters.slots_free = state.ring->free() + state.tails->count() - state.tails->held();
  return counters;
}

}  // namespace kvspan
