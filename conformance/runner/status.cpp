// SPDX-License-Identifier: Apache-2.0
// Names and classes of statuses. Read next: status.hpp.
#include "status.hpp"

#include <algorithm>
#include <iterator>

namespace kvspan::runner {

std::string_view name(Status status) {
  constexpr std::string_view kNames[kStatusCount] = {"pass",
                                                     "fail",
                                                     "crash",
                                                     "hang",
                                                     "warn",
                                                     "skip",
                                                     "blocked",
                                                     "waived",
                                                     "unexpected_pass",
                                                     "inconclusive",
                                                     "not_run",
                                                     "suite_error"};
  return kNames[static_cast<std::size_t>(status)];
}

bool executed(Status status) {
  constexpr Status kNot[] = {
      Status::skip, Status::blocked, Status::inconclusive, Status::not_run, Status::suite_error};
  return std::find(std::begin(kNot), std::end(kNot), status) == std::end(kNot);
}

bool needs_a_look(Status status) {
  return status != Status::pass && status != Status::skip && status != Status::waived;
}

}  // namespace kvspan::runner
