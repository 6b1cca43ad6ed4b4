// SPDX-License-Identifier: Apache-2.0
// The state machine: who may call what when, the barriers between steps, and what the first failure
// leaves behind. Layouts and commits are arena_set.cpp's.
#include "kvspan/core/memory/transition.hpp"

#include "kvspan/core/layout/checked.hpp"

#include "memory/guarded_call.hpp"
#include "memory/transition/arena_set.hpp"

#include <array>
#include <set>
#include <utility>

namespace kvspan {
namespace {

constexpr std::array kChangeSteps = {TransitionStep::quiesce,
                                     TransitionStep::drain,
                                     TransitionStep::invalidate,
                                     TransitionStep::release,
                                     TransitionStep::commit,
                                     TransitionStep::acquire,
                                     TransitionStep::bind,
                                     TransitionStep::activate};

Error wrong(const std::string& what) {
  return error_of(Errc::invalid_argument, "transition: " + what, "transition");
}

Result<void> check_arenas(const std::vector<TransitionArena>& arenas) {
  std::set<const Arena*> seen;
  std::set<std::pair<std::uint64_t, MemoryKind>> kinds;
  for (const TransitionArena& at : arenas) {
    if (at.arena == nullptr || !seen.insert(at.arena).second) {
      return tl::unexpected(wrong("an arena is null or registered twice; give each once"));
    }
    if (!kinds.insert({at.domain, at.kind}).second) {
      return tl::unexpected(wrong("two arenas of one kind in one domain; register one of them"));
    }
    if (at.base_alignment != 0 && !is_power_of_two(at.base_alignment)) {
      return tl::unexpected(wrong("a base alignment is no power of two; 0 takes the arena's"));
    }
  }
  return {};
}

Result<void> check_consumers(const std::vector<TransitionConsumer*>& consumers) {
  std::set<std::string_view> names;
  for (const TransitionConsumer* consumer : consumers) {
    if (consumer == nullptr || consumer->name().empty()) {
      return tl::unexpected(wrong("a consumer is null or has no name; give it one"));
    }
    if (!names.insert(consumer->name()).second) {
      return tl::unexpected(
          wrong("two consumers are called " + std::string(consumer->name()) + "; rename one"));
    }
  }
  return {};
}

}  // namespace

const char* name(TransitionStep step) {
  constexpr std::array kStepNames = {"prepare",
                                     "quiesce",
                                     "drain",
                                     "invalidate",
                                     "release",
                                     "commit",
                                     "acquire",
                                     "bind",
                                     "activate"};
  return kStepNames.at(static_cast<std::size_t>(step));
}

const char* name(TransitionState state) {
  constexpr std::array kStateNames = {"idle",
                                      "executing",
                                      "preparing",
                                      "prepared",
                                      "activating",
                                      "failed",
                                      "recovering",
                                      "invalid"};
  return kStateNames.at(static_cast<std::size_t>(state));
}

struct TransitionData {
  TransitionData(std::vector<TransitionArena> of, std::vector<TransitionConsumer*> to)
      : arenas(std::move(of)), consumers(std::move(to)) {}

  TransitionData(const TransitionData&) = delete;
  TransitionData& operator=(const TransitionData&) = delete;
  TransitionData(TransitionData&&) = delete;
  TransitionData& operator=(TransitionData&&) = delete;

  ~TransitionData() { discard(); }

  struct Made {
    std::string consumer;
    std::unique_ptr<Preparation> preparation;
  };

  // The last first. The state stays what it is meanwhile: nobody is let in.
  void discard() {
    while (!made.empty()) {
      made.pop_back();
    }
  }

  // Why a call that needs another state is refused.
  [[nodiscard]] Error refused() const {
    const std::string now = std::string("the transition is ") + name(state);
    switch (state) {
      case TransitionState::failed:
        return Error{Errc::busy, now + "; recover it first"};
      case TransitionState::invalid:
        return Error{Errc::internal, now + " and stays so; close what uses it and begin anew"};
      case TransitionState::idle:
      case TransitionState::executing:
      case TransitionState::preparing:
      case TransitionState::prepared:
      case TransitionState::activating:
      case TransitionState::recovering:
        break;
    }
    return Error{Errc::busy, now + "; let that end, or cancel it, first"};
  }

