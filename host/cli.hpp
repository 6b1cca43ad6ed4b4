// SPDX-License-Identifier: Apache-2.0
// The command line as a function: arguments in, exit status out.
#pragma once

namespace kvspan::host {

[[nodiscard]] int run_command_line(int count, char** arguments);

}  // namespace kvspan::host
