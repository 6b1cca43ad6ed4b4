// SPDX-License-Identifier: Apache-2.0
// A phase is a name for a stage; what happens between two stages is the transition's.
#include "kvspan/core/memory/phase_owner.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

namespace kvspan {
namespace {

std::string in_words(const PhaseIdentity& identity) {
  return std::string(name(identity.phase)) + " of generation " +
         std::to_string(identity.generation);
}

Error refused(Errc code, WorkPhase phase, const std::string& why) {
  const std::string thing = std::string("phase ") + name(phase);
  return error_of(code, thing + " " + why, thing);
}

Result<void> check_rules(const StagePlan& plan, const std::vector<PhaseRule>& rules) {
  std::set<WorkPhase> seen;
  for (const PhaseRule& rule : rules) {
    if (static_cast<std::uint32_t>(rule.phase) >= kWorkPhaseCount) {
      return tl::unexpected(refused(Errc::invalid_argument, rule.phase, "is none of the phases"));
    }
    if (!seen.insert(rule.phase).second) {
      return tl::unexpected(
          refused(Errc::invalid_argument, rule.phase, "has two rules; give it one"));
    }
    if (!plan.stage(rule.stage)) {
      return tl::unexpected(
          refused(Errc::invalid_argument,
                  rule.phase,
                  "runs in stage " + std::to_string(rule.stage) + ", which is not planned"));
    }
  }
  return {};
}

}  // namespace

const char* name(WorkPhase phase) {
  constexpr std::array<const char*, kWorkPhaseCount> kPhaseNames = {
      "prefill", "decode", "verify", "catch-up", "draft", "spill", "restore", "lent"};
  const auto index = static_cast<std::size_t>(phase);
  return index < kPhaseNames.size() ? kPhaseNames[index] : "unknown";
}

Result<PhaseOwner> PhaseOwner::create(Transition& transition,
                                      StagePlan plan,
                                      std::vector<PhaseRule> rules,
                                      LayoutSizes sizes) {
  if (auto right = check_rules(plan, rules); !right) {
    return tl::unexpected(std::move(right).error());
  }
  return PhaseOwner(transition, std::move(plan), std::move(rules), sizes);
}

Result<PhaseRule> PhaseOwner::rule(WorkPhase phase) const {
  const auto found = std::find_if(
      rules_.begin(), rules_.end(), [phase](const PhaseRule& each) { return each.phase == phase; });
  if (found == rules_.end()) {
    return tl::unexpected(
        refused(Errc::unsupported, phase, "was not planned; plan it, or do without"));
  }
  return *found;
}

Result<void> PhaseOwner::change_to(std::uint64_t stage) {
  auto live = plan_.stage(stage);
  if (!live) {
    return tl::unexpected(std::move(live).error());
  }
  auto prepared = transition_->prepare(*live, sizes_);
  if (!prepared) {
    return tl::unexpected(std::move(prepared).error());
  }
  if (*prepared == Prepared::unchanged) {
    return {};
  }
  auto active = transition_->activate();
  if (active) {
    return {};
  }
  if (transition_->state() == TransitionState::prepared) {
    (void)transition_->cancel();
  } else if (auto back = transition_->recover(); !back) {
    active.error().message += "; and it could not be taken back: " + back.error().message;
  }
  return active;
}

Result<PhaseIdentity> PhaseOwner::enter(WorkPhase phase) {
  const auto next = rule(phase);
  if (!next) {
    return tl::unexpected(next.error());
  }
  if (transition_->state() == TransitionState::executing) {
    return tl::unexpected(refused(Errc::busy, phase, "cannot begin under work; finish that first"));
  }
  const bool is_settled =
      identity_.generation != 0 && transition_->state() == TransitionState::idle;
  if (is_settled && identity_.phase == phase) {
    return identity_;
  }
  if (!is_settled || transition_->stage() != next->stage) {
    if (auto changed = change_to(next->stage); !changed) {
      return tl::unexpected(std::move(changed).error());
    }
  }
  identity_ = {phase, identity_.generation + 1};
  return identity_;
}

Result<std::uint64_t> PhaseOwner::begin(const PhaseIdentity& identity, const PhaseWork& work) {
  if (identity_.generation == 0 || identity != identity_) {
    return tl::unexpected(refused(Errc::invalid_argument,
                                  identity.phase,
                                  "is not the present one, which is " + in_words(identity_) +
                                      "; enter it, then plan the work again"));
  }
  const auto of = rule(identity.phase);
  if (!of) {
    return tl::unexpected(of.error());
  }
  if (work.rows > of->rows_max || (work.rows == 0) != (of->rows_max == 0)) {
    return tl::unexpected(refused(
        Errc::invalid_argument,
        identity.phase,
        "takes up to " + std::to_string(of->rows_max) + " rows, not " + std::to_string(work.rows)));
  }
  if (work.sequences == 0 || work.sequences > of->sequences_max) {
    return tl::unexpected(refused(Errc::invalid_argument,
                                  identity.phase,
                                  "takes 1 to " + std::to_string(of->sequences_max) +
                                      " sequences, not " + std::to_string(work.sequences)));
  }
  return transition_->admit();
}

Result<void> PhaseOwner::finish(std::uint64_t work) {
  return transition_->finish(work);
}

Result<void> PhaseOwner::replan(StagePlan plan) {
  if (auto right = check_rules(plan, rules_); !right) {
    return right;
  }
  if (identity_.generation != 0) {
    const std::uint64_t stage = transition_->stage();
    if (plan.stage(stage) && plan.stage(stage).value() != plan_.stage(stage).value()) {
      return tl::unexpected(refused(
          Errc::busy, identity_.phase, "has other needs in that plan; enter another one first"));
    }
  }
  plan_ = std::move(plan);
  return {};
}

}  // namespace kvspan