  // Idle is the caller's mistake: `instead` is what to do.
  [[nodiscard]] Result<void> check_is(TransitionState needed, const char* instead) const {
    if (state == TransitionState::idle) {
      return tl::unexpected(wrong(instead));
    }
    return state == needed ? Result<void>() : tl::unexpected(refused());
  }

  // Keeps the first failure of a change; returns what to tell the caller.
  Error note(TransitionStep step, const std::string& consumer, Error error) {
    error.message = std::string(name(step)) + (consumer.empty() ? "" : " of " + consumer) + ": " +
                    error.message;
    if (!failure) {
      failure = TransitionFailure{step, change.direction, consumer, error};
    }
    return error;
  }

  Result<void> give_up_preparing(const std::string& consumer, Error error) {
    Error told = note(TransitionStep::prepare, consumer, std::move(error));
    discard();
    state = TransitionState::idle;
    return tl::unexpected(std::move(told));
  }

  static Error cancelled() { return Error{Errc::cancelled, "the change was cancelled"}; }

  // One preparation of one consumer, which may be cancelled from inside.
  Result<void> prepare_one(TransitionConsumer& consumer) {
    std::string called(consumer.name());
    auto prepared = guarded_call("a consumer", [&] { return consumer.prepare(change); });
    if (!prepared) {
      return give_up_preparing(called, std::move(prepared).error());
    }
    if (*prepared != nullptr) {
      made.push_back({called, std::move(*prepared)});
    }
    return cancel_asked ? give_up_preparing(called, cancelled()) : Result<void>();
  }

  // One step of everybody. Forward it may be cancelled from inside.
  Result<void> run_step(TransitionStep step) {
    for (const Made& each : made) {
      auto done = guarded_call("a consumer", [&] { return each.preparation->step(step, change); });
      if (done && cancel_asked && change.direction == TransitionDirection::forward) {
        done = tl::unexpected(cancelled());
      }
      if (!done) {
        return tl::unexpected(note(step, each.consumer, std::move(done).error()));
      }
    }
    return {};
  }

  Result<void> commit() {
    auto done = guarded_call("committing", [this] {
      return change.direction == TransitionDirection::forward ? arenas.commit()
                                                              : arenas.restore(change);
    });
    if (!done) {
      return tl::unexpected(note(TransitionStep::commit, "", std::move(done).error()));
    }
    arenas.reopen();
    return {};
  }

  Result<void> run() {
    for (const TransitionStep step : kChangeSteps) {
      auto done = step == TransitionStep::commit ? commit() : run_step(step);
      if (!done) {
        return done;
      }
      if (step == TransitionStep::quiesce) {
        arenas.quiesce();
      }
    }
    return {};
  }

  void close(TransitionState to) {
    arenas.close_plans();
    arenas.quiesce();
    if (to == TransitionState::invalid) {
      discard();
    }
    state = to;
  }

  Result<void> check_restorable() {
    for (const Made& each : made) {
      auto able = guarded_call("a consumer", [&] { return each.preparation->can_restore(); });
      if (!able) {
        return able;
      }
    }
    return arenas.check_ours(change);
  }

