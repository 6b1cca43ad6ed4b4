// SPDX-License-Identifier: Apache-2.0
// What every report says about the run as a whole: the plugin, the suite, the choices.
// Read next: report_jsonl.hpp, report_junit.hpp, report_html.hpp, report_terminal.hpp.
#ifndef KVSPAN_CONFORMANCE_RUNNER_REPORT_FACTS_H
#define KVSPAN_CONFORMANCE_RUNNER_REPORT_FACTS_H

#include "kvspan/sdk/note.hpp"

#include "case_result.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "verdict.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::runner {

struct ReportFacts {
  Options options;
  std::vector<std::string> command_line;
  std::string suite_version;
  sdk::Note note;
  nlohmann::json probe = nlohmann::json::object();
  std::uint64_t seed = 1;  // of this round
  std::string started;     // "2030-01-31T12:00:00Z"
  Nanoseconds duration{};
};

// Everything that a report at the end is made from. Borrowed for the call.
struct ReportInput {
  const ReportFacts& facts;
  const Plan& plan;
  const std::vector<CaseResult>& results;  // beside plan.cases
  const Verdict& verdict;
};

// The name, version and vendor of the plugin and its build id, as one line.
[[nodiscard]] std::string spoken_plugin(const ReportFacts& facts);

// Creates the folder with its parents. Empty, or why it is not there.
[[nodiscard]] std::string made_folder(const std::string& folder);

// Replaces the file as a whole: a reader never sees half of it. Empty, or why it was not written.
[[nodiscard]] std::string written_file(const std::string& path, const std::string& text);

// The text without bytes that are no UTF-8 and without control characters but line end and tab.
[[nodiscard]] std::string clean_text(const std::string& text);

// clean_text() with <, >, & and quotes as entities, for XML and HTML.
[[nodiscard]] std::string escaped(const std::string& text);

}  // namespace kvspan::runner

#endif
