// SPDX-License-Identifier: Apache-2.0
// A joined thread of the plugin with all signals blocked, so that the process's handlers run on the
// host's threads only. Not std::thread: that allocates outside the host's allocator and throws.
#pragma once

#include <cfenv>
#include <pthread.h>
#include <signal.h>

namespace kvspan::cuda {

// Blocks all signals of the calling thread while it lives: threads that CUDA's driver starts
// meanwhile inherit that, and never run a handler of the host's.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }

  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  SignalsBlocked(SignalsBlocked&&) = delete;
  SignalsBlocked& operator=(SignalsBlocked&&) = delete;

  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

class Thread {
 public:
  Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  Thread(Thread&&) = delete;
  Thread& operator=(Thread&&) = delete;

  ~Thread() { join(); }

  // False when the system has no room for a thread. `body` must not throw. It runs with the default
  // floating-point environment: a new thread inherits its creator's, and a host that flushes
  // subnormals or rounds upward must not move our bits.
  [[nodiscard]] bool start(void (*body)(void*), void* argument) noexcept {
    body_ = body;
    argument_ = argument;
    const SignalsBlocked blocked;
    started_ = pthread_create(&thread_, nullptr, main, this) == 0;
    return started_;
  }

  void join() noexcept {
    if (started_) {
      pthread_join(thread_, nullptr);
      started_ = false;
    }
  }

 private:
  static void* main(void* self) {
    std::fesetenv(FE_DFL_ENV);
    const Thread& thread = *static_cast<Thread*>(self);
    thread.body_(thread.argument_);
    return nullptr;
  }

  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  pthread_t thread_{};
  bool started_ = false;
};

}  // namespace kvspan::cuda
