// SPDX-License-Identifier: Apache-2.0
// Which cases a run is about, which of them the plugin lawfully lacks, and which share a worker.
// Not here: running them (campaign.hpp).
#ifndef KVSPAN_CONFORMANCE_RUNNER_PLAN_H
#define KVSPAN_CONFORMANCE_RUNNER_PLAN_H

#include "ending.hpp"
#include "options.hpp"
#include "probe.hpp"
#include "suite_case.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace kvspan::runner {

struct PlannedCase {
  SuiteCase suite_case;
  // not_run: it is to be run. skip: the fact is in `reason`. A plugin that does not open has its
  // cases not_run with a reason.
  Status status = Status::not_run;
  std::string reason;

  [[nodiscard]] bool to_run() const { return reason.empty(); }
};

struct Plan {
  std::vector<PlannedCase> cases;                // [0] is the probe
  std::vector<std::vector<std::size_t>> groups;  // indices into `cases`, a worker each, in order
  std::size_t alone = 0;  // the first so many groups, of a case each: no other worker beside them
};

// The cases that every selection of the options keeps, in the suite's order. Errors: usage, with
// the selection that matched nothing.
[[nodiscard]] OrEnding<std::vector<SuiteCase>> selected_cases(const std::vector<SuiteCase>& all,
                                                              const Options& options);

// Skips what the probe proves to be absent and makes the groups. Errors: usage, when the device or
// the tuples are not there.
[[nodiscard]] OrEnding<Plan> made_plan(const std::vector<SuiteCase>& selected,
                                       const Probe& probe,
                                       const Options& options);

}  // namespace kvspan::runner

#endif
