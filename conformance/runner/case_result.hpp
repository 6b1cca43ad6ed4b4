// SPDX-License-Identifier: Apache-2.0
// What became of one case: status, why, and what it saw. Filled by group_run.hpp and campaign.hpp,
// read by the reports.
#ifndef KVSPAN_CONFORMANCE_RUNNER_CASE_RESULT_H
#define KVSPAN_CONFORMANCE_RUNNER_CASE_RESULT_H

#include "duration.hpp"
#include "status.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvspan::runner {

// One check that did not hold.
struct Failure {
  std::string file;  // empty: outside any source line
  std::int64_t line = 0;
  std::string message;
  std::optional<std::string> expected;  // where the check has the two values
  std::optional<std::string> actual;
  std::string rule;  // where the check names one itself; else empty
};

struct CaseResult {
  Status status = Status::not_run;
  std::string reason;  // a sentence for everything but pass and fail
  Nanoseconds duration{};
  std::vector<Failure> failures;  // the first kFailuresMax
  std::size_t failures_left_out = 0;
  std::vector<std::string> notes;   // the first kNotesMax
  std::vector<std::string> stacks;  // of a hang: where each thread was, a line a frame
  std::string printed;              // what arrived at stdout and stderr meanwhile, cut
  std::string alone;                // after a crash: what the case does in a worker of its own
  bool only_with_neighbours = false;
  bool out_of_budget = false;  // not_run, for that reason and no other
};

inline constexpr std::size_t kFailuresMax = 20;
inline constexpr std::size_t kNotesMax = 50;
inline constexpr std::size_t kPrintedBytesMax = 4096;

// Appends what was printed, up to kPrintedBytesMax in all.
inline void append_printed(std::string& printed, std::string_view text) {
  printed.append(text.substr(0, kPrintedBytesMax - std::min(kPrintedBytesMax, printed.size())));
}

// The reason, else the first failure, else the name of the status.
[[nodiscard]] inline std::string first_words(const CaseResult& result) {
  return !result.reason.empty()     ? result.reason
         : !result.failures.empty() ? result.failures.front().message
                                    : std::string(name(result.status));
}

}  // namespace kvspan::runner

#endif
