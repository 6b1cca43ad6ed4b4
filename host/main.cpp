// SPDX-License-Identifier: Apache-2.0
// Entry of the tool `kvspan`. An exception here is out of memory or a bug: it gets a sentence too.
#include <cstdio>
#include <exception>

#include "cli.hpp"
#include "exit_code.hpp"

int main(int argc, char** argv) {
  try {
    return kvspan::host::run_command_line(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "error: unexpected: %s\n", failure.what());
    return kvspan::host::kExitFailed;
  }
}
