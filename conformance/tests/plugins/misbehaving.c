/* SPDX-License-Identifier: Apache-2.0 */
/* The stub with one misbehaviour in front, chosen when it is compiled: each gives a plugin that
 * kvspan-conformance must report on without losing the run. MISBEHAVE is one of the numbers below.
 * It opens the stub's file (MISBEHAVE_STUB) by itself, which no real plugin may do.
 * Read next: ../misbehaving_test.py. */
#include "kvspan/kvspan.h"

#include "vendor_runtime.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MISBEHAVE_SEGFAULT 1
#define MISBEHAVE_EXIT 2
#define MISBEHAVE_HANG_AT_LOAD 3
#define MISBEHAVE_PRINT 4
#define MISBEHAVE_GARBAGE 5
#define MISBEHAVE_HANG 6
#define MISBEHAVE_HANG_DEAF 7      /* blocks every signal first */
#define MISBEHAVE_RUNTIME 8        /* its runtime keeps a thread and a descriptor */
#define MISBEHAVE_THREAD_AN_OPEN 9 /* and one thread more with every open */

KVSPAN_PLUGIN_NOTE("misbehaving", "kvspan tests", "0.1.0", 2u, "");

#if MISBEHAVE == MISBEHAVE_HANG_AT_LOAD
__attribute__((constructor)) static void hang(void) {
  for (;;) {
    pause();
  }
}
#endif

/* One copy each, because a table's pointer stays the same. */
static kvspan_copy_table_t real_copy;
static kvspan_copy_table_t bad_copy;
static const void*(KVSPAN_CALL* real_table)(void* self, uint32_t table_id);

static kvspan_result_t KVSPAN_CALL fill(kvspan_queue_t* queue,
                                        const kvspan_range_t* range,
                                        uint64_t pattern,
                                        uint32_t pattern_bytes,
                                        const kvspan_submit_t* submit,
                                        kvspan_error_t* error) {
#if MISBEHAVE == MISBEHAVE_SEGFAULT
  volatile int* volatile nowhere = NULL; /* volatile: the compiler is not to see it */
  *nowhere = 1;
#elif MISBEHAVE == MISBEHAVE_EXIT
  _exit(0);
#elif MISBEHAVE == MISBEHAVE_HANG || MISBEHAVE == MISBEHAVE_HANG_DEAF
#if MISBEHAVE == MISBEHAVE_HANG_DEAF
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, NULL);
#endif
  for (;;) {
    pause();
  }
#elif MISBEHAVE == MISBEHAVE_PRINT
  puts("filling with <pattern>");
  fflush(stdout);
#elif MISBEHAVE == MISBEHAVE_GARBAGE
  if (error != NULL) {
    memset(error, 0xA5, sizeof *error); /* a message without an end, sizes and codes of nothing */
  }
  return (kvspan_result_t)0x5A5A5A5A;
#endif
  return real_copy.fill(queue, range, pattern, pattern_bytes, submit, error);
}

static const void* KVSPAN_CALL table(void* self, uint32_t table_id) {
  const void* found = real_table(self, table_id);
  if (table_id != KVSPAN_TABLE_COPY || found == NULL) {
    return found;
  }
  memcpy(&real_copy, found, sizeof real_copy);
  bad_copy = real_copy;
  bad_copy.fill = fill;
  return &bad_copy;
}

kvspan_result_t KVSPAN_CALL kvspan_plugin_open_0(const kvspan_open_info_t* info,
                                                 kvspan_plugin_t* plugin,
                                                 kvspan_error_t* error) {
  kvspan_plugin_open_fn open_stub = NULL;
  void* stub = dlopen(MISBEHAVE_STUB, RTLD_NOW | RTLD_LOCAL);
  void* entry = stub == NULL ? NULL : dlsym(stub, "kvspan_plugin_open_0");
  if (entry == NULL) {
    return KVSPAN_E_INTERNAL;
  }
  memcpy((void*)&open_stub, (const void*)&entry, sizeof entry);
#if MISBEHAVE == MISBEHAVE_RUNTIME || MISBEHAVE == MISBEHAVE_THREAD_AN_OPEN
  if (vendor_start() != 0) {
    return KVSPAN_E_INTERNAL;
  }
#endif
#if MISBEHAVE == MISBEHAVE_THREAD_AN_OPEN
  if (vendor_start_thread() != 0) {
    return KVSPAN_E_INTERNAL;
  }
#endif
  const kvspan_result_t result = open_stub(info, plugin, error);
  if (result == KVSPAN_OK) {
    real_table = plugin->table;
    plugin->table = table;
  }
  return result;
}
