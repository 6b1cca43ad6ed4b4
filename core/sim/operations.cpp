// SPDX-License-Identifier: Apache-2.0
// A scenario's operations, but for steps (steps.cpp).
#include "runner.hpp"
#include "windows.hpp"

#include <algorithm>
#include <utility>

namespace kvspan::sim {

Life* Runner::life_of(std::uint32_t who) {
  std::vector<Life*> living;
  for (const auto& life : lives_) {
    if (life != nullptr) {
      living.push_back(life.get());
    }
  }
  return living.empty() ? nullptr : living[who % living.size()];
}

void Runner::add_sequence() {
  const auto living = static_cast<std::size_t>(std::count_if(
      lives_.begin(), lives_.end(), [](const auto& life) { return life != nullptr; }));
  const auto added = session_->add_sequence();
  if (living == lives_.size()) {
    expect_refusal(
        "add_sequence", added ? Result<void>{} : tl::unexpected(added.error()), Errc::too_large);
  } else if (!added || *added >= lives_.size() || lives_[*added] != nullptr) {
    trouble_.report("unexpected", "add_sequence gave no free number");
  } else {
    lives_[*added] = std::make_unique<Life>(*added, ++streams_);
  }
}

void Runner::remove_sequence(std::uint32_t who) {
  Life* const life = life_of(who);
  if (life == nullptr) {
    return;
  }
  for (Set& set : sets_) {
    if (!read(set)) {
      return;
    }
  }
  const SequenceId sequence = life->sequence();
  if (called("remove_sequence", Strict::no, [&] { return session_->remove_sequence(sequence); })) {
    lives_[sequence].reset();
  }
}

void Runner::truncate(const Op& op) {
  Life* const life = life_of(op.who);
  if (life == nullptr) {
    return;
  }
  const std::uint64_t tokens = life->tokens() - op.rows % (life->tokens() + 1);
  if (tokens != 0 && tokens < life->cut_limit()) {
    if (!doubtful_) {
      expect_refusal("truncate behind a window",
                     session_->truncate(life->sequence(), tokens),
                     Errc::too_large);
    }
    return;
  }
  if (called(
          "truncate", Strict::no, [&] { return session_->truncate(life->sequence(), tokens); })) {
    life->truncate(tokens);
    if (device_.filter() != nullptr) {
      device_.filter()->on_truncate();
    }
  }
}

void Runner::load(const Op& op) {
  Life* const life = life_of(op.who);
  if (life == nullptr || life->tokens() != 0) {
    return;
  }
  const std::uint64_t tokens = 1 + op.rows % options_.context_tokens;
  const std::uint32_t generation = ++generation_;
  const PageSource source =
      [&](std::uint32_t layer, std::uint64_t page, std::span<std::byte> bytes) -> Result<void> {
    device_.host_access_at(bytes.data(), bytes.size(), true);
    write_page(options_.geometry,
               scenario_.arithmetic,
               life->stream(),
               generation,
               layer,
               page,
               tokens,
               bytes);
    return {};
  };
  if (called(
          "load", Strict::yes, [&] { return session_->load(life->sequence(), tokens, source); })) {
    life->load(tokens, generation);
    life->limit_cuts(cut_limit(options_, tokens));
    if (doubtful_) {
      learn_limits();
    }
    doubtful_ = false;
  }
}

// A clock that cannot be right may be told too. False: the scenario leaves the policy no say.
bool Runner::observe(const Op& op) {
  const StreamOptions& stream = options_.stream;
  if (!options_.placement.changes || stream.link_bytes_s == 0 || stream.group_pages != 0 ||
      stream.resident_pages_max != UINT32_MAX || session_->plan().mode == PlanMode::resident) {
    return false;
  }
  constexpr double kTimes[] = {0.0, 1e3, 1e4, 1e5, 1e6, 1e7, -1.0, 1e300};
  StepObservation seen;
  seen.elapsed_ns = kTimes[op.rows % 8];
  seen.link_busy_ns = kTimes[op.how % 8];
  seen.gap_ns = kTimes[op.extra % 8];
  seen.late_groups = op.extra / 8;
  for (int again = 0; again < 10 && !stop(); ++again) {  // what is asked for often enough is done
    const auto decision = called("observe", Strict::no, [&] { return session_->observe(seen); });
    if (!decision) {
      break;
    }
    tally_.decisions += decision->changed ? 1U : 0U;
  }
  return true;
}

// Numbers of the operation, cut until they fit: one more byte would be refused.
void Runner::place(const Op& op) {
  if (op.how / 4 % 2 == 0 && observe(op)) {
    return;
  }
  const Plan& plan = session_->plan();
  const std::size_t layers = plan.pages.size();
  Placement wanted;
  wanted.group_pages = 1 + op.how % 4;
  wanted.ring_slots = std::max(2U, wanted.group_pages) + op.extra % 9;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    wanted.resident_pages.push_back((op.rows >> (3 * layer)) % (plan.pages_a_sequence + 1));
  }
  if (!options_.placement.changes || plan.mode == PlanMode::resident) {
    expect_refusal("place in a fixed session", session_->place(wanted), Errc::invalid_argument);
    return;
  }
  const std::uint64_t pool = plan.regions.resident_bytes + plan.regions.slots_bytes;
  while (placed_bytes_of(options_, plan, wanted) > pool) {
    if (op.extra % 2 == 0 && !doubtful_ && !cancel_pending_) {
      expect_refusal("place without room", session_->place(wanted), Errc::device_memory);
    }
    wanted.group_pages = 1;
    wanted.ring_slots = std::max(2U, wanted.ring_slots / 2);
    for (std::uint64_t& pages : wanted.resident_pages) {
      pages = pages * 3 / 4;
    }
  }
  (void)called("place", Strict::yes, [&] { return session_->place(wanted); });
}

