// SPDX-License-Identifier: Apache-2.0
// Planes: typed K or V rows of a run of tokens, contiguous, in pages, or in listed pages.
// The formula of a token's place is in kvspan/types.h. Cost: the used entries of a page list.
#pragma once

#include "kvspan/sdk/validate_range.hpp"

#include <cstdint>

namespace kvspan::sdk {
namespace detail {

/// The fields fit each other, whatever is read.
template <class BytesOf>
kvspan_result_t check_plane_fields(const kvspan_plane_t& plane,
                                   std::uint64_t element,
                                   const Context<BytesOf>& context,
                                   kvspan_error_t* error,
                                   const char* where) noexcept {
  if (plane.page_list == nullptr && plane.page_count != 0) {
    return refuse(context.spot,
                  error,
                  where,
                  "page_list is NULL with page_count %u: pass the list or count 0",
                  plane.page_count);
  }
  if (plane.page_list != nullptr && plane.page_tokens == 0) {
    return refuse(
        context.spot, error, where, "a page_list needs page_tokens > 0: say how long a page is");
  }
  kvspan_result_t bad =
      check_multiple("offset", plane.offset, context.memory_alignment, context, error, where);
  if (bad == KVSPAN_OK) {
    bad = check_multiple("page_stride", plane.page_stride, element, context, error, where);
  }
  if (bad == KVSPAN_OK) {
    bad = check_multiple("row_stride", plane.row_stride, element, context, error, where);
  }
  if (bad == KVSPAN_OK) {
    bad = check_multiple("head_stride", plane.head_stride, element, context, error, where);
  }
  return bad;
}

/// End of the bytes behind token `token` of the page in `slot`.
inline Extent plane_end(const PlaneUse& use,
                        std::uint64_t slot,
                        std::uint64_t token,
                        std::uint64_t row_bytes) noexcept {
  const kvspan_plane_t& plane = *use.plane;
  Extent end(plane.offset);
  end.add(slot, plane.page_stride)
      .add(token, plane.row_stride)
      .add(use.head_count - 1, plane.head_stride)
      .add(row_bytes, 1);
  return end;
}

/// Pages: the last one up to its last token, the ones before it whole, the farthest slot of each.
template <class BytesOf>
kvspan_result_t check_pages(const PlaneUse& use,
                            std::uint64_t row_bytes,
                            const Context<BytesOf>& context,
                            kvspan_error_t* error,
                            const char* where) noexcept {
  const kvspan_plane_t& plane = *use.plane;
  const std::uint64_t first_page = use.first_token / plane.page_tokens;
  const std::uint64_t last_token = use.first_token + (use.token_count - 1);
  const std::uint64_t last_page = last_token / plane.page_tokens;
  std::uint64_t farthest = last_page == first_page ? 0 : last_page - 1;
  std::uint64_t last_slot = last_page;
  if (plane.page_list != nullptr) {
    if (last_page >= plane.page_count) {
      return refuse(context.spot,
                    error,
                    where,
                    "token %llu is in page %llu of a page_list of %u: lengthen the list",
                    number(last_token),
                    number(last_page),
                    plane.page_count);
    }
    farthest = 0;
    for (std::uint64_t page = first_page; page < last_page; ++page) {
      farthest = plane.page_list[page] > farthest ? plane.page_list[page] : farthest;
    }
    last_slot = plane.page_list[last_page];
  }
  if (last_page != first_page) {
    const Extent end = plane_end(use, farthest, plane.page_tokens - 1u, row_bytes);
    if (const kvspan_result_t bad = check_end(end, plane.memory, context, error, where)) {
      return bad;
    }
  }
  const Extent end = plane_end(use, last_slot, last_token % plane.page_tokens, row_bytes);
  return check_end(end, plane.memory, context, error, where);
}

}  // namespace detail

/// Every byte of the used tokens is inside the plane's memory, its offset on the device's
/// alignment, its strides multiples of the element (4 for F32, 2 for types with f16 parts).
/// INVALID_ARG where the type's block does not divide the head size; UNSUPPORTED for an unknown
/// type. No tokens touch nothing.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_plane(const PlaneUse& use,
                                          const Context<BytesOf>& context,
                                          kvspan_error_t* error,
                                          const char* where) noexcept {
  constexpr std::uint64_t kAnyBlock = 1u << 20;  // every block length of a known type divides this
  if (context.row_bytes(use.type, kAnyBlock) == 0) {
    return fail_reasons(error,
                        where,
                        KVSPAN_WHY_K_TYPE | KVSPAN_WHY_V_TYPE,
                        "planes of type %u are not offered: ask query for a type that is",
                        use.type);
  }
  const std::uint64_t row_bytes = context.row_bytes(use.type, use.head_size);
  if (use.head_count == 0 || row_bytes == 0) {
    return refuse(
        context.spot,
        error,
        where,
        "%u heads of %u elements cannot be of type %u: heads of whole blocks, at least one",
        use.head_count,
        use.head_size,
        use.type);
  }
  const std::uint64_t element = detail::element_alignment(use.type);
  const kvspan_result_t bad =
      detail::check_plane_fields(*use.plane, element, context, error, where);
  if (bad != KVSPAN_OK || use.token_count == 0) {
    return bad;
  }
  std::uint64_t last_token = 0;
  if (__builtin_add_overflow(use.first_token, use.token_count - 1, &last_token)) {
    return refuse(context.spot, error, where, "its token numbers do not fit 64 bits: correct them");
  }
  if (use.plane->page_tokens != 0) {
    return detail::check_pages(use, row_bytes, context, error, where);
  }
  const Extent end = detail::plane_end(use, 0, last_token, row_bytes);
  return detail::check_end(end, use.plane->memory, context, error, where);
}

}  // namespace kvspan::sdk
