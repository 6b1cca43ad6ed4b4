// SPDX-License-Identifier: Apache-2.0
// What may become of a case. Read next: case_result.hpp, verdict.hpp.
#ifndef KVSPAN_CONFORMANCE_RUNNER_STATUS_H
#define KVSPAN_CONFORMANCE_RUNNER_STATUS_H

#include <cstddef>
#include <string_view>

namespace kvspan::runner {

enum class Status {
  pass,
  fail,             // a rule does not hold
  crash,            // the worker died in it, or wrote what is no record
  hang,             // it ran past its time and was killed
  warn,             // right, but worth a look; never for a rule
  skip,             // what it needs is not offered, as the probe proves
  blocked,          // the machine no longer answers after a hang
  waived,           // it failed as a waiver says
  unexpected_pass,  // it passed, and a waiver says that it fails
  inconclusive,     // it could not set the stage: neither right nor wrong
  not_run,          // the run ended before: budget, interruption, a plugin that does not load
  suite_error       // a mistake of the suite, not of the plugin
};

inline constexpr std::size_t kStatusCount = 12;
static_assert(static_cast<std::size_t>(Status::suite_error) + 1 == kStatusCount);

// "unexpected_pass": as in the reports.
[[nodiscard]] std::string_view name(Status status);

// Whether code of the plugin was judged in the case.
[[nodiscard]] bool executed(Status status);

// Whether people must look at it: everything but pass, skip and waived.
[[nodiscard]] bool needs_a_look(Status status);

}  // namespace kvspan::runner

#endif
