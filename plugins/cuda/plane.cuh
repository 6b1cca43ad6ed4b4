// SPDX-License-Identifier: Apache-2.0
// Where a token's row lies: kvspan_ref_plane_offset of kvspan/sdk/reference/span.h. Device code
// only.
#pragma once

#include "attention/kernel.hpp"
#include "divide.cuh"

#include <cstdint>

namespace kvspan::cuda {

// The typed row of token `token`, counted from the plane's first, and KV head `head`.
__device__ inline uint8_t* row_of(const PlaneView& plane, uint64_t token, uint32_t head) {
  uint64_t slot = 0;
  uint64_t within = token;
  if (plane.page_tokens != 0) {
    slot = divided(token, plane.page_tokens);
    within = token - slot * plane.page_tokens;
    slot = plane.page_list != nullptr ? plane.page_list[slot] : slot;
  }
  return plane.base + slot * plane.page_stride + within * plane.row_stride +
         uint64_t{head} * plane.head_stride;
}

// Row `row`, head `head` of the engine's rows.
__device__ inline uint8_t* row_of(const RowsView& rows, uint64_t row, uint32_t head) {
  return rows.base + row * rows.row_stride + uint64_t{head} * rows.head_stride;
}

}  // namespace kvspan::cuda
