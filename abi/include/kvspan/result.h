/* SPDX-License-Identifier: Apache-2.0 */
/* Result codes. The thousand-range says what the caller does next; a newer minor may add codes
 * inside a range. Not here: amounts and sentences (error.h). */
#ifndef KVSPAN_RESULT_H
#define KVSPAN_RESULT_H

#include <stdint.h>

typedef int32_t kvspan_result_t;

/* Not errors. */
#define KVSPAN_OK 0
#define KVSPAN_NOT_READY 1 /* asked, not yet so; ask again later */
#define KVSPAN_TIMEOUT 2   /* the given time ran out; nothing was lost, call again */

/* -1xxx: the caller broke a rule. Fix the call; repeating it unchanged fails again. */
#define KVSPAN_E_INVALID_ARG (-1001)
#define KVSPAN_E_BAD_STRUCT_SIZE (-1002)
#define KVSPAN_E_UNKNOWN_TAIL (-1003) /* non-zero bytes behind the known part of a struct */
#define KVSPAN_E_BUSY \
  (-1004) /* the object is named by pending work; wait for it, then call again */

/* -2xxx: not offered. Ask the capability query and choose something that is. */
#define KVSPAN_E_UNSUPPORTED (-2001) /* error.reasons says why */

/* -3xxx: not enough of something. error.{resource, required, provided, missing} say how much of
 * what. */
#define KVSPAN_E_HOST_MEMORY (-3001)
#define KVSPAN_E_DEVICE_MEMORY (-3002)
#define KVSPAN_E_WORKSPACE (-3003)  /* give `required` bytes of workspace and call again */
#define KVSPAN_E_QUEUE_FULL (-3004) /* wait for a submit of this queue to settle and call again */
#define KVSPAN_E_CANCELLED \
  (-3900) /* the cancel word was seen; the work's destinations are undefined */

/* -4xxx: work failed after it was accepted; seen on a fence or, once sticky, on every call. */
#define KVSPAN_E_DEVICE_LOST \
  (-4001) /* sticky; error.flags says whether reopening the device is enough */
#define KVSPAN_E_WAIT_FAILED (-4002) /* a point that this work waited for had failed */
#define KVSPAN_E_FAILED (-4003)      /* the host failed the fence */

/* -5xxx: host and plugin, or plugin and machine, do not fit. Use another build, or another machine.
 */
#define KVSPAN_E_VERSION (-5001)
#define KVSPAN_E_NO_DEVICE (-5002) /* no such device here, in words: error.message */

/* -9xxx: the callee's own bug. Report it. */
#define KVSPAN_E_INTERNAL (-9001)

#endif
