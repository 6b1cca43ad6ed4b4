/* SPDX-License-Identifier: Apache-2.0 */
/* Sharing with an engine that already owns a context, memory, streams and events. Optional as a
 * whole. An imported object is never destroyed, reset or synchronised as a whole by the plugin.
 * Everything here works on a device that device.open gave, too, where both share a context. */
#ifndef KVSPAN_NATIVE_H
#define KVSPAN_NATIVE_H

#include "kvspan/error.h"
#include "kvspan/fence.h"
#include "kvspan/queue.h"
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

  /** Names device memory that the engine owns, as memory of the kind DEVICE. Zero bytes are legal.
   * @thread ANY
   * @shape  none
   * @unit   bytes; address is a multiple of device info.memory_alignment
   * @own    the caller keeps the bytes; release only forgets them
   * @error  INVALID_ARG: not memory of this device, misaligned, or not all of it one's own; next:
   * pass the allocation's start, and the rest as an offset
   * @error  HOST_MEMORY: nothing changed; next: free some, call again
   * @rule   KV-NATIVE-2 An imported memory is used like any other; release never frees it. */
  kvspan_result_t(KVSPAN_CALL* import_memory)(kvspan_device_t* device,
                                              uint64_t address,
                                              uint64_t bytes,
                                              kvspan_memory_t** out_memory,
                                              kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Names the engine's stream or queue. Attention, codec and fill run on it; copies only on own
   * queues. While the engine records the stream into a graph of its own, submits are UNSUPPORTED
   * and the recording goes on.
   * @thread ANY
   * @shape  none
   * @unit   none
   * @own    the caller keeps the stream alive until the queue is destroyed
   * @error  INVALID_ARG: not a stream of this device, or one that is another for each thread
   * @error  UNSUPPORTED: queues_max exist; next: share a queue
   * @error  HOST_MEMORY, DEVICE_MEMORY: nothing changed; next: free some
   * @rule   KV-NATIVE-3 Work lands on the stream in submit order, among the engine's own.
   * @rule   KV-NATIVE-6 A copy on an imported queue is UNSUPPORTED at once, and the queue works on.
   */
  kvspan_result_t(KVSPAN_CALL* import_queue)(kvspan_device_t* device,
                                             uint64_t stream,
                                             kvspan_queue_t** out_queue,
                                             kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Orders a queue behind the engine's event as it is now, or behind its semaphore's value: a
   * submit whose work is that wait. Its signal points make a point of the event for other queues
   * and for the host; what the same queue gets later needs no point. An event that was never
   * recorded counts as reached.
   * @thread SYNC(queue) NOBLOCK
   * @shape  none
   * @unit   value of a semaphore; 0 where the vendor's events have none
   * @own    the event may be recorded anew or destroyed once the call returned; a semaphore lives
   * until the signals settle
   * @error  INVALID_ARG: not an event of the engine, one recorded into a graph, or a value for what
   * has none
   * @error  as a submit
   * @rule   KV-NATIVE-4 The point is reached when the event is, never before. */
  kvspan_result_t(KVSPAN_CALL* import_point)(kvspan_queue_t* queue,
                                             uint64_t event,
                                             uint64_t value,
                                             const kvspan_submit_t* submit,
                                             kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Lets the engine's stream wait for a point. Where the work fails after this call the stream
   * goes on all the same: query the fence before what was read is trusted.
   * @thread ANY NOBLOCK
   * @shape  none
   * @unit   none
   * @own    nothing; the fence may be destroyed once the point settled
   * @error  INVALID_ARG: another device's point, or not a stream of this device
   * @error  UNSUPPORTED: no submit signals that far yet, or the engine records the stream into a
   * graph; next: submit first
   * @error  the cause of a failed fence, ASYNC; the stream does not wait
   * @rule   KV-NATIVE-5 No host round trip where the device can wait by itself. */
  kvspan_result_t(KVSPAN_CALL* export_point)(kvspan_device_t* device,
                                             const kvspan_point_t* point,
                                             uint64_t stream,
                                             kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_native_table_t;

#endif
