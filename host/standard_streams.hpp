// SPDX-License-Identifier: Apache-2.0
// The process's standard streams: results go to stdout and must arrive, words for people go to
// stderr and may be lost. Not here: what is said (report.hpp).
#pragma once

#include "kvspan/core/error.hpp"

#include <string_view>

namespace kvspan::host {

// Call once, first of all. Afterwards a reader of stdout who went away is an error of
// write_stdout() and no death by SIGPIPE, and no file that is opened later becomes stdin, stdout
// or stderr because the caller had closed that one.
void prepare_standard_streams();

// Writes `text` to stdout, all of it, now. Errors: io, with the system's reason.
[[nodiscard]] Result<void> write_stdout(std::string_view text);

// Writes `text` to stderr; what cannot be written there is dropped. Any thread.
void tell(std::string_view text);

}  // namespace kvspan::host
