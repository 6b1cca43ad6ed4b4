// SPDX-License-Identifier: Apache-2.0
// The probe: a worker that loads the plugin, describes, opens, asks and closes, and runs no case.
// Its record is what skips are computed from; the same worker tells after a hang whether the
// machine still answers. Its fields: conformance/worker/record.hpp.
#ifndef KVSPAN_CONFORMANCE_RUNNER_PROBE_H
#define KVSPAN_CONFORMANCE_RUNNER_PROBE_H

#include "case_result.hpp"
#include "suite_case.hpp"
#include "worker_process.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace kvspan::runner {

struct Probe {
  bool answered = false;                           // a record came
  nlohmann::json body = nlohmann::json::object();  // the record
  CaseResult result;                               // the probe as a case of its own
  std::string refused;  // why the worker did not take its order (an option that it does not know)

  // Whether the plugin opened; it may have failed afterwards, as `result` says.
  [[nodiscard]] bool opened() const;
};

// The probe in the reports: it stands before all cases.
[[nodiscard]] SuiteCase probe_case();

// Runs one to its end, at most as long as `timeout`. Blocks. Any thread.
[[nodiscard]] Probe run_probe(const WorkerCommand& command,
                              const std::vector<std::string>& arguments,
                              Nanoseconds timeout);

}  // namespace kvspan::runner

#endif
