// SPDX-License-Identifier: Apache-2.0
// The spans of an entry as kernels read them: addresses in place of memories, lists copied. Read
// first: args.hpp.
#include "attention/args.hpp"

namespace kvspan::cuda {
namespace {

// K and V of pages that hold both are found by one list, which is held once.
bool shares_list(const kvspan_span_t& span) {
  return span.v.page_list == span.k.page_list && span.v.page_count == span.k.page_count;
}

// Whether the rows of a plane that a block walks lie 64 by 64, one behind the other, each 64 where
// one bulk copy may fetch them: as core lays pages out.
bool is_tiled(const PlaneView& plane, uint64_t row_bytes) {
  const uint64_t odd =
      reinterpret_cast<uint64_t>(plane.base) | plane.head_stride | plane.page_stride;
  return plane.page_tokens == kTensorGranuleTokens && plane.row_stride == row_bytes &&
         odd % 16 == 0;
}

}  // namespace

uint32_t list_entries(const kvspan_span_t& span, bool latent) {
  const uint32_t k = span.k.page_list != nullptr ? span.k.page_count : 0;
  const bool another = !latent && span.v.page_list != nullptr && !shares_list(span);
  return k + (another ? span.v.page_count : 0);
}

PlaneView AttentionTask::fill_plane(const kvspan_plane_t& plane,
                                    uint64_t tokens,
                                    const uint32_t* held_list,
                                    Uses& uses) {
  if (tokens == 0) {
    return {};
  }
  uses.add(plane.memory);
  return sdk::view_of(plane,
                      address_of(plane.memory, plane.offset),
                      held_list != nullptr ? held_list : sdk::keep_list(plane, next_page_));
}

void AttentionTask::fill_span(const kvspan_span_t& span, Uses& uses) {
  SpanView& to = *next_span_++;
  to = {
      span.first_token, span.token_count, fill_plane(span.k, span.token_count, nullptr, uses), {}};
  to.v = fill_plane(
      span.v, latent_ ? 0 : span.token_count, shares_list(span) ? to.k.page_list : nullptr, uses);
  const bool tiled = !latent_ && span.first_token % kTensorGranuleTokens == 0 &&
                     is_tiled(to.k, k_row_bytes_) && is_tiled(to.v, v_row_bytes_);
  arrays_.body->view.tiled &= tiled || span.token_count == 0 ? 1U : 0U;
}

}  // namespace kvspan::cuda
