// SPDX-License-Identifier: Apache-2.0
// Entry of the tool `kvspan`. An exception here is out of memory or a bug: it gets a sentence too.
#include "cli.hpp"
#include "exit_code.hpp"
#include "report.hpp"
#include "standard_streams.hpp"

#include <exception>
#include <string>

int main(int argc, char** argv) {
  kvspan::host::prepare_standard_streams();
  try {
    return kvspan::host::run_command_line(argc, argv);
  } catch (const std::exception& failure) {
    kvspan::host::print_error({kvspan::Errc::internal,
                               std::string("this is a defect of kvspan, or memory is short: ") +
                                   failure.what() + "; please report it with the command"});
    return kvspan::host::kExitFailed;
  }
}
