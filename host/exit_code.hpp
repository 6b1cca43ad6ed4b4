// SPDX-License-Identifier: Apache-2.0
// What the tool's exit status means. Read next: report.hpp, which prints the sentence that goes
// with it.
#pragma once

#include "kvspan/core/error.hpp"

namespace kvspan::host {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;         // something broke while working: see the sentence
inline constexpr int kExitWrongInput = 2;     // an option or a file says something that cannot be
inline constexpr int kExitMissingHere = 3;    // absent, unfitting or too small on this machine
inline constexpr int kExitInterrupted = 130;  // Ctrl-C, as shells expect

[[nodiscard]] int exit_code(const Error& error);

// The same failure where a file was found and lacks something inside: the file is wrong input then,
// nothing is missing here.
[[nodiscard]] Error as_bad_file(Error error);

}  // namespace kvspan::host
