/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device: its own, host memory that it can reach, and host pages of the caller made
 * reachable. A view is a value (memory, offset, bytes), never an object in the plugin; core's
 * leases keep memory alive. Mandatory. */
#ifndef KVSPAN_MEMORY_H
#define KVSPAN_MEMORY_H

#include "kvspan/error.h"
#include "kvspan/types.h"

/* kinds; also bits for capability questions (1u << kind) */
#define KVSPAN_MEMORY_DEVICE 0u /* device-local */
#define KVSPAN_MEMORY_HOST \
  1u /* host memory that the plugin gave: page-locked where the machine allows it */
#define KVSPAN_MEMORY_IMPORTED 2u /* host pages of the caller */

typedef struct kvspan_memory_table_t {
  uint32_t struct_size;
  uint32_t reserved;

  /** Allocates. Contents are undefined. Zero bytes is legal and gives a memory of zero bytes.
   * @thread ANY
   * @shape  none
   * @unit   bytes
   * @own    the caller owns the memory and releases it before the device closes
   * @error  INVALID_ARG: not DEVICE or HOST, or more than allocation_bytes_max; next: split the
   * allocation
   * @error  HOST_MEMORY, DEVICE_MEMORY: required = bytes, missing may be UNKNOWN; next: free some
   * or ask for less
   * @rule   KV-MEMORY-1 A failed allocation changes nothing: the next smaller request can succeed.
   * @rule   KV-MEMORY-7 Zero bytes make a memory; other kinds and more than the maximum are
   * INVALID_ARG.
   * @rule   KV-MEMORY-2 The start is aligned to device info.memory_alignment. */
  kvspan_result_t(KVSPAN_CALL* alloc)(kvspan_device_t* device,
                                      uint32_t kind,
                                      uint64_t bytes,
                                      kvspan_memory_t** out_memory,
                                      kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Makes host pages of the caller reachable by the device.
   * @thread ANY
   * @shape  none
   * @unit   address and bytes are multiples of device info.import_alignment
   * @own    the caller keeps the pages alive, mapped and in place until release; the plugin never
   * frees them
   * @error  UNSUPPORTED: import_alignment is 0; next: use HOST memory
   * @error  INVALID_ARG: misaligned, NULL with bytes > 0, or more than import_bytes_max; next:
   * chunks of <= 64 MiB
   * @error  HOST_MEMORY with resource LOCKED_MEMORY: next: import less, or raise the limit on
   * locked memory
   * @rule   KV-MEMORY-3 A failure part of the way undoes what it did, in reverse.
   * @rule   KV-MEMORY-8 The pages stay the caller's: used in place, alive after release. */
  kvspan_result_t(KVSPAN_CALL* import_host)(kvspan_device_t* device,
                                            void* address,
                                            uint64_t bytes,
                                            kvspan_memory_t** out_memory,
                                            kvspan_error_t* error) KVSPAN_NOTHROW;

  /** The host address of byte 0. The same each time; valid until release.
   * @thread ANY
   * @shape  none
   * @unit   none
   * @own    the plugin owns the mapping
   * @error  UNSUPPORTED: this kind cannot be mapped; next: copy through HOST memory
   * @rule   KV-MEMORY-4 HOST memory maps wherever device info does not say otherwise; IMPORTED
   * gives its own address.
   * @rule   KV-MEMORY-6 DEVICE memory maps where KVSPAN_DEVICE_MAP_LOCAL says so, and only there.
   */
  kvspan_result_t(KVSPAN_CALL* map)(kvspan_memory_t* memory,
                                    void** out_address,
                                    kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Gives memory back.
   * @thread ANY
   * @shape  none
   * @unit   none
   * @own    memory is dead after OK; work of an engine's own that touches it has ended before
   * @error  BUSY: pending work or a graph names it; it lives on; next: end those, call again
   * @rule   KV-MEMORY-5 Releasing memory that pending work names never frees it under that work. */
  kvspan_result_t(KVSPAN_CALL* release)(kvspan_memory_t* memory,
                                        kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_memory_table_t;

#endif
