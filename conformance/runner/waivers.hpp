// SPDX-License-Identifier: Apache-2.0
// Known failures that the plugin's author has put in writing, each with an owner and an end. The
// file is a JSON list of objects:
//
//   case     pattern of case ids, "CopyTest.*"
//   rule     optional pattern: only cases that prove such a rule
//   status   optional: fail (the default), crash or hang: what is waived, nothing worse
//   reason   why, in words
//   owner    who ends it
//   expires  "2030-01-31", the last day (UTC); a crash or a hang at most 30 days from today
#ifndef KVSPAN_CONFORMANCE_RUNNER_WAIVERS_H
#define KVSPAN_CONFORMANCE_RUNNER_WAIVERS_H

#include "case_result.hpp"
#include "ending.hpp"
#include "suite_case.hpp"

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace kvspan::runner {

struct Waiver {
  std::string case_pattern;
  std::string rule_pattern;  // empty: any
  Status status = Status::fail;
  std::string reason;
  std::string owner;
  std::string expires;
};

// Reads a waiver file's text. `file` is its name for messages, `today` the day by which waivers
// expire. Errors: usage, naming the entry by its number and case.
[[nodiscard]] OrEnding<std::vector<Waiver>> parse_waivers(const std::string& file,
                                                          std::string_view text,
                                                          std::chrono::sys_days today,
                                                          const std::vector<SuiteCase>& suite);

// The same from the file itself; an empty name gives none.
[[nodiscard]] OrEnding<std::vector<Waiver>> read_waivers(const std::string& file,
                                                         const std::vector<SuiteCase>& suite);

// Turns a waived failure into `waived`, and a pass that is waived into `unexpected_pass`.
void apply_waivers(const std::vector<Waiver>& waivers, const SuiteCase& one, CaseResult& result);

}  // namespace kvspan::runner

#endif
