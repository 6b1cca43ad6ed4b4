// SPDX-License-Identifier: Apache-2.0
// A static object that is not for this machine: loading ends the process by a signal.
#include <csignal>

namespace {

struct Needs {
  Needs() { std::raise(SIGILL); }
};

const Needs needs;

}  // namespace
