// SPDX-License-Identifier: Apache-2.0
// A joined thread of the plugin with all signals blocked, so that the process's handlers run on the
// host's threads only. Not std::thread: that allocates outside the host's allocator and throws.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace kvspan::cpu {

class Thread {
 public:
  Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  ~Thread() { join(); }

  // False when the system has no room for a thread. `body` must not throw.
  [[nodiscard]] bool start(void* (*body)(void*), void* argument) noexcept {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started_ = pthread_create(&thread_, nullptr, body, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started_;
  }

  void join() noexcept {
    if (started_) {
      pthread_join(thread_, nullptr);
      started_ = false;
    }
  }

 private:
  pthread_t thread_{};
  bool started_ = false;
};

}  // namespace kvspan::cpu
