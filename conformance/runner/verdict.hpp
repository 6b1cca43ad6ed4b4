// SPDX-License-Identifier: Apache-2.0
// What all results together mean: counts, the exit status and the sentence that says why.
#ifndef KVSPAN_CONFORMANCE_RUNNER_VERDICT_H
#define KVSPAN_CONFORMANCE_RUNNER_VERDICT_H

#include "case_result.hpp"
#include "options.hpp"
#include "plan.hpp"

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace kvspan::runner {

struct Verdict {
  std::array<std::size_t, kStatusCount> counts{};  // by status; the probe only when it did not pass
  std::size_t executed = 0;                        // cases that judged the plugin
  std::size_t mandatory = 0;                       // selected cases whose needs the plugin meets
  std::size_t skipped = 0;
  int exit_status = 0;
  std::string sentence;  // "PASSED: executed 10 of 10 mandatory, 2 skipped"

  [[nodiscard]] std::size_t count(Status status) const {
    return counts[static_cast<std::size_t>(status)];
  }
};

// `results` lie beside plan.cases.
[[nodiscard]] Verdict judged(const Plan& plan,
                             const std::vector<CaseResult>& results,
                             const Options& options);

}  // namespace kvspan::runner

#endif
