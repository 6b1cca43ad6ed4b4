// SPDX-License-Identifier: Apache-2.0
// junit.xml: for continuous integration. Written twice: before the first case with every planned
// case as an error, so that a run that is lost is red, and at the end with the results.
#ifndef KVSPAN_CONFORMANCE_RUNNER_REPORT_JUNIT_H
#define KVSPAN_CONFORMANCE_RUNNER_REPORT_JUNIT_H

#include "report_facts.hpp"

#include <string>

namespace kvspan::runner {

// Every case of the plan as an error "the run was lost".
[[nodiscard]] std::string junit_before(const ReportFacts& facts, const Plan& plan);

[[nodiscard]] std::string junit_after(const ReportInput& input);

}  // namespace kvspan::runner

#endif
