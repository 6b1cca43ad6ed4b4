/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and faults on demand, for tests. Optional as a whole; a shipped plugin may leave it out.
 */
#ifndef KVSPAN_DEBUG_H
#define KVSPAN_DEBUG_H

#include "kvspan/error.h"
#include "kvspan/types.h"

typedef struct kvspan_debug_counters_t {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t device_allocations; /* since open */
  uint64_t device_bytes;       /* held now, own reserves included */
  uint64_t device_bytes_max;
  uint64_t submits;
  uint64_t launches;    /* kernels, or tasks */
  uint64_t conversions; /* work done below native level */
  uint64_t saturations; /* dequantised values outside f16, E1 */
} kvspan_debug_counters_t;

/* fault kinds */
#define KVSPAN_FAULT_ALLOCATION \
  1u /* the nth allocation from now fails with DEVICE_MEMORY or HOST_MEMORY */
#define KVSPAN_FAULT_SUBMIT 2u /* the nth submit from now is accepted and fails with `code` */
#define KVSPAN_FAULT_DEVICE 3u /* the nth submit from now loses the device */

typedef struct kvspan_debug_table_t {
  uint32_t struct_size;
  uint32_t reserved;

  /** Plants one fault. kind 0 removes all.
   * @thread SYNC(device)
   * @shape  none
   * @unit   nth counts from 1
   * @own    nothing
   * @error  UNSUPPORTED: this kind cannot be planted here
   * @rule   KV-DEBUG-1 A planted fault fires once and looks like the real one in every way. */
  kvspan_result_t(KVSPAN_CALL* fault)(kvspan_device_t* device,
                                      uint32_t kind,
                                      uint64_t nth,
                                      kvspan_result_t code,
                                      kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Reads the counters.
   * @thread ANY NOBLOCK
   * @shape  none
   * @unit   as the fields say
   * @own    the caller owns out_counters and sets its struct_size
   * @error  none beyond INVALID_ARG
   * @rule   KV-DEBUG-2 device_bytes_max is never below what was really held. */
  kvspan_result_t(KVSPAN_CALL* counters)(kvspan_device_t* device,
                                         kvspan_debug_counters_t* out_counters,
                                         kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_debug_table_t;

#endif
