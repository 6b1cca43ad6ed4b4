// SPDX-License-Identifier: Apache-2.0
// What the session may answer, and what must hold after each answer.
#include "runner.hpp"
#include "windows.hpp"

#include <algorithm>
#include <utility>

namespace kvspan::sim {

void Runner::judge(const Before& before, const Error* error) {
  if (stop() || device_.dead()) {
    return;
  }
  const bool cancelled = error != nullptr && error->code == Errc::cancelled;
  if (device_.lost()) {
    if (before.strict == Strict::yes && before.lost && error == nullptr) {
      trouble_.report("unexpected", std::string(before.call) + " went on without a device");
    }
    doubtful_ = true;
    for (Set& set : sets_) {
      set.open.clear();
    }
    tally_.failures += error != nullptr ? 1U : 0U;
    return;
  }
  check_cancel(before, cancelled);
  if (stop() || error == nullptr) {
    return;
  }
  ++tally_.failures;
  if (cancelled) {
    if (!cancel_pending_ && !cancel_twice_ && !doubtful_) {
      trouble_.report("cancel", std::string(before.call) + " says cancelled, but nobody cancelled");
      return;
    }
    tally_.cancellations += cancel_pending_ ? 1U : 0U;
    cancel_pending_ = false;
    // A cancellation that came during the call may be answered by it or by the next.
    cancel_twice_ = cancels_ != before.cancels;
  }
  const bool planted =
      doubtful_ || device_.fired > before.fired || device_.works_fired > works_before_;
  const bool own_bug = error->message.find("report this bug") != std::string::npos;
  const bool no_host = error->code == Errc::host_memory && scenario_.host_limit_percent != 0;
  if (own_bug || (!cancelled && !planted && !no_host)) {
    trouble_.report("unexpected", std::string(before.call) + " failed: " + error->message);
    return;
  }
  fall(before, *error);
}

// A cancellation that nobody was told of: the next call tells, and nothing is submitted until then.
void Runner::check_cancel(const Before& before, bool cancelled) {
  if (before.strict != Strict::no && before.cancel_pending && !cancelled) {
    trouble_.report("cancel",
                    std::string(before.call) + " did not say that cancel() was called before it");
  }
  if (cancel_pending_ && device_.works > works_at_cancel_) {
    trouble_.report("cancel",
                    std::to_string(device_.works - works_at_cancel_) +
                        " works were submitted behind cancel() when " + before.call + " returned");
  }
}

// How far a sequence can be cut after a failure: what was not given up yet stays.
void Runner::learn_limits() {
  for (const auto& life : lives_) {
    if (life == nullptr) {
      continue;
    }
    const std::uint64_t limit = session_->truncation_limit(life->sequence()).value_or(UINT64_MAX);
    if (limit > life->cut_limit() || limit < cut_limit(options_, life->tokens())) {
      trouble_.report("tokens",
                      "a failure left sequence " + std::to_string(life->sequence()) + " at " +
                          std::to_string(life->tokens()) + " tokens, to be cut to " +
                          std::to_string(limit));
    }
    life->limit_cuts_again(limit);
  }
}

// The engine goes on from what the session says is left, if that is what must be left.
void Runner::fall(const Before& before, const Error& error) {
  const bool memory = error.code == Errc::host_memory || error.code == Errc::device_memory;
  const bool refused = memory && before.strict == Strict::yes;
  bool fell = true;
  std::vector<std::uint64_t> left(lives_.size());
  for (const auto& life : lives_) {
    if (life == nullptr) {
      continue;
    }
    const auto tokens = session_->tokens(life->sequence());
    const std::uint64_t floor = life->floor();
    if (!tokens) {
      trouble_.report("fall", "a failure took sequence " + std::to_string(life->sequence()));
      return;
    }
    if (*tokens == floor || *tokens == life->floor_if_recovered()) {
      left[life->sequence()] = *tokens;
      continue;
    }
    fell = false;
    // A call that was refused memory ahead of its work changes nothing; a recovery that was refused
    // an object is tried again.
    const bool may_stay = refused || device_.fired > before.fired;
    if (*tokens != life->tokens() || !may_stay) {
      trouble_.report("fall",
                      std::string(before.call) + " failed and left sequence " +
                          std::to_string(life->sequence()) + " at " + std::to_string(*tokens) +
                          " tokens; its last lasting commit has " + std::to_string(floor) + " of " +
                          std::to_string(life->tokens()));
      return;
    }
  }
  doubtful_ = doubtful_ || !fell || device_.fired > before.fired;
  if (!fell) {
    // asked again when the next step begins
  } else if (!refused) {
    works_before_ = device_.works_fired;
    ++tally_.recoveries;
  }
  for (const auto& life : lives_) {
    if (life != nullptr && fell) {
      life->fall(left[life->sequence()]);
    }
  }
  if (fell) {
    learn_limits();
  }
  for (Set& set : sets_) {
    if (!refused) {
      set.open.clear();
    }
  }
}

// A begun step goes on from the tokens that the engine was told.
void Runner::check_begun() {
  for (const auto& life : lives_) {
    const auto tokens =
        life == nullptr ? Result<std::uint64_t>{0} : session_->tokens(life->sequence());
    if (life != nullptr && (!tokens || *tokens != life->tokens())) {
      trouble_.report("fall",
                      "a step began although sequence " + std::to_string(life->sequence()) +
                          " fell to " + std::to_string(tokens.value_or(0)) + " tokens from " +
                          std::to_string(life->tokens()) + " and nobody was told");
    }
  }
  for (const auto& life : lives_) {
    if (life != nullptr && doubtful_) {
      life->perhaps_recovered();
    }
  }
  if (doubtful_) {
    learn_limits();
  }
  doubtful_ = false;
}

void Runner::expect_refusal(const char* call, const Result<void>& result, Errc code) {
  if (!result && result.error().code == code) {
    return;
  }
  trouble_.report("misuse",
                  std::string(call) +
                      (result ? " was accepted"
                              : " was refused as " + std::string(name(result.error().code)) + ": " +
                                    result.error().message) +
                      "; " + std::string(name(code)) + " was to be expected");
}

// What lies behind windows was given back, in time.
void Runner::check_held(const Counters& now) {
  const Plan& plan = session_->plan();
  const std::uint64_t most =
      held_bytes_max(options_, plan, std::max(plan.prefill_rows, plan.decode_rows));
  if (now.host_held_bytes > most || now.host_bytes > plan.pinned_bytes) {
    trouble_.report(
        "held",
        std::to_string(now.host_held_bytes) + " bytes of pages are held on the host and " +
            std::to_string(now.host_bytes) + " pinned; at most " + std::to_string(most) + " and " +
            std::to_string(plan.pinned_bytes) + " were to be expected");
  }
}

// Each slot is counted once, and in flight are those that a copy filled and nobody read, but for
// those that core says it dropped. A call that fails gives groups up midway: then anew.
void Runner::check_slots(const Counters& now) {
  const std::uint64_t parts = std::uint64_t{now.slots_free} + now.slots_evictable +
                              now.slots_protected + now.slots_in_flight;
  if (parts != now.slots_total) {
    trouble_.report("pages",
                    std::to_string(now.slots_free) + " free, " +
                        std::to_string(now.slots_evictable) + " evictable, " +
                        std::to_string(now.slots_protected) + " protected and " +
                        std::to_string(now.slots_in_flight) + " slots in flight are not " +
                        std::to_string(now.slots_total));
  }
  const std::uint64_t unread = device_.ring.unread() - now.primed_pages_dropped;
  if (tally_.failures != slots_failures_ || doubtful_ || device_.lost()) {
    slots_failures_ = tally_.failures;
    slots_base_ = unread - now.slots_in_flight;
  } else if (unread - slots_base_ != now.slots_in_flight) {
    trouble_.report("pages",
                    std::to_string(now.slots_in_flight) + " slots are said to be in flight, but " +
                        std::to_string(unread - slots_base_) + " were filled and not read");
  }
}

// Between two operations.
void Runner::check_idle() {
  if (stop() || !session_) {
    return;
  }
  const Counters now = session_->counters();
  check_slots(now);
  if (now.slots_protected != 0 && !doubtful_ && !device_.lost()) {
    trouble_.report("pages",
                    std::to_string(now.slots_protected) + " tails are protected without a step");
  }
  const std::uint64_t held = device_.device_bytes_peak() + device_.prepared_bytes;
  if (held > options_.arena_bytes || now.device_bytes_high_water > options_.arena_bytes) {
    trouble_.report("pages",
                    std::to_string(held) + " device bytes were held, the counter says " +
                        std::to_string(now.device_bytes_high_water) + ", the arena is " +
                        std::to_string(options_.arena_bytes));
  }
  check_held(now);
  if (doubtful_) {
    return;
  }
  for (const auto& life : lives_) {
    if (life != nullptr) {
      const auto limit = session_->truncation_limit(life->sequence());
      if (!limit || *limit != life->cut_limit()) {
        trouble_.report("tokens",
                        "sequence " + std::to_string(life->sequence()) + " can be cut to " +
                            std::to_string(limit.value_or(0)) + " tokens, not to " +
                            std::to_string(life->cut_limit()));
      }
      const auto tokens = session_->tokens(life->sequence());
      if (!tokens || *tokens != life->tokens()) {
        trouble_.report("tokens",
                        "sequence " + std::to_string(life->sequence()) + " has " +
                            std::to_string(tokens.value_or(0)) + " tokens, not " +
                            std::to_string(life->tokens()));
      }
    }
  }
}

}  // namespace kvspan::sim
