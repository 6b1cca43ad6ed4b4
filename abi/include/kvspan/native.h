/* SPDX-License-Identifier: Apache-2.0 */
/* Sharing with an engine that already owns a context, memory, streams and events. Optional as a
 * whole. An imported object is never destroyed, reset or synchronised as a whole by the plugin. */
#ifndef KVSPAN_NATIVE_H
#define KVSPAN_NATIVE_H

#include "kvspan/error.h"
#include "kvspan/fence.h"
#include "kvspan/types.h"

/* Native objects are the vendor's handles as integers; what each is, the plugin's documentation
 * says. */
typedef struct kvspan_native_table_t {
  uint32_t struct_size;
  uint32_t reserved;

  /** Opens a device on the caller's context.
   * @thread SYNC(index)
   * @shape  none
   * @unit   none
   * @own    the caller keeps the context alive until the device closes
   * @error  INVALID_ARG: not a context of that device; next: pass the engine's own
   * @error  UNSUPPORTED: this build cannot; next: open through the device table
   * @rule   KV-NATIVE-1 Nothing of the context is changed, reset or synchronised as a whole. */
  kvspan_result_t(KVSPAN_CALL* open)(void* self,
                                     uint32_t index,
                                     uint64_t context,
                                     kvspan_device_t** out_device,
                                     kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Names device memory that the engine owns.
   * @thread ANY
   * @shape  none
   * @unit   bytes
   * @own    the caller keeps the bytes; release only forgets them
   * @error  INVALID_ARG: not memory of this device; next: pass a device pointer
   * @rule   KV-NATIVE-2 An imported memory is used like any other; release never frees it. */
  kvspan_result_t(KVSPAN_CALL* import_memory)(kvspan_device_t* device,
                                              uint64_t address,
                                              uint64_t bytes,
                                              kvspan_memory_t** out_memory,
                                              kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Names the engine's stream or queue. Attention and codec run on it; batched copies only on own
   * queues.
   * @thread ANY
   * @shape  none
   * @unit   none
   * @own    the caller keeps the stream alive until the queue is destroyed
   * @error  INVALID_ARG: not a stream of this device
   * @rule   KV-NATIVE-3 Work lands on the stream in submit order, among the engine's own. */
  kvspan_result_t(KVSPAN_CALL* import_queue)(kvspan_device_t* device,
                                             uint64_t stream,
                                             kvspan_queue_t** out_queue,
                                             kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Makes a point of the engine's event or semaphore value.
   * @thread ANY
   * @shape  none
   * @unit   none
   * @own    the caller keeps the event alive until the fence is destroyed
   * @error  INVALID_ARG: not an event of this device, or not yet recorded
   * @rule   KV-NATIVE-4 The point is reached when the event is, never before. */
  kvspan_result_t(KVSPAN_CALL* import_point)(kvspan_device_t* device,
                                             uint64_t event,
                                             uint64_t value,
                                             kvspan_point_t* out_point,
                                             kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Lets the engine's stream wait for a point.
   * @thread SYNC(queue) NOBLOCK
   * @shape  none
   * @unit   none
   * @own    nothing
   * @error  INVALID_ARG: another device's point
   * @rule   KV-NATIVE-5 No host round trip where the device can wait by itself. */
  kvspan_result_t(KVSPAN_CALL* export_point)(kvspan_device_t* device,
                                             const kvspan_point_t* point,
                                             uint64_t stream,
                                             kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_native_table_t;

#endif
