// SPDX-License-Identifier: Apache-2.0
// A case as the parent knows it: names and needs, no code. The list comes from whoever starts the
// parent (main.cpp: the cases that are linked in; the tests: a scripted list).
// Read next: plan.hpp, which selects and skips.
#ifndef KVSPAN_CONFORMANCE_RUNNER_SUITE_CASE_H
#define KVSPAN_CONFORMANCE_RUNNER_SUITE_CASE_H

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvspan::runner {

struct SuiteCase {
  std::string id;                  // "CopyTest.NoSegmentsAreAccepted"
  std::vector<std::string> rules;  // "KV-COPY-2": what it proves
  std::string profile;             // core, copy, attention, stream
  std::vector<std::string> needs;  // "attention", "debug": what the plugin must offer
  std::uint32_t cost_ms = 20;      // about, at full effort
  bool takes_tuple = false;        // chooses types or head sizes: what --tuple is about
  bool runs_alone = false;         // no other worker may use the device meanwhile
  // Which need a plugin with this probe record does not meet, as a fact ("the plugin offers no
  // attention table"); empty when it meets all. May be empty itself: no needs.
  std::function<std::string(const nlohmann::json& probe)> unmet;

  // The part before the dot: the cases of one suite run in one worker.
  [[nodiscard]] std::string_view suite() const {
    return std::string_view(id).substr(0, id.find('.'));
  }
};

inline constexpr std::string_view kProfiles[] = {"core", "copy", "attention", "stream"};

// Whether a name matches a pattern of `*`, `?` and `[...]`.
[[nodiscard]] bool matches(const std::string& pattern, const std::string& name);

// Whether the case proves a rule that matches the pattern.
[[nodiscard]] bool proves(const SuiteCase& one, const std::string& rule_pattern);

// The cases as text for `--list`: a line each with profile, rules and needs.
[[nodiscard]] std::string listed(const std::vector<SuiteCase>& cases);

}  // namespace kvspan::runner

#endif
