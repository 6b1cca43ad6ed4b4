// SPDX-License-Identifier: Apache-2.0
// The rule of the systems that kvspan starts from, for comparison: a ring that is a tenth larger
// than what one layer streams. One kind of layer, one sequence. Not used by sessions. Pure; any
// thread. Read next: placement.hpp for ours.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/policy/placement.hpp"

#include <cstdint>
#include <vector>

namespace kvspan {

struct OverlapRequest {
  std::uint64_t pages = 0;  // of the pool
  std::uint64_t layers = 0;
  std::uint64_t active_pages = 0;  // of one layer
  std::uint64_t ring_hint = 0;     // at start; 0 = min(8, pages - layers)
};

struct OverlapLayout {
  std::uint64_t resident_pages = 0;  // of each layer
  std::uint64_t ring_pages = 0;      // resident * layers + ring = pages

  [[nodiscard]] bool operator==(const OverlapLayout&) const = default;
};

// What they start with: as much resident as leaves the hinted ring.
// Errors: invalid_argument without layers; device_memory when there is not a page a layer and one.
[[nodiscard]] Result<OverlapLayout> overlap_start(const OverlapRequest& request);

// What they decode with: the start while everything active is resident, else the largest resident
// count, at least 1, whose ring is at least 1.10 times what a layer streams; the start's minimum
// ring where none is. Errors: as overlap_start.
[[nodiscard]] Result<OverlapLayout> overlap_target(const OverlapRequest& request);

// Their decode placement of a layout: as few layers as the ring allows carry all that streams, the
// others are resident as a whole.
[[nodiscard]] Placement overlap_concentrated(const OverlapRequest& request,
                                             const OverlapLayout& layout);

// Their prefill placement: every layer alike.
[[nodiscard]] Placement overlap_uniform(const OverlapRequest& request, const OverlapLayout& layout);

}  // namespace kvspan
