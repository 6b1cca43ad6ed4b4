// SPDX-License-Identifier: Apache-2.0
// A static object that greets whoever loads the file.
#include <unistd.h>

namespace {

struct Greeting {
  Greeting() { static_cast<void>(!::write(STDOUT_FILENO, "accelerator runtime 1.2\n", 24)); }
};

const Greeting greeting;

}  // namespace
