// SPDX-License-Identifier: Apache-2.0
// Counts and the exit status. Read next: verdict.hpp; what the numbers mean: ending.hpp.
#include "verdict.hpp"

#include "ending.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

namespace kvspan::runner {

namespace {

// "COPY" of "KV-COPY-2": rules of one area stand beside each other in one header.
std::string area_of(const std::string& rule) {
  const std::size_t begin = rule.find('-') + 1;
  return rule.substr(begin, rule.rfind('-') - begin);
}

// Areas of rules and profiles with an executed case.
struct Reached {
  std::set<std::string> areas;
  std::set<std::string> profiles;
};

Reached reached(const Plan& plan, const std::vector<CaseResult>& results) {
  Reached found;
  for (std::size_t i = 1; i < plan.cases.size(); ++i) {
    const SuiteCase& one = plan.cases[i].suite_case;
    if (executed(results[i].status)) {
      found.profiles.insert(one.profile);
      std::transform(one.rules.begin(),
                     one.rules.end(),
                     std::inserter(found.areas, found.areas.end()),
                     area_of);
    }
  }
  return found;
}

// Why a run without any failure proves nothing; empty when it does prove something.
std::string nothing_done(const Plan& plan, const Reached& done, const Options& options) {
  const auto first_skip =
      std::find_if(plan.cases.begin(), plan.cases.end(), [](const PlannedCase& planned) {
        return planned.status == Status::skip;
      });
  const std::string example =
      first_skip == plan.cases.end()
          ? std::string()
          : fmt::format(", for example {}: {}", first_skip->suite_case.id, first_skip->reason);
  if (done.profiles.empty()) {
    return fmt::format(
        "nothing was executed of {} selected cases{}", plan.cases.size() - 1, example);
  }
  for (const std::string& profile : options.profiles) {
    if (done.profiles.count(profile) == 0) {
      return fmt::format("--profile {}: nothing of it was executed{}", profile, example);
    }
  }
  return {};
}

// What a budget left undone.
struct Undone {
  bool areas = false;   // rules of some area are without any executed case
  std::string profile;  // a profile of which nothing was executed; empty when there is none
};

Undone undone(const Plan& plan, const std::vector<CaseResult>& results, const Reached& done) {
  Undone left;
  for (std::size_t i = 1; i < plan.cases.size(); ++i) {
    const SuiteCase& one = plan.cases[i].suite_case;
    if (!results[i].out_of_budget) {
      continue;
    }
    left.areas =
        left.areas || std::any_of(one.rules.begin(), one.rules.end(), [&](const auto& rule) {
          return done.areas.count(area_of(rule)) == 0;
        });
    if (done.profiles.count(one.profile) == 0 && left.profile.empty()) {
      left.profile = one.profile;
    }
  }
  return left;
}

int exit_status(const Verdict& verdict, const Options& options) {
  if (verdict.count(Status::blocked) + verdict.count(Status::suite_error) != 0) {
    return kExitMachine;
  }
  if (verdict.count(Status::crash) + verdict.count(Status::hang) != 0) {
    return kExitCrashed;
  }
  if (verdict.count(Status::fail) + verdict.count(Status::unexpected_pass) != 0) {
    return kExitFailed;
  }
  return options.strict && verdict.count(Status::warn) != 0 ? kExitWarnings : kExitPassed;
}

std::string counted(const Verdict& verdict) {
  std::string out;
  for (std::size_t i = 0; i < kStatusCount; ++i) {
    const auto status = static_cast<Status>(i);
    const bool shown = status != Status::pass && status != Status::skip;
    if (shown && verdict.counts[i] != 0) {
      out += fmt::format(", {} {}", verdict.counts[i], name(status));
    }
  }
  return out;
}

}  // namespace

Verdict judged(const Plan& plan, const std::vector<CaseResult>& results, const Options& options) {
  Verdict verdict;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Status status = results[i].status;
    if (i == 0 && status == Status::pass) {
      continue;  // the probe is no case of the suite
    }
    ++verdict.counts[static_cast<std::size_t>(status)];
    if (i != 0) {
      verdict.executed += executed(status) ? 1u : 0u;
      verdict.mandatory += status == Status::skip ? 0u : 1u;
    }
  }
  verdict.skipped = verdict.count(Status::skip);
  verdict.exit_status = exit_status(verdict, options);
  std::string word = verdict.exit_status == kExitPassed     ? "PASSED"
                     : verdict.exit_status == kExitMachine  ? "NOT JUDGED"
                     : verdict.exit_status == kExitWarnings ? "WARNINGS"
                                                            : "FAILED";
  if (verdict.exit_status == kExitPassed) {
    const Reached done = reached(plan, results);
    const Undone left = undone(plan, results, done);
    if (const std::string why = nothing_done(plan, done, options); !why.empty()) {
      verdict.exit_status = kExitUsage;
      word = "NOTHING PROVEN: " + why;
    } else if (options.budget && !left.profile.empty()) {
      verdict.exit_status = kExitUsage;
      word = fmt::format(
          "NOTHING PROVEN: the budget of {} ended before any case of the profile {}; give more",
          spoken(*options.budget),
          left.profile);
    } else if (verdict.count(Status::not_run) != 0) {
      word = options.budget && left.areas ? "BUDGET ENDED" : "PASSED SO FAR";
    }
  }
  verdict.sentence = fmt::format("{}: executed {} of {} mandatory, {} skipped{}",
                                 word,
                                 verdict.executed,
                                 verdict.mandatory,
                                 verdict.skipped,
                                 counted(verdict));
  return verdict;
}

}  // namespace kvspan::runner
