// SPDX-License-Identifier: Apache-2.0
// Where the rows of a plane lie, page by page, of pages laid out in any way. Device code only. Read
// next: load.cuh; tile_load.cuh for pages as core lays them out.
#pragma once

#include "attention/kernel.hpp"
#include "divide.cuh"

#include <cstdint>

namespace kvspan::cuda::tensor {

// Where the rows of a plane lie, from the current granule to the end of the page that was looked up
// last. Small, since it lives in registers.
struct Cursor {
  const uint8_t* base = nullptr;  // of the granule's token 0
  uint32_t stride = 0;            // bytes; 0: too far apart for this
  uint32_t tokens = 0;            // from there to the end of the page
  uint32_t first_page = 0;        // page numbers of the plane's list, one a lane
  uint32_t held_page = 0;
  bool holds = false;

  // Looks up token `token` of the granule that begins at `first`; the whole warp asks for the same.
  __device__ void seek(const PlaneView& plane,
                       const SpanView& span,
                       uint64_t first,
                       uint64_t token,
                       uint32_t kv_head) {
    uint64_t page = 0;
    uint64_t begin = span.first_token;
    uint64_t end = begin + span.token_count;
    if (plane.page_tokens != 0) {
      page = divided(token - begin, plane.page_tokens);
      const uint64_t slot = plane.page_list != nullptr ? listed(plane, span, page) : page;
      begin += page * plane.page_tokens;
      end = end - begin < plane.page_tokens ? end : begin + plane.page_tokens;
      page = slot;
    }
    const uint64_t left = end - first;
    tokens = left < UINT32_MAX ? static_cast<uint32_t>(left) : UINT32_MAX;
    stride = plane.row_stride < UINT32_MAX ? static_cast<uint32_t>(plane.row_stride) : 0;
    base = plane.base + uint64_t{kv_head} * plane.head_stride + page * plane.page_stride +
           (first - begin) * plane.row_stride;
  }

 private:
  __device__ uint32_t listed(const PlaneView& plane, const SpanView& span, uint64_t page) {
    const uint32_t lane = threadIdx.x % 32;
    if (!holds || page < first_page || page - first_page >= 32) {
      const uint64_t pages = divided(span.token_count - 1, plane.page_tokens) + 1;
      first_page = static_cast<uint32_t>(page);
      held_page = page + lane < pages ? plane.page_list[page + lane] : 0;
      holds = true;
    }
    return __shfl_sync(~0u, held_page, static_cast<int>(page - first_page));
  }
};

}  // namespace kvspan::cuda::tensor
