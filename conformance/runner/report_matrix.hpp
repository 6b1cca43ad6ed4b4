// SPDX-License-Identifier: Apache-2.0
// The part of the page that says what the plugin offers: K type x V type x head size, options, row
// classes, codec. All from the probe's record (conformance/worker/record.hpp).
#ifndef KVSPAN_CONFORMANCE_RUNNER_REPORT_MATRIX_H
#define KVSPAN_CONFORMANCE_RUNNER_REPORT_MATRIX_H

#include <nlohmann/json.hpp>

#include <string>

namespace kvspan::runner {

// HTML without a heading. A record that lacks a part, or has something else in its place, gives a
// sentence instead of a table.
[[nodiscard]] std::string matrix_html(const nlohmann::json& probe);

}  // namespace kvspan::runner

#endif
