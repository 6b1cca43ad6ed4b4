// SPDX-License-Identifier: Apache-2.0
// Where a token's row lies and which span holds a token, all in 64 bits: a page number times a
// page's bytes passes 2^31 and 2^32 in ordinary use.
// Not here: checks of ranges and spans (sdk/validate.hpp), what is in the bytes (quant.h), which
// tokens a row sees (advance.h).
// Read next: kvspan_plane_t in types.h, kvspan_span_t in attention.h.
#ifndef KVSPAN_SDK_REFERENCE_SPAN_H
#define KVSPAN_SDK_REFERENCE_SPAN_H

#include "kvspan/attention.h"
#include "kvspan/types.h"

#include <stdint.h>

/// Byte offset inside plane->memory of the typed row of token `token`, counted from the plane's
/// first, and KV head `head`. Any thread; reads page_list.
///   offset + slot(token / page_tokens) * page_stride + (token % page_tokens) * row_stride
///   + head * head_stride, slot(k) = page_list[k], or k without a list; page_tokens = 0: one page.
/// The caller has checked that the plane holds the token: this neither checks nor saturates.
static inline uint64_t kvspan_ref_plane_offset(const kvspan_plane_t* plane,
                                               uint64_t token,
                                               uint32_t head) {
  uint64_t slot = 0;
  uint64_t row = token;
  if (plane->page_tokens != 0u) {
    const uint64_t page = token / plane->page_tokens;
    slot = plane->page_list ? plane->page_list[page] : page;
    row = token % plane->page_tokens;
  }
  return plane->offset + slot * plane->page_stride + row * plane->row_stride +
         (uint64_t)head * plane->head_stride;
}

/// Byte offset of row `row`, head `head` of the engine's rows. Any thread; as unchecked as above.
static inline uint64_t kvspan_ref_rows_offset(const kvspan_rows_t* rows,
                                              uint64_t row,
                                              uint32_t head) {
  return rows->offset + row * rows->row_stride + (uint64_t)head * rows->head_stride;
}

/// Index of the span that holds history token `token`, or `count` where none does (a gap).
/// Any thread. spans [count] ascend and do not overlap.
static inline uint32_t kvspan_ref_span_of(const kvspan_span_t* spans,
                                          uint32_t count,
                                          uint64_t token) {
  uint32_t low = 0;
  uint32_t high = count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2u;
    if (spans[middle].first_token + spans[middle].token_count <= token) {
      low = middle + 1u;
    } else {
      high = middle;
    }
  }
  return low < count && spans[low].first_token <= token ? low : count;
}

#endif
