// SPDX-License-Identifier: Apache-2.0
// report.html: one page that needs nothing else. Verdict, capability matrix, rules, what needs a
// look with expected and actual values, all cases. Complete without JavaScript; the script only
// filters. Everything that comes from a plugin is escaped.
#ifndef KVSPAN_CONFORMANCE_RUNNER_REPORT_HTML_H
#define KVSPAN_CONFORMANCE_RUNNER_REPORT_HTML_H

#include "report_facts.hpp"

#include <string>

namespace kvspan::runner {

[[nodiscard]] std::string html_page(const ReportInput& input);

}  // namespace kvspan::runner

#endif
