// SPDX-License-Identifier: Apache-2.0
// A static object that waits for a service which does not run.
#include <unistd.h>

namespace {

struct Service {
  Service() {
    for (;;) {
      ::pause();
    }
  }
};

const Service service;

}  // namespace
