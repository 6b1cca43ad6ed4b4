// SPDX-License-Identifier: Apache-2.0
// The flag is the one variable of the tool that outlives a function: a signal handler can reach
// nothing else.
#include "interrupt.hpp"

#include <csignal>

namespace kvspan::host {

namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): see the head comment
volatile std::sig_atomic_t signal_came = 0;

extern "C" void note_interrupt(int) {
  signal_came = 1;
}

}  // namespace

struct Interrupt::Handlers {
  struct sigaction interrupt;
  struct sigaction terminate;
};

Interrupt::Interrupt() : before_(new Handlers{}) {
  signal_came = 0;

  struct sigaction action {};

  action.sa_handler = note_interrupt;
  // The second one ends the process at once: a step of a large model may take long. Reading the
  // prompt goes on.
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &before_->interrupt);
  sigaction(SIGTERM, &action, &before_->terminate);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &before_->interrupt, nullptr);
  sigaction(SIGTERM, &before_->terminate, nullptr);
  delete before_;
}

bool Interrupt::requested() {
  return signal_came != 0;
}

}  // namespace kvspan::host
