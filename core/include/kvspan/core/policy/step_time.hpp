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

// Relative: predicted times that differ by less are the same, added up in another order.
inline constexpr double kSameTime = 1e-12;

struct StepTime {
  double step_ns = 0.0;
  double link_ns = 0.0;     // that the link needs for the step's bytes
  double compute_ns = 0.0;  // gaps, attention and waves, were every page on the device
  double ahead_ns = 0.0;    // link time that the ring holds while nobody consumes, jitter taken off
  std::uint64_t streamed_bytes = 0;
};

// What a ring has to hold so that the link never rests: what comes in the longest stretch from one
// wait of attention to the next layer that streams. Times in nanoseconds. Where layers that stream
// lie between, attention counts beyond what the link brings meanwhile, and may be below 0.
struct RingNeed {
  double gap_ns = 0.0;        // of the layers between, in which nobody consumes K/V
  double attention_ns = 0.0;  // of the last wave, of what is resident, and where it is the slower
  std::uint64_t gap_pages = 0;
  std::int64_t attention_pages = 0;  // beside those of the gap
  std::uint64_t jitter_pages = 0;
  std::uint64_t pages =
      0;  // all of these and a group; two groups at least; 0 where nothing streams

  [[nodiscard]] double time_ns() const { return gap_ns + attention_ns; }
};

// Of link_page_ns the copy's overhead is shared by the pages of a group.
[[nodiscard]] double link_page_ns(const Link& link,
                                  std::uint64_t page_bytes,
                                  std::uint32_t group_pages);

// Never below link_ns or compute_ns. More ring, a shorter gap, fewer streamed pages, and without
// jitter a faster link, never make it longer; jitter takes more slots of a faster link's ring. The
// placement's vectors have the load's layers, of which there is at least one.
[[nodiscard]] StepTime predict(const StepLoad& load, const Placement& placement);

// Of a placement's groups and residents, whatever its ring: a ring of more pages than these is not
// predicted to be faster. Vectors as predict().
[[nodiscard]] RingNeed ring_need(const StepLoad& load, const Placement& placement);

}  // namespace kvspan
