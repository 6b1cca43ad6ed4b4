// SPDX-License-Identifier: Apache-2.0
// The parent: reads the command line, selects, probes, runs, reports. It never loads a plugin; only
// --in-process does, and only after everything else. Read next: campaign.hpp.
#ifndef KVSPAN_CONFORMANCE_RUNNER_PARENT_H
#define KVSPAN_CONFORMANCE_RUNNER_PARENT_H

#include "suite_case.hpp"
#include "worker_process.hpp"

#include <functional>
#include <string>
#include <vector>

namespace kvspan::runner {

// What the parent is the parent of.
struct Suite {
  std::vector<SuiteCase> cases;
  WorkerCommand worker;
  // The worker as a function, for --in-process; gets the arguments of a worker without a record
  // descriptor and returns its exit status.
  std::function<int(std::vector<std::string> arguments)> worker_in_process;
};

// Returns the exit status (ending.hpp). Results go to stdout, progress and errors to stderr.
[[nodiscard]] int parent_main(const Suite& suite, int count, const char* const* arguments);

}  // namespace kvspan::runner

#endif
