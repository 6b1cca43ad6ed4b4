// SPDX-License-Identifier: Apache-2.0
// results.jsonl: for programs. The first line is the header, then one line a case as soon as its
// result stands, last the verdict; a file without a verdict is of a run that was lost.
//
//   header   schema, suite_version, header_hash, abi, plugin {file, name, vendor, version,
//            build_id, ...}, probe, seed, command_line, started, planned
//   case     case, rules, profile, status, reason, duration_ns, failures [{file, line, message,
//            expected, actual, rule}], failures_left_out, notes, stacks, printed,
//            alone, reproduce
//   verdict  exit_status, sentence, executed, mandatory, skipped, counts, duration_ns
#ifndef KVSPAN_CONFORMANCE_RUNNER_REPORT_JSONL_H
#define KVSPAN_CONFORMANCE_RUNNER_REPORT_JSONL_H

#include "report_facts.hpp"

#include <fstream>
#include <string>

namespace kvspan::runner {

inline constexpr int kResultsSchema = 1;

class ResultsFile {
 public:
  // Writes the header. Each of these gives an empty text, or why a line was not written.
  [[nodiscard]] std::string create(const std::string& path,
                                   const ReportFacts& facts,
                                   const Plan& plan);
  [[nodiscard]] std::string add(const ReportFacts& facts,
                                const SuiteCase& one,
                                const CaseResult& result);
  [[nodiscard]] std::string finish(const ReportFacts& facts, const Verdict& verdict);

 private:
  std::string line(const nlohmann::ordered_json& record);

  std::string path_;
  std::ofstream file_;
};

}  // namespace kvspan::runner

#endif
