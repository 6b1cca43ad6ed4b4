// SPDX-License-Identifier: Apache-2.0
// From a failure to an exit status: one table.
#include "exit_code.hpp"

namespace kvspan::host {

int exit_code(const Error& error) {
  switch (error.code) {
    case Errc::invalid_argument:
    case Errc::unsupported:
    case Errc::bad_file:
    case Errc::too_large:
      return kExitWrongInput;
    case Errc::not_found:
    case Errc::version:
    case Errc::host_memory:
    case Errc::device_memory:
    case Errc::workspace:
      return kExitMissingHere;
    case Errc::cancelled:
      return kExitInterrupted;
    case Errc::io:
      return kExitWrongInput;
    case Errc::device_lost:
    case Errc::wait_failed:
    case Errc::internal:
    case Errc::busy:
    case Errc::timeout:
    case Errc::queue_full:
      return kExitFailed;
  }
  return kExitFailed;
}

Error as_bad_file(Error error) {
  if (error.code == Errc::not_found) {
    error.code = Errc::bad_file;
  }
  return error;
}

}  // namespace kvspan::host
