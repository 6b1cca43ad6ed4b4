/* SPDX-License-Identifier: Apache-2.0 */
/* What a card's vendor puts under a backend: a library that is loaded once and never unloaded,
 * whose first start leaves a thread and a descriptor for the life of the process. Read next:
 * misbehaving.c, which loads it. */
#include "vendor_runtime.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void* wait_for_work(void* unused) {
  for (;;) {
    pause();
  }
  return unused;
}

int vendor_start_thread(void) {
  sigset_t all;
  sigset_t before;
  pthread_t thread;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int result = pthread_create(&thread, NULL, wait_for_work, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return result != 0 ? -1 : pthread_setname_np(thread, "vendor-events");
}

int vendor_start(void) {
  static int started = 0;
  if (started) {
    return 0;
  }
  started = 1;
  return eventfd(0, EFD_CLOEXEC) < 0 ? -1 : vendor_start_thread();
}
