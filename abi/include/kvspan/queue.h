/* SPDX-License-Identifier: Apache-2.0 */
/* Queues and what every submit carries: points to wait for, points to signal, a cancel word, an id.
 * Work of one queue starts in submit order; roles may alias one in-order queue (device info.lanes).
 * Mandatory. The submitting slots are in copy.h, codec.h and attention.h. */
#ifndef KVSPAN_QUEUE_H
#define KVSPAN_QUEUE_H

#include "kvspan/error.h"
#include "kvspan/fence.h"
#include "kvspan/types.h"

/* submit.flags */
#define KVSPAN_SUBMIT_MEASURE 1u /* copies: record the duration for feedback (copy.h) */

/* What each submitting slot takes. The rules here hold for all of them:
 * KV-SUBMIT-1 An error return enqueued nothing and signals nothing. Once anything was enqueued the
 * slot returns OK. KV-SUBMIT-2 After OK every signal point settles: reached, or its fence failed
 * for good with the cause. KV-SUBMIT-3 Work whose wait point failed settles WAIT_FAILED; its
 * destinations are undefined, nothing else is touched, and with KVSPAN_DEVICE_FAIL_STOPS it does
 * not start. KV-SUBMIT-4 Arrays are copied before return; memory that work reads or writes lives
 * until its points settle. KV-SUBMIT-5 The host submits a wait only after the submit that signals
 * it returned OK, in one global order, unless the device offers WAIT_UNSUBMITTED or WAIT_HOST; a
 * violation is UNSUPPORTED, never a hang. KV-SUBMIT-6 A fence has one signalling queue at a time
 * and its values strictly increase. KV-SUBMIT-7 A cancel word seen set settles the signals
 * CANCELLED or completes the work; the queue stays usable and nothing outside the destinations is
 * written. The word is never written by the plugin. KV-SUBMIT-8 Submitting slots never wait for
 * earlier work: a full queue is QUEUE_FULL with required = depth + 1. KV-SUBMIT-9 Work starts after
 * the points it waits for are reached and sees all memory effects of the work before them. */
typedef struct kvspan_submit_t {
  uint32_t struct_size;
  uint32_t flags; /* KVSPAN_SUBMIT_* */
  uint32_t wait_count;
  uint32_t signal_count;
  const kvspan_point_t* waits;    /* [wait_count] */
  const kvspan_point_t* signals;  /* [signal_count] */
  kvspan_memory_t* cancel_memory; /* HOST memory of this plugin, or NULL = not cancellable */
  uint64_t cancel_offset;         /* of an aligned 32-bit word; non-zero = please stop */
  uint64_t submit_id; /* the caller's name for this work, comes back in errors and feedback */
} kvspan_submit_t;

typedef struct kvspan_queue_options_t {
  uint32_t struct_size;
  uint32_t role;  /* KVSPAN_ROLE_* */
  uint32_t depth; /* submits in flight; 0 = device info.depth_max */
  uint32_t reserved;
} kvspan_queue_options_t;

typedef struct kvspan_queue_table_t {
  uint32_t struct_size;
  uint32_t reserved;

  /** Makes a queue for a role. Copies mostly go to UPLOAD or DOWNLOAD queues, everything else and
   * copies of what was just made to COMPUTE; every queue that is not imported accepts every submit;
   * roles advise what runs beside what.
   * @thread ANY
   * @shape  none
   * @unit   depth in submits
   * @own    the caller owns the queue and destroys it before the device closes
   * @error  INVALID_ARG: unknown role, or depth above depth_max
   * @error  HOST_MEMORY, DEVICE_MEMORY: nothing changed; next: smaller depth, or free some
   * @error  UNSUPPORTED: queues_max exist; next: share a queue
   * @rule   KV-QUEUE-1 Work of one queue takes effect as if in submit order. */
  kvspan_result_t(KVSPAN_CALL* create)(kvspan_device_t* device,
                                       const kvspan_queue_options_t* options,
                                       kvspan_queue_t** out_queue,
                                       kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Ends an idle queue.
   * @thread SYNC(queue)
   * @shape  none
   * @unit   none
   * @own    queue is dead after OK
   * @error  BUSY: provided = submits in flight; next: wait for their points, call again
   * @rule   KV-QUEUE-2 A busy queue is never torn down under its work. */
  kvspan_result_t(KVSPAN_CALL* destroy)(kvspan_queue_t* queue,
                                        kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_queue_table_t;

#endif
