// SPDX-License-Identifier: Apache-2.0
// The handler: async-signal-safe, once backtrace() has been called before.
#include "worker/stack_writer.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvspan::conformance {
namespace {

constexpr int kFramesMax = 64;
constexpr int kFramesOfTheSignal = 2;  // the handler and the C library's return from it

/// Of what the handler writes to: initialised before the program begins, so without a lock.
std::atomic<int>& stack_descriptor() {
  static std::atomic<int> number = -1;
  return number;
}

/// Text in a buffer on the stack: nothing of the C library's output is safe in a handler.
struct Text {
  char bytes[kFramesMax * 20 + 64] = {};
  std::size_t count = 0;

  void add(const char* text) {
    while (*text != '\0' && count < sizeof bytes) {
      bytes[count++] = *text++;
    }
  }

  void add_number(uint64_t value, unsigned base) {
    char digits[24];
    std::size_t used = 0;
    do {
      digits[used++] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value != 0);
    while (used > 0 && count < sizeof bytes) {
      bytes[count++] = digits[--used];
    }
  }
};

void write_stack(int /*signal*/) {
  const int kept = errno;
  void* frames[kFramesMax];
  const int found = ::backtrace(frames, kFramesMax);
  Text text;
  text.add("thread ");
  text.add_number(static_cast<uint64_t>(::syscall(SYS_gettid)), 10);
  text.add("\n");
  for (int i = kFramesOfTheSignal; i < found; ++i) {
    text.add("0x");
    text.add_number(reinterpret_cast<uintptr_t>(frames[i]), 16);
    text.add("\n");
  }
  text.add("end\n");
  static_cast<void>(!::write(stack_descriptor(), text.bytes, text.count));
  errno = kept;
}

}  // namespace

void arm_stack_writer(int descriptor, int signal) {
  void* frames[1];
  static_cast<void>(::backtrace(frames, 1));  // loads what it needs now, not in the handler
  stack_descriptor() = descriptor;
  struct sigaction action = {};
  action.sa_handler = write_stack;
  action.sa_flags = SA_RESTART;
  sigfillset(&action.sa_mask);
  static_cast<void>(::sigaction(signal, &action, nullptr));
}

}  // namespace kvspan::conformance