  ArenaSet arenas;
  std::vector<TransitionConsumer*> consumers;
  std::vector<Made> made;
  StageChange change;
  TransitionState state = TransitionState::idle;
  std::optional<TransitionFailure> failure;
  std::uint64_t stage = 0;
  std::uint64_t work = 0;  // the newest number
  bool cancel_asked = false;
};

Transition::Transition(std::unique_ptr<TransitionData> data) : data_(std::move(data)) {}

Transition::Transition(Transition&&) noexcept = default;
Transition& Transition::operator=(Transition&&) noexcept = default;
Transition::~Transition() = default;

Result<Transition> Transition::create(std::vector<TransitionArena> arenas,
                                      std::vector<TransitionConsumer*> consumers) {
  Result<void> right = check_arenas(arenas);
  if (right) {
    right = check_consumers(consumers);
  }
  if (!right) {
    return tl::unexpected(std::move(right).error());
  }
  return Transition(std::make_unique<TransitionData>(std::move(arenas), std::move(consumers)));
}

Result<std::uint64_t> Transition::admit() {
  if (data_->state != TransitionState::idle) {
    return tl::unexpected(data_->refused());
  }
  data_->state = TransitionState::executing;
  return ++data_->work;
}

Result<void> Transition::finish(std::uint64_t work) {
  if (data_->state != TransitionState::executing || work != data_->work) {
    return tl::unexpected(
        wrong("work " + std::to_string(work) + " is not under way; finish what was admitted"));
  }
  data_->state = TransitionState::idle;
  return {};
}

Result<Prepared> Transition::prepare(const LiveStage& stage, LayoutSizes sizes) {
  TransitionData& data = *data_;
  if (data.state != TransitionState::idle) {
    return tl::unexpected(data.refused());
  }
  data.state = TransitionState::preparing;
  data.failure.reset();
  data.cancel_asked = false;
  data.change = {stage.id, TransitionDirection::forward, {}};
  auto change = guarded_call("laying out", [&] {
    data.made.reserve(data.consumers.size());  // nothing is left to fail beside the consumers
    return data.arenas.change_to(stage, sizes);
  });
  if (!change) {
    return tl::unexpected(data.give_up_preparing("", std::move(change).error()).error());
  }
  data.change = std::move(*change);
  for (TransitionConsumer* const consumer : data.consumers) {
    if (auto prepared = data.prepare_one(*consumer); !prepared) {
      return tl::unexpected(std::move(prepared).error());
    }
  }
  if (data.made.empty() && is_same_layout(data.change)) {
    data.stage = stage.id;
    data.state = TransitionState::idle;
    return Prepared::unchanged;
  }
  data.state = TransitionState::prepared;
  return Prepared::ready;
}

Result<void> Transition::activate() {
  TransitionData& data = *data_;
  if (auto ready =
          data.check_is(TransitionState::prepared, "nothing is prepared; prepare a stage first");
      !ready) {
    return ready;
  }
  auto opened = guarded_call("planning", [&] { return data.arenas.open_plans(data.change); });
  if (!opened) {
    return opened;
  }
  data.state = TransitionState::activating;
  if (auto done = data.run(); !done) {
    data.close(TransitionState::failed);
    return done;
  }
  data.discard();
  data.stage = data.change.stage;
  data.state = TransitionState::idle;
  return {};
}

Result<void> Transition::recover() {
  TransitionData& data = *data_;
  if (auto ready = data.check_is(TransitionState::failed, "nothing has failed; go on"); !ready) {
    return ready;
  }
  data.state = TransitionState::recovering;
  Result<void> done = data.check_restorable();
  if (done) {
    data.change.direction = TransitionDirection::back;
    done = data.run();
  }
  if (!done) {
    data.close(TransitionState::invalid);
    return done;
  }
  data.discard();
  data.state = TransitionState::idle;
  return {};
}

Result<void> Transition::cancel() {
  switch (data_->state) {
    case TransitionState::preparing:
    case TransitionState::activating:
      data_->cancel_asked = true;
      return {};
    case TransitionState::prepared:
      data_->state = TransitionState::preparing;
      data_->discard();
      data_->state = TransitionState::idle;
      return {};
    case TransitionState::recovering:
      return tl::unexpected(data_->refused());
    case TransitionState::idle:
    case TransitionState::executing:
    case TransitionState::failed:
    case TransitionState::invalid:
      break;
  }
  return tl::unexpected(wrong(std::string("no change to cancel, it is ") + name(data_->state)));
}

TransitionState Transition::state() const {
  return data_->state;
}

std::uint64_t Transition::stage() const {
  return data_->stage;
}

const std::optional<TransitionFailure>& Transition::failure() const {
  return data_->failure;
}

}  // namespace kvspan
