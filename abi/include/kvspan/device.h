/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of a plugin: how many, what they are, opening one, what it may reserve ahead of work.
 * Mandatory. Not here: memory (memory.h), what attention it offers (attention.h). */
#ifndef KVSPAN_DEVICE_H
#define KVSPAN_DEVICE_H

#include "kvspan/error.h"
#include "kvspan/types.h"

struct kvspan_attention_shape_t; /* attention.h */

/* device info.flags */
#define KVSPAN_DEVICE_UNIFIED_MEMORY 1u /* device and host share one physical memory */
#define KVSPAN_DEVICE_FAIL_STOPS 2u     /* work that waits for a failed point does not even start */
#define KVSPAN_DEVICE_WAIT_UNSUBMITTED \
  4u /* a submit may wait for a value whose signal is not submitted yet */
#define KVSPAN_DEVICE_WAIT_HOST 8u   /* a submit may wait for a value that the host signals */
#define KVSPAN_DEVICE_MAP_LOCAL 16u  /* device-local memory can be mapped */
#define KVSPAN_DEVICE_FREE_KNOWN 32u /* free_bytes answers with a number */

/* info.cancel: when a set cancel word is seen */
#define KVSPAN_CANCEL_NONE 0u   /* never: work completes */
#define KVSPAN_CANCEL_SUBMIT 1u /* before a submit starts */
#define KVSPAN_CANCEL_ITEM 2u   /* between the items of a submit too */

/* roles of queues; see queue.h */
#define KVSPAN_ROLE_COMPUTE 0u
#define KVSPAN_ROLE_UPLOAD 1u
#define KVSPAN_ROLE_DOWNLOAD 2u
#define KVSPAN_ROLE_COUNT 3u

typedef struct kvspan_device_info_t {
  uint32_t struct_size;
  uint32_t flags; /* KVSPAN_DEVICE_* */
  uint8_t id[16]; /* stable over processes; the same device through two plugins has the same id */
  char name[64];  /* NUL-terminated UTF-8 */
  uint32_t lanes[3];   /* [role] equal numbers alias one in-order queue; different ones run beside
                          each other */
  uint32_t queues_max; /* queues that may exist at once */
  uint32_t depth_max;  /* submits in flight a queue; one more is QUEUE_FULL */
  uint32_t cancel;     /* KVSPAN_CANCEL_* */
  uint64_t allocation_bytes_max;
  uint64_t binding_bytes_max; /* bytes of one memory that a single submit may address */
  uint64_t
      memory_alignment; /* offsets of planes, states and workspaces are multiples of this; <= 256 */
  uint64_t
      import_alignment; /* pointer and size of import_host are multiples of this; 0 = no import */
  uint64_t import_bytes_max; /* one import; <= 64 MiB is always accepted where import works */
  uint64_t
      coherence_bytes; /* host and device never write the same aligned block of this size at once */
  uint64_t
      context_bytes; /* device memory that opening takes beside what is allocated; an estimate */
  uint64_t fence_delta_max; /* furthest a point may lie ahead of its fence's value; >= 2^31 - 1 */
} kvspan_device_info_t;

/* What the host will do between prepare and the next prepare, so that submits allocate nothing. */
typedef struct kvspan_prepare_t {
  uint32_t struct_size;
  uint32_t shape_count;
  const struct kvspan_attention_shape_t* shapes; /* [shape_count]; borrowed for the call */
  uint32_t depth;                                /* submits in flight a queue; 0 = depth_max */
  uint32_t segments_max;                         /* copy segments a submit */
  uint32_t codec_items_max;                      /* encode or decode items a submit */
  uint32_t attention_items_max;                  /* advance or fold items a submit */
  uint32_t spans_max;                            /* spans a submit, over all entries */
  uint32_t page_list_max;                        /* page list entries a submit, over all planes */
} kvspan_prepare_t;

