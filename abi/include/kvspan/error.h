/* SPDX-License-Identifier: Apache-2.0 */
/* The detail of a failure: a value that the caller owns, with amounts as fields.
 * KV-ERROR-1 Every slot takes one last and it may be NULL. KV-ERROR-2 It is written whole on
 * failure (code equal to the result, texts NUL-terminated UTF-8, a slot's name and a sentence) and
 * untouched on success. KV-ERROR-3 With -3xxx missing = required - provided; exactly `required`
 * works and one less fails. KV-ERROR-4 With ASYNC, submit_id is that of the submit that failed,
 * whoever notices. Not here: the codes (result.h). */
#ifndef KVSPAN_ERROR_H
#define KVSPAN_ERROR_H

#include "kvspan/result.h"
#include "kvspan/types.h"

/* error.resource: which pool ran out (codes -3xxx), else NONE. */
#define KVSPAN_RESOURCE_NONE 0u
#define KVSPAN_RESOURCE_HOST_MEMORY 1u
#define KVSPAN_RESOURCE_LOCKED_MEMORY 2u
#define KVSPAN_RESOURCE_DEVICE_MEMORY 3u
#define KVSPAN_RESOURCE_WORKSPACE 4u
#define KVSPAN_RESOURCE_SPLIT_STATE 5u
#define KVSPAN_RESOURCE_QUEUE_DEPTH 6u
#define KVSPAN_RESOURCE_PREPARED 7u /* more of something than prepare() was told of */

/* error.flags */
#define KVSPAN_ERROR_STICKY 1u /* every later call on the device fails alike */
#define KVSPAN_ERROR_ASYNC 2u  /* not this call's fault: submit_id names the submit that failed */
#define KVSPAN_ERROR_RETRY_AFTER_FREE 4u /* releasing `missing` bytes elsewhere is enough */
#define KVSPAN_ERROR_REOPEN_DEVICE 8u    /* device lost: close and open it again */
#define KVSPAN_ERROR_RESTART_PROCESS 16u /* device lost: this process cannot use it again */

/* error.reasons and attention caps.reasons: why something is unsupported (bits). */
#define KVSPAN_WHY_K_TYPE 0x1u
#define KVSPAN_WHY_V_TYPE 0x2u
#define KVSPAN_WHY_PAIR 0x4u /* each side works, the two together do not */
#define KVSPAN_WHY_HEAD_SIZE 0x8u
#define KVSPAN_WHY_BLOCK 0x10u /* a quantised block does not divide the head size */
#define KVSPAN_WHY_GROUP \
  0x20u /* query heads are not a multiple of KV heads, or the ratio is not offered */
#define KVSPAN_WHY_ROWS 0x40u
#define KVSPAN_WHY_ROW_TYPE 0x80u /* query or output type */
#define KVSPAN_WHY_OPTION 0x100u
#define KVSPAN_WHY_ERROR_CLASS 0x200u
#define KVSPAN_WHY_MEMORY_KIND 0x400u
#define KVSPAN_WHY_SPANS 0x800u
#define KVSPAN_WHY_TOKENS 0x1000u
#define KVSPAN_WHY_ENTRIES 0x2000u

typedef struct kvspan_error_t {
  uint32_t struct_size;
  kvspan_result_t code; /* equal to the returned result */
  uint32_t resource;    /* KVSPAN_RESOURCE_* */
  uint32_t flags;       /* KVSPAN_ERROR_* */
  uint64_t required;    /* -3xxx: total for this call to succeed; retry with exactly this works, one
                           less fails */
  uint64_t provided;    /* what the callee had to work with */
  uint64_t missing;   /* required - provided; UNKNOWN_AMOUNT only for device and lockable memory */
  uint64_t submit_id; /* with ASYNC: the submit that failed */
  uint32_t argument;  /* 1-based position of the offending argument, 0 = none in particular */
  uint32_t field_offset; /* byte offset inside that argument's struct, UINT32_MAX = none */
  uint32_t reasons;      /* KVSPAN_WHY_* bits with UNSUPPORTED */
  int32_t native_code;   /* the vendor's own code, or errno; 0 = none */
  char where[64];        /* slot name, NUL-terminated UTF-8 */
  char message[208];     /* one sentence for a person: the thing, the limit, the fix; NUL-terminated
                            UTF-8 */
} kvspan_error_t;

#endif
