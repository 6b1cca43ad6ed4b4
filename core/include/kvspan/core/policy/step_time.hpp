// SPDX-License-Identifier: Apache-2.0
// The cost model: how long a step takes under a placement, in a steady state of equal steps. A
// fluid model: the link brings pages in demand order at its rate while the ring has room; attention
// consumes them layer by layer; in a gap nobody does. Pure; any thread. Read next:
// docs/design/policy.md.
#pragma once

#include "kvspan/core/policy/load.hpp"
#include "kvspan/core/policy/placement.hpp"

#include <cstdint>

namespace kvspan {

struct StepTime {
  double step_ns = 0.0;
  double link_ns = 0.0;     // that the link needs for the step's bytes
  double compute_ns = 0.0;  // gaps, attention and waves, were every page on the device
  double ahead_ns = 0.0;    // link time that the ring holds while nobody consumes, jitter taken off
  std::uint64_t streamed_bytes = 0;
};

// Of link_page_ns the copy's overhead is shared by the pages of a group.
[[nodiscard]] double link_page_ns(const Link& link,
                                  std::uint64_t page_bytes,
                                  std::uint32_t group_pages);

// Never below link_ns or compute_ns. More ring, a shorter gap, fewer streamed pages, and without
// jitter a faster link, never make it longer; jitter takes more slots of a faster link's ring. The
// placement's vectors have the load's layers, of which there is at least one.
[[nodiscard]] StepTime predict(const StepLoad& load, const Placement& placement);

}  // namespace kvspan
