/* SPDX-License-Identifier: Apache-2.0 */
/* Timeline fences: a 64-bit value that only grows, or has failed for good. A point is (fence,
 * value): reached when the fence's value is >= it. No callbacks: poll, or wait. Mandatory. Not
 * here: how work signals a fence (queue.h). */
#ifndef KVSPAN_FENCE_H
#define KVSPAN_FENCE_H

#include "kvspan/error.h"
#include "kvspan/types.h"

typedef struct kvspan_point_t {
  kvspan_fence_t* fence;
  uint64_t value;
} kvspan_point_t;

#define KVSPAN_WAIT_ALL 0u
#define KVSPAN_WAIT_ANY 1u

typedef struct kvspan_fence_table_t {
  uint32_t struct_size;
  uint32_t reserved;

  /** Makes a fence whose value is `initial`.
   * @thread ANY
   * @shape  none
   * @unit   none
   * @own    the caller owns the fence and destroys it before the device closes
   * @error  HOST_MEMORY: next: destroy fences that are done, call again
   * @rule   KV-FENCE-1 A fence means something only on its own device: naming another's is
   * INVALID_ARG. */
  kvspan_result_t(KVSPAN_CALL* create)(kvspan_device_t* device,
                                       uint64_t initial,
                                       kvspan_fence_t** out_fence,
                                       kvspan_error_t* error) KVSPAN_NOTHROW;

  /** The value now. Never blocks.
   * @thread ANY NOBLOCK
   * @shape  none
   * @unit   none
   * @own    nothing
   * @error  the cause of a failed fence, ASYNC, submit_id set; out_value is then the last value
   * reached
   * @rule   KV-FENCE-2 Values seen by one thread never go back; a failed fence never recovers.
   * @rule   KV-FENCE-3 A value that was reached before the failure still counts as reached. */
  kvspan_result_t(KVSPAN_CALL* query)(kvspan_fence_t* fence,
                                      uint64_t* out_value,
                                      kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Blocks the calling thread until all (or any) of the points are reached, one can never be, or
   * time is up.
   * @thread ANY
   * @shape  points [count]
   * @unit   timeout in nanoseconds; 0 polls; UINT64_MAX has no end
   * @own    borrows points for the call
   * @error  TIMEOUT: nothing lost; next: call again
   * @error  the cause of a failed fence: with ALL any of them, with ANY when none was reached;
   * next: see error
   * @error  INVALID_ARG: a fence of another device, or NULL
   * @rule   KV-FENCE-4 TIMEOUT is never early.
   * @rule   KV-FENCE-5 After OK all memory effects of the work before the points are visible to the
   * host.
   * @rule   KV-FENCE-6 count = 0 is OK at once with ALL and INVALID_ARG with ANY.
   * @rule   KV-FENCE-10 With ALL a failed point ends the wait at once; with ANY a reached one wins.
   */
  kvspan_result_t(KVSPAN_CALL* wait)(kvspan_device_t* device,
                                     const kvspan_point_t* points,
                                     uint32_t count,
                                     uint32_t mode,
                                     uint64_t timeout_ns,
                                     kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Raises the value from the host.
   * @thread ANY NOBLOCK
   * @shape  none
   * @unit   none
   * @own    nothing
   * @error  INVALID_ARG: value is not greater than the current one, or further ahead than
   * fence_delta_max
   * @error  the cause of a failed fence
   * @rule   KV-FENCE-7 Values strictly increase, whoever signals. */
  kvspan_result_t(KVSPAN_CALL* signal)(kvspan_fence_t* fence,
                                       uint64_t value,
                                       kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Fails the fence for good: every value above the current one. `cause` is a code below 0.
   * @thread ANY NOBLOCK
   * @shape  none
   * @unit   none
   * @own    nothing
   * @error  INVALID_ARG: cause is not an error code
   * @rule   KV-FENCE-8 Failing a failed fence is OK and keeps the first cause. */
  kvspan_result_t(KVSPAN_CALL* fail)(kvspan_fence_t* fence,
                                     kvspan_result_t cause,
                                     kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Ends a fence that nothing waits for and no pending submit names.
   * @thread ANY
   * @shape  none
   * @unit   none
   * @own    fence is dead after OK
   * @error  BUSY: a thread waits on it or pending work names it; it stays alive; next: settle
   * those, call again
   * @rule   KV-FENCE-9 A fence in use is never freed under its users. */
  kvspan_result_t(KVSPAN_CALL* destroy)(kvspan_fence_t* fence,
                                        kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_fence_table_t;

#endif
