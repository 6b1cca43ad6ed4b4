/* SPDX-License-Identifier: Apache-2.0 */
/* Copies: bytes from segments to segments, never types. Mandatory.
 * Every submitting slot also obeys KV-SUBMIT-1..8 (queue.h). */
#ifndef KVSPAN_COPY_H
#define KVSPAN_COPY_H

#include "kvspan/error.h"
#include "kvspan/queue.h"
#include "kvspan/types.h"

/* `rows` rows of `bytes` bytes; row r starts at offset + r * pitch. One row: pitches are ignored.
 */
typedef struct kvspan_segment_t {
  kvspan_memory_t* source;
  kvspan_memory_t* target;
  uint64_t source_offset;
  uint64_t target_offset;
  uint64_t bytes;
  uint64_t rows;
  uint64_t source_pitch;
  uint64_t target_pitch;
} kvspan_segment_t;

/* Alignments are powers of two <= 256; multiples of them must work, anything else is INVALID_ARG.
 */
typedef struct kvspan_copy_limits_t {
  uint32_t struct_size;
  uint32_t segments_max; /* a submit */
  uint64_t source_alignment;
  uint64_t target_alignment;
  uint64_t bytes_alignment;
  uint64_t pitch_alignment;
  uint64_t fill_alignment; /* offset and bytes of fill */
  uint64_t bytes_max;      /* a submit */
} kvspan_copy_limits_t;

typedef struct kvspan_measurement_t {
  uint64_t submit_id;
  uint64_t duration_ns; /* of the copying alone, waits excluded */
  uint64_t bytes;
} kvspan_measurement_t;

typedef struct kvspan_copy_table_t {
  uint32_t struct_size;
  uint32_t reserved;

  /** Copies segments between any two memories of the device.
   * @thread SYNC(queue) NOBLOCK
   * @shape  segments [count]
   * @unit   bytes
   * @own    arrays are copied before return; memories live until the signals settle
   * @error  INVALID_ARG: a range outside its memory (sums checked for overflow), overlap inside a
   * segment, a limit or an alignment broken; argument and field_offset say which; next: fix the
   * segment
   * @error  QUEUE_FULL: required = depth + 1; next: wait for a submit to settle
   * @rule   KV-COPY-1 Byte-exact whatever the bytes mean; nothing outside the target rows is
   * written.
   * @rule   KV-COPY-2 count = 0 and bytes = 0 are OK and still signal.
   * @rule   KV-COPY-3 Segments of one submit may run in any order; no target overlaps another
   * segment.
   * @rule   KV-COPY-7 What breaks a range, a limit or an alignment is refused by field and moves
   * nothing; fills alike. */
  kvspan_result_t(KVSPAN_CALL* copy)(kvspan_queue_t* queue,
                                     const kvspan_segment_t* segments,
                                     uint32_t count,
                                     const kvspan_submit_t* submit,
                                     kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Fills a range with a pattern of 1, 2, 4 or 8 bytes, little end first.
   * @thread SYNC(queue) NOBLOCK
   * @shape  none
   * @unit   bytes; range.bytes is a multiple of pattern_bytes
   * @own    the memory lives until the signals settle
   * @error  INVALID_ARG: as copy; next: fix the range
   * @error  QUEUE_FULL: as copy
   * @rule   KV-COPY-4 Nothing outside the range is written. */
  kvspan_result_t(KVSPAN_CALL* fill)(kvspan_queue_t* queue,
                                     const kvspan_range_t* range,
                                     uint64_t pattern,
                                     uint32_t pattern_bytes,
                                     const kvspan_submit_t* submit,
                                     kvspan_error_t* error) KVSPAN_NOTHROW;

  /** The limits of this device. The same each time.
   * @thread ANY NOBLOCK
   * @shape  none
   * @unit   bytes and counts as the fields say
   * @own    the caller owns out_limits and sets its struct_size
   * @error  none beyond INVALID_ARG
   * @rule   KV-COPY-5 Anything within the limits works. */
  kvspan_result_t(KVSPAN_CALL* limits)(kvspan_device_t* device,
                                       kvspan_copy_limits_t* out_limits,
                                       kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Takes measurements of settled submits that asked to be measured, oldest first.
   * @thread SYNC(queue) NOBLOCK
   * @shape  out_measurements [capacity], the first *out_count written
   * @unit   nanoseconds, bytes
   * @own    the caller owns the array
   * @error  none beyond INVALID_ARG
   * @rule   KV-COPY-6 A full buffer drops measurements, never work; each measurement is handed out
   * once. */
  kvspan_result_t(KVSPAN_CALL* feedback)(kvspan_queue_t* queue,
                                         kvspan_measurement_t* out_measurements,
                                         uint32_t capacity,
                                         uint32_t* out_count,
                                         kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_copy_table_t;

#endif