typedef struct kvspan_prepared_t {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t device_bytes; /* device memory now held beyond what alloc handed out */
  uint64_t host_bytes;
  uint64_t locked_bytes; /* of host_bytes, page-locked */
} kvspan_prepared_t;

typedef struct kvspan_device_table_t {
  uint32_t struct_size;
  uint32_t reserved;

  /** How many devices there are now. Zero is a legal answer.
   * @thread ANY
   * @shape  none
   * @unit   devices
   * @own    nothing
   * @error  NO_DEVICE: the vendor's driver is absent, in words; next: list the plugin as
   * unavailable
   * @rule   KV-DEVICE-1 count, describe and open survive a machine without the vendor's driver. */
  kvspan_result_t(KVSPAN_CALL* count)(void* self,
                                      uint32_t* out_count,
                                      kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Facts about one device, without opening it.
   * @thread ANY
   * @shape  none
   * @unit   as the fields say
   * @own    the caller owns out_info and sets its struct_size
   * @error  INVALID_ARG: no such index; next: call count again
   * @rule   KV-DEVICE-2 The same index describes the same device for as long as the plugin is open.
   */
  kvspan_result_t(KVSPAN_CALL* describe)(void* self,
                                         uint32_t index,
                                         kvspan_device_info_t* out_info,
                                         kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Opens a device. Two opens of one index are independent of each other.
   * @thread SYNC(index)
   * @shape  none
   * @unit   none
   * @own    the caller owns the device and closes it before the plugin
   * @error  INVALID_ARG: no such index; next: call count again
   * @error  HOST_MEMORY, DEVICE_MEMORY: required says how much; next: free some, call again
   * @error  NO_DEVICE: it went away; next: use another
   * @rule   KV-DEVICE-3 The calling thread's current device and context are after every call what
   * they were before. */
  kvspan_result_t(KVSPAN_CALL* open)(void* self,
                                     uint32_t index,
                                     kvspan_device_t** out_device,
                                     kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Closes a device whose memory, queues and fences are all gone.
   * @thread SYNC(device)
   * @shape  none
   * @unit   none
   * @own    device is dead after OK
   * @error  BUSY: provided = objects still alive; next: destroy them, call again
   * @rule   KV-DEVICE-4 On a lost device every destroy, release and close still succeeds and every
   * wait returns.
   * @rule   KV-DEVICE-6 A device with living objects is BUSY, and works on. */
  kvspan_result_t(KVSPAN_CALL* close)(kvspan_device_t* device,
                                      kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Device memory that an allocation could get now.
   * @thread ANY
   * @shape  none
   * @unit   bytes, or KVSPAN_UNKNOWN_AMOUNT without KVSPAN_DEVICE_FREE_KNOWN
   * @own    nothing
   * @error  DEVICE_LOST: next: as error.flags says
   * @rule   KV-DEVICE-5 Never more than an allocation could really get on an idle machine. */
  kvspan_result_t(KVSPAN_CALL* free_bytes)(kvspan_device_t* device,
                                           uint64_t* out_bytes,
                                           kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Reserves what submits of these shapes and limits need. May be called again while nothing is in
   * flight.
   * @thread SYNC(device)
   * @shape  request->shapes [shape_count]
   * @unit   counts and bytes as the fields say
   * @own    the plugin owns what it reserved until the device closes or the next prepare
   * @error  UNSUPPORTED: a shape's query says so too, same reasons; next: choose another shape
   * @error  HOST_MEMORY, DEVICE_MEMORY: nothing changed; next: smaller limits, or free `missing`
   * bytes
   * @error  BUSY: work is in flight; next: wait for it
   * @rule   KV-PREPARE-1 Afterwards submits within the limits allocate nothing.
   * @rule   KV-PREPARE-2 Larger submits are refused with the exact required amount, never grown
   * silently. */
  kvspan_result_t(KVSPAN_CALL* prepare)(kvspan_device_t* device,
                                        const kvspan_prepare_t* request,
                                        kvspan_prepared_t* out_prepared,
                                        kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_device_table_t;

#endif