// The arena is as large in every phase, and nothing is lost: what each phase has is seen by the
// steps that follow.
void Runner::enter(const Op& op) {
  const Phase phase = op.how % 2 == 0 ? Phase::decode : Phase::prefill;
  const std::uint64_t bytes = session_->plan().total_bytes();
  const auto entered = called("enter", Strict::yes, [&] { return session_->enter(phase); });
  const Plan& plan = session_->plan();
  const bool turned = !options_.placement.phases_take_turns || plan.phase == phase;
  if (plan.total_bytes() != bytes || (entered && !turned)) {
    trouble_.report("pages", "a phase was entered, and the plan is of another one or another size");
  }
}

void Runner::cancel() {
  if (session_) {
    if (!cancel_pending_) {
      works_at_cancel_ = device_.works + (calling_ ? 1U : 0U);  // one may be on its way
    }
    cancel_pending_ = true;
    ++cancels_;
    session_->cancel();
  }
}

// Calls that must be refused and change nothing.
void Runner::misuse(const Op& op) {
  const std::uint64_t beyond = options_.context_tokens + 1;
  switch (op.how % 8) {
    case 0:
      expect_refusal("write outside a step", session_->write(0, {}), Errc::invalid_argument);
      return;
    case 1:
      expect_refusal("commit outside a step", session_->commit({}), Errc::invalid_argument);
      return;
    case 2: {
      const auto point = session_->attend(0, {});
      expect_refusal("attend outside a step",
                     point ? Result<void>{} : tl::unexpected(point.error()),
                     Errc::invalid_argument);
      return;
    }
    case 3:
      if (Life* const life = life_of(op.who)) {
        expect_refusal("truncate beyond the end",
                       session_->truncate(life->sequence(), life->tokens() + 1),
                       Errc::invalid_argument);
      }
      return;
    case 4:
      expect_refusal(
          "remove_sequence of none", session_->remove_sequence(UINT32_MAX), Errc::not_found);
      return;
    case 5:
      expect_refusal("wait for the engine's own point",
                     session_->wait({writes_.fence, 1 + op.extra}),
                     Errc::invalid_argument);
      return;
    case 6:
      if (!old_points_.empty()) {
        constexpr std::uint64_t kBeyond = 1'000'000;  // values of a scenario
        kvspan_point_t point = old_points_.back();
        point.value += kBeyond;
        expect_refusal(
            "wait for what nothing signals", session_->wait(point), Errc::invalid_argument);
      }
      return;
    default:
      if (Life* const life = life_of(op.who); life != nullptr && life->tokens() == 0) {
        const auto source = [](std::uint32_t, std::uint64_t, std::span<std::byte>) {
          return Result<void>{};
        };
        expect_refusal("load past the context",
                       session_->load(life->sequence(), beyond, source),
                       Errc::too_large);
      }
      return;
  }
}

void Runner::plant(const Op& op) {
  constexpr kvspan_result_t kCodes[] = {
      KVSPAN_E_INTERNAL, KVSPAN_E_DEVICE_MEMORY, KVSPAN_E_HOST_MEMORY, KVSPAN_E_FAILED};
  const kvspan_result_t code = kCodes[op.how % 4];
  if (op.kind == OpKind::refuse_submit) {
    device_.faults.submit_in = 1 + op.rows;
    device_.faults.submit_code = code;
  } else if (op.kind == OpKind::fail_work) {
    device_.faults.work_in = 1 + op.rows;
    device_.faults.work_publishes = op.extra == kOnlyPublications;
    device_.faults.work_code = code;
  } else if (op.kind == OpKind::lose_device) {
    device_.faults.lost_in = 1 + op.rows;
  } else {
    device_.faults.object_in = 1 + op.rows;
  }
}

bool Runner::wait(const kvspan_point_t& point) {
  const bool may_be_gone = tally_.recoveries != 0 || doubtful_ || tally_.failures != 0;
  bool gone = false;
  const auto waited = called("wait", Strict::cancel, [&]() -> Result<void> {
    auto result = session_->wait(point);
    // It fell with a failure that was told.
    gone = !result && result.error().code == Errc::wait_failed &&
           result.error().message.find("given up") != std::string::npos;
    return gone && may_be_gone ? Result<void>{} : std::move(result);
  });
  return waited.has_value() && !gone;
}

// A point of an earlier step: reached or failed, and the session says so.
void Runner::wait_old_point(const Op& op) {
  if (old_points_.empty()) {
    return;
  }
  (void)wait(old_points_[op.rows % old_points_.size()]);
}

void Runner::operate(const Op& op) {
  switch (op.kind) {
    case OpKind::step:
      return step(op, false);
    case OpKind::abandon:
      return step(op, true);
    case OpKind::truncate:
      return truncate(op);
    case OpKind::add_sequence:
      return add_sequence();
    case OpKind::remove_sequence:
      return remove_sequence(op.who);
    case OpKind::load:
      return load(op);
    case OpKind::verify:
      return verify();
    case OpKind::cancel:
      return cancel();
    case OpKind::cancel_later:
      return device_.after(op.rows, [this] { cancel(); });
    case OpKind::refuse_submit:
    case OpKind::fail_work:
    case OpKind::lose_device:
    case OpKind::refuse_object:
      return plant(op);
    case OpKind::misuse:
      return misuse(op);
    case OpKind::idle:
      return device_.idle(op.rows);
    case OpKind::old_point:
      return wait_old_point(op);
    case OpKind::reopen:
      reopen();
      return;
    case OpKind::place:
      return place(op);
    case OpKind::enter:
      return enter(op);
  }
}

}  // namespace kvspan::sim
