// SPDX-License-Identifier: Apache-2.0
// What people see while and after a run: progress on stderr, on stdout every case that did not pass
// with the line that repeats it, then the verdict.
#ifndef KVSPAN_CONFORMANCE_RUNNER_REPORT_TERMINAL_H
#define KVSPAN_CONFORMANCE_RUNNER_REPORT_TERMINAL_H

#include "report_facts.hpp"

#include <cstddef>
#include <string>

namespace kvspan::runner {

// The lines of one case that needs a look; empty for any other.
[[nodiscard]] std::string terminal_case(const ReportFacts& facts,
                                        const SuiteCase& one,
                                        const CaseResult& result);

// Skips by their fact, then the verdict.
[[nodiscard]] std::string terminal_end(const ReportInput& input);

// Counts cases on stderr: redrawn on a terminal, a line every tenth elsewhere, nothing when quiet.
class Progress {
 public:
  Progress(std::size_t count, bool quiet);
  // Removes the redrawn line, so that something else can be written.
  void clear();
  void step(const std::string& id, const CaseResult& result);

 private:
  std::size_t count_;
  bool quiet_;
  bool terminal_;
  bool open_ = false;
  std::size_t done_ = 0;
  std::size_t bad_ = 0;
  std::size_t tenth_ = 0;
};

}  // namespace kvspan::runner

#endif
