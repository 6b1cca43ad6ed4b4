// SPDX-License-Identifier: Apache-2.0
// What a report says about the machine that it was measured on.
#pragma once

#include <string>

namespace kvspan::host {

struct Machine {
  std::string processor;  // as the system names it; empty where it does not
  long cores = 0;         // that this process may use
  std::string system;     // "Linux 6.18"
};

[[nodiscard]] Machine this_machine();

}  // namespace kvspan::host
