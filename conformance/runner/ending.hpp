// SPDX-License-Identifier: Apache-2.0
// What the exit status of kvspan-conformance means, and a run that is over before it has begun:
// with help text, or with the one sentence that says what was wrong. Read next: verdict.hpp, which
// chooses the status of a run that took place.
#ifndef KVSPAN_CONFORMANCE_RUNNER_ENDING_H
#define KVSPAN_CONFORMANCE_RUNNER_ENDING_H

#include <tl/expected.hpp>

#include <string>
#include <utility>

namespace kvspan::runner {

inline constexpr int kExitPassed = 0;    // every mandatory case passed or is waived
inline constexpr int kExitFailed = 1;    // a rule failed, or a waived case passed
inline constexpr int kExitCrashed = 2;   // a crash or a hang
inline constexpr int kExitMachine = 3;   // blocked, a mistake of the suite, no report, interrupted
inline constexpr int kExitWarnings = 4;  // --strict and only warnings
inline constexpr int kExitUsage = 64;    // wrong options, or nothing was selected or executed

// `text` is one sentence without "error:", or, with kExitPassed, what was asked for (help, a list).
struct Ending {
  int exit_status;
  std::string text;
};

template <class T>
using OrEnding = tl::expected<T, Ending>;

inline tl::unexpected<Ending> usage_error(std::string text) {
  return tl::unexpected(Ending{kExitUsage, std::move(text)});
}

}  // namespace kvspan::runner

#endif
