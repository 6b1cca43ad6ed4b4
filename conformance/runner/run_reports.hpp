// SPDX-License-Identifier: Apache-2.0
// All reports of one round as one thing: opened before the first case, fed with each result, closed
// with the verdict. A report that cannot be written makes the run one that nobody may trust.
#ifndef KVSPAN_CONFORMANCE_RUNNER_RUN_REPORTS_H
#define KVSPAN_CONFORMANCE_RUNNER_RUN_REPORTS_H

#include "report_facts.hpp"
#include "report_jsonl.hpp"
#include "report_terminal.hpp"

#include <string>

namespace kvspan::runner {

class RunReports {
 public:
  // Borrows both for as long as it lives.
  RunReports(const ReportFacts& facts, const Plan& plan);

  // Makes the folder of --out and what must be there before anything can be lost. Empty, or why
  // not.
  [[nodiscard]] std::string open();
  void add(std::size_t index, const CaseResult& result);
  // Writes everything that comes last; raises the exit status when a report was not written.
  void finish(const std::vector<CaseResult>& results, Verdict& verdict);

 private:
  [[nodiscard]] std::string path(const char* name) const;
  void keep(const std::string& problem);

  const ReportFacts& facts_;
  const Plan& plan_;
  ResultsFile results_file_;
  Progress progress_;
  std::string problem_;  // the first
};

// Writes all of it now; a reader who went away is no reason to end.
void write_stdout(const std::string& text);

}  // namespace kvspan::runner

#endif
