/* SPDX-License-Identifier: Apache-2.0 */
/* The codec: the engine's K/V rows into typed rows of a page, and back. Mandatory.
 * Encoding is bit-exact on every backend with the C reference in sdk/reference/quant.h.
 * Every submitting slot also obeys KV-SUBMIT-1..8 (queue.h). */
#ifndef KVSPAN_CODEC_H
#define KVSPAN_CODEC_H

#include "kvspan/error.h"
#include "kvspan/queue.h"
#include "kvspan/types.h"

/* row_count tokens of head_count heads of head_size elements. Row r of `rows` is token first_token
 * + r of `plane`. Encoding reads rows and writes the plane; decoding reads the plane and writes
 * rows. */
typedef struct kvspan_codec_item_t {
  kvspan_rows_t rows;   /* [row, head, element] F32, F16 or BF16 */
  kvspan_plane_t plane; /* [token, head, typed element] */
  uint64_t first_token; /* in tokens from the plane's start */
  kvspan_type_t type;   /* of the plane */
  uint32_t row_count;
  uint32_t head_count;
  uint32_t head_size; /* elements; a multiple of the type's block */
} kvspan_codec_item_t;

/* One question, one answer; see attention.h for the levels. */
typedef struct kvspan_codec_caps_t {
  uint32_t struct_size;
  uint32_t encode_level; /* KVSPAN_LEVEL_* */
  uint32_t decode_level;
  uint32_t reasons;   /* KVSPAN_WHY_* where a level is UNSUPPORTED */
  uint32_t items_max; /* a submit */
  uint32_t reserved;
} kvspan_codec_caps_t;

typedef struct kvspan_codec_table_t {
  uint32_t struct_size;
  uint32_t reserved;

  /** Whether rows of row_type can be encoded to and decoded from `type` at that head size.
   * @thread ANY NOBLOCK
   * @shape  none
   * @unit   head_size in elements
   * @own    the caller owns out_caps and sets its struct_size
   * @error  none beyond INVALID_ARG; "no" is a level, not an error
   * @rule   KV-CODEC-1 A function of its inputs only, and encode and decode behave as it says. */
  kvspan_result_t(KVSPAN_CALL* query)(kvspan_device_t* device,
                                      kvspan_type_t row_type,
                                      kvspan_type_t type,
                                      uint32_t head_size,
                                      kvspan_codec_caps_t* out_caps,
                                      kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Rows to typed rows: K and V of several sequences in one call.
   * @thread SYNC(queue) NOBLOCK
   * @shape  items [count]
   * @unit   bytes, tokens
   * @own    arrays are copied before return; memories live until the signals settle
   * @error  UNSUPPORTED: query says so too, same reasons; next: choose another type
   * @error  INVALID_ARG: a range outside its memory; a head size that the block does not divide: no
   * such row exists, which is why attention's query answers UNSUPPORTED with WHY_BLOCK and this
   * slot a mistake; next: fix the item
   * @error  QUEUE_FULL: required = depth + 1; next: wait for a submit to settle
   * @rule   KV-CODEC-2 Bytes equal the C reference's for every input, NaN and infinities included.
   * @rule   KV-CODEC-3 Only the named rows' bytes are written: neighbours, padding and dead rows
   * keep theirs.
   * @rule   KV-CODEC-4 count = 0 and row_count = 0 are OK and still signal.
   * @rule   KV-CODEC-6 An item that cannot be is refused and writes nothing. */
  kvspan_result_t(KVSPAN_CALL* encode)(kvspan_queue_t* queue,
                                       const kvspan_codec_item_t* items,
                                       uint32_t count,
                                       const kvspan_submit_t* submit,
                                       kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Typed rows to rows.
   * @thread SYNC(queue) NOBLOCK
   * @shape  items [count]
   * @unit   bytes, tokens
   * @own    as encode
   * @error  as encode
   * @rule   KV-CODEC-5 F32 values equal the C reference's bit for bit; F16 and BF16 are those,
   * rounded to even. */
  kvspan_result_t(KVSPAN_CALL* decode)(kvspan_queue_t* queue,
                                       const kvspan_codec_item_t* items,
                                       uint32_t count,
                                       const kvspan_submit_t* submit,
                                       kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_codec_table_t;

#endif
