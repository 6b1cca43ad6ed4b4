// SPDX-License-Identifier: Apache-2.0
// Counts and the exit status. Read next: verdict.hpp; what the numbers mean: ending.hpp.
#include "verdict.hpp"

#include "ending.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvspan::runner {

namespace {

std::size_t executed_in_profile(const Plan& plan,
                                const std::vector<CaseResult>& results,
                                const std::string& profile) {
  std::size_t count = 0;
  for (std::size_t i = 1; i < plan.cases.size(); ++i) {
    count += plan.cases[i].suite_case.profile == profile && executed(results[i].status) ? 1u : 0u;
  }
  return count;
}

// Why a run without any failure proves nothing; empty when it does prove something.
std::string nothing_done(const Plan& plan,
                         const std::vector<CaseResult>& results,
                         const Options& options) {
  const auto first_skip =
      std::find_if(plan.cases.begin(), plan.cases.end(), [](const PlannedCase& planned) {
        return planned.status == Status::skip;
      });
  const std::string example =
      first_skip == plan.cases.end()
          ? std::string()
          : fmt::format(", for example {}: {}", first_skip->suite_case.id, first_skip->reason);
  if (std::none_of(results.begin() + 1, results.end(), [](const CaseResult& result) {
        return executed(result.status);
      })) {
    return fmt::format("nothing was executed of {} selected cases{}", results.size() - 1, example);
  }
  for (const std::string& profile : options.profiles) {
    if (executed_in_profile(plan, results, profile) == 0) {
      return fmt::format("--profile {}: nothing of it was executed{}", profile, example);
    }
  }
  return {};
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
    if (const std::string why = nothing_done(plan, results, options); !why.empty()) {
      verdict.exit_status = kExitUsage;
      word = "NOTHING PROVEN: " + why;
    } else if (verdict.count(Status::not_run) != 0) {
      word = "PASSED SO FAR";
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
