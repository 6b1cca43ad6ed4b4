// SPDX-License-Identifier: Apache-2.0
// The flag is the one variable that outlives a function: a signal handler can reach nothing else.
#include "interrupt.hpp"

#include <atomic>
#include <csignal>

namespace kvspan::runner {

namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): see the head comment
std::atomic<bool> flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void note_interrupt(int) {
  flag.store(true, std::memory_order_relaxed);
}

}  // namespace

void watch_for_interrupt() {
  struct sigaction action {};

  action.sa_handler = note_interrupt;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() {
  return flag.load(std::memory_order_relaxed);
}

}  // namespace kvspan::runner
