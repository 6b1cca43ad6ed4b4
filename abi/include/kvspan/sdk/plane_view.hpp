// SPDX-License-Identifier: Apache-2.0
// Planes as a backend's kernels read them: an address in place of the memory, and page lists that
// the backend keeps. Not here: where a token's row lies (reference/span.h), what a plane may be
// (validate_plane.hpp).
#pragma once

#include "kvspan/types.h"

#include <cstdint>
#include <cstring>

namespace kvspan::sdk {

/// kvspan_plane_t with its memory resolved: token t, head h as there. Borrows what it points to.
struct PlaneView {
  std::uint8_t* base;              // of the plane's offset
  const std::uint32_t* page_list;  // [page] slots, or nullptr
  std::uint64_t page_stride;       // bytes
  std::uint64_t row_stride;        // bytes
  std::uint64_t head_stride;       // bytes
  std::uint64_t page_tokens;       // 0 = contiguous
};

/// Copies the plane's page list, which is the caller's own again when a submit returns, to `next`,
/// and moves `next` behind it. The copy; nullptr, and nothing moves, where the plane has none.
inline const std::uint32_t* keep_list(const kvspan_plane_t& plane, std::uint32_t*& next) noexcept {
  if (plane.page_list == nullptr || plane.page_count == 0) {
    return nullptr;
  }
  std::uint32_t* const kept = next;
  std::memcpy(kept, plane.page_list, sizeof(std::uint32_t) * plane.page_count);
  next += plane.page_count;
  return kept;
}

/// The plane at `base`, the address of its offset, with `list`, its page list as it is kept.
constexpr PlaneView view_of(const kvspan_plane_t& plane,
                            std::uint8_t* base,
                            const std::uint32_t* list) noexcept {
  return {base, list, plane.page_stride, plane.row_stride, plane.head_stride, plane.page_tokens};
}

}  // namespace kvspan::sdk
