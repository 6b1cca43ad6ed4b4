// SPDX-License-Identifier: Apache-2.0
// What a worker is told on its command line, and the command line that repeats a case by hand.
#ifndef KVSPAN_CONFORMANCE_RUNNER_WORKER_ARGUMENTS_H
#define KVSPAN_CONFORMANCE_RUNNER_WORKER_ARGUMENTS_H

#include "case_result.hpp"
#include "options.hpp"
#include "suite_case.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::runner {

// For a worker that probes. `record_descriptor`: where it writes its records; -1: it prints.
[[nodiscard]] std::vector<std::string> probe_arguments(const Options& options,
                                                       int record_descriptor);

// For a worker that runs these cases in this order.
[[nodiscard]] std::vector<std::string> case_arguments(const Options& options,
                                                      std::uint64_t seed,
                                                      const std::vector<std::string>& ids,
                                                      int record_descriptor);

// One line for a shell that runs the case again with the same data, in one process: alone, or with
// its suite where it goes wrong only after its neighbours.
[[nodiscard]] std::string reproduce_line(const Options& options,
                                         std::uint64_t seed,
                                         const SuiteCase& one,
                                         const CaseResult& result);

}  // namespace kvspan::runner

#endif
