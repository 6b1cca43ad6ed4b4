// SPDX-License-Identifier: Apache-2.0
// Patterns and the list of cases as text. Read next: suite_case.hpp.
#include "suite_case.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fnmatch.h>

namespace kvspan::runner {

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool proves(const SuiteCase& one, const std::string& rule_pattern) {
  return std::any_of(one.rules.begin(), one.rules.end(), [&](const std::string& rule) {
    return matches(rule_pattern, rule);
  });
}

std::string listed(const std::vector<SuiteCase>& cases) {
  std::size_t width = 0;
  for (const SuiteCase& one : cases) {
    width = std::max(width, one.id.size());
  }
  std::string out;
  for (const SuiteCase& one : cases) {
    out += fmt::format("{:<{}}  {:<9}  {}{}{}{}\n",
                       one.id,
                       width,
                       one.profile,
                       fmt::join(one.rules, " "),
                       one.needs.empty() ? "" : "  needs ",
                       fmt::join(one.needs, ", "),
                       one.runs_alone ? "  runs alone" : "");
  }
  return out;
}

}  // namespace kvspan::runner
