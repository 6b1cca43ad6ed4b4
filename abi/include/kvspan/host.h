/* SPDX-License-Identifier: Apache-2.0 */
/* Services that the host lends a plugin. A plugin takes nothing else from the process. Manners:
 * KV-MANNERS-1 It prints nothing. KV-MANNERS-2 No exception, signal or end of the process leaves a
 * slot; want of memory is a result. KV-MANNERS-3 After close its threads and descriptors are gone.
 * KV-MANNERS-4 Signal handlers and masks, the floating-point environment, locale, working folder,
 * umask, environment and terminate handler are after each call what they were before.
 * KV-MANNERS-5 Its threads block all signals. KV-MANNERS-6 Unloaded after close it leaves no
 * mapping, and a hundred rounds of open and close hold no more memory than ten.
 * Not here: how a plugin gets them (entry.h). */
#ifndef KVSPAN_HOST_H
#define KVSPAN_HOST_H

#include "kvspan/types.h"

typedef struct kvspan_host_s kvspan_host_t;

/* log levels */
#define KVSPAN_LOG_ERROR 0u
#define KVSPAN_LOG_WARNING 1u
#define KVSPAN_LOG_INFO 2u
#define KVSPAN_LOG_DEBUG 3u

/* Valid from open until close has returned. No slot is NULL. All are thread class ANY and never
 * call back. */
typedef struct kvspan_host_services_t {
  uint32_t struct_size;
  uint32_t log_level; /* the host drops anything above; a plugin need not format it */
  kvspan_host_t* self;

  /** Takes one line of UTF-8 without a line end. `text` is [byte_count], borrowed for the call.
   * @thread ANY
   * @shape  text [byte_count]
   * @unit   byte_count in bytes
   * @own    borrows text for the call
   * @error  none
   * @rule   KV-HOST-1 All text of a plugin goes through log; nothing is written to file descriptors
   * 1 and 2. */
  void(KVSPAN_CALL* log)(kvspan_host_t* self, uint32_t level, const char* text, uint32_t byte_count)
      KVSPAN_NOTHROW;

  /** Ordinary host memory for the plugin's own bookkeeping.
   * @thread ANY
   * @shape  none
   * @unit   bytes, alignment in bytes (a power of two)
   * @own    the plugin owns the block until it calls free with the same bytes and alignment
   * @error  NULL: out of host memory; next: return KVSPAN_E_HOST_MEMORY with required = bytes
   * @rule   KV-HOST-2 Blocks are balanced: after close every block has been freed with its own
   * bytes and alignment. */
  void*(KVSPAN_CALL* alloc)(kvspan_host_t* self, uint64_t bytes, uint64_t alignment)KVSPAN_NOTHROW;

  /** Returns a block of alloc. NULL is ignored.
   * @thread ANY
   * @shape  none
   * @unit   bytes and alignment exactly as given to alloc
   * @own    the host owns the block again
   * @error  none
   * @rule   KV-HOST-2 */
  void(KVSPAN_CALL* free)(kvspan_host_t* self, void* block, uint64_t bytes, uint64_t alignment)
      KVSPAN_NOTHROW;

  /** Nanoseconds of a clock that never goes back. Its origin means nothing.
   * @thread ANY
   * @shape  none
   * @unit   nanoseconds
   * @own    nothing
   * @error  none
   * @rule   KV-HOST-3 A plugin's durations come from this clock or from its device. */
  uint64_t(KVSPAN_CALL* now_ns)(kvspan_host_t* self) KVSPAN_NOTHROW;

  /** Copies the value of an option ("threads", "seed") that the operator set for this plugin.
   * @thread ANY
   * @shape  key NUL-terminated; target [capacity], written NUL-terminated and cut to capacity
   * @unit   capacity and result in bytes; the result excludes the NUL and is the value's full
   * length
   * @own    borrows key and target for the call
   * @error  0: not set; next: use the documented default
   * @rule   KV-HOST-4 Options come from here, never from the environment or a file. */
  uint64_t(KVSPAN_CALL* option)(kvspan_host_t* self,
                                const char* key,
                                char* target,
                                uint64_t capacity) KVSPAN_NOTHROW;
} kvspan_host_services_t;

#endif
