// SPDX-License-Identifier: Apache-2.0
// What a session did and holds, in numbers that mean their names. Plain data.
#pragma once

#include <cstdint>

namespace kvspan {

struct Counters {
  std::uint64_t steps = 0;                 // committed
  std::uint64_t streamed_pages = 0;        // fetched from the host and attended to
  std::uint64_t streamed_bytes = 0;        // of those pages
  std::uint64_t refetched_tail_bytes = 0;  // begun pages brought back to be appended to
  std::uint64_t placement_changes = 0;
  std::uint64_t phase_changes = 0;         // that laid the arena out anew
  std::uint64_t moved_bytes = 0;           // of pages brought to resident places between steps
  std::uint64_t primed_pages_dropped = 0;  // fetched ahead for a step that came out otherwise
  std::uint64_t published_bytes = 0;       // new rows sent down to the host
  std::uint64_t attended_pages = 0;  // visible pages, over all layers and steps, wherever they were
  std::uint64_t resident_attended_pages = 0;  // of those, read where they lie
  std::uint64_t device_bytes_high_water = 0;  // everything core holds on the device, at most
  std::uint64_t host_bytes = 0;               // history chunks now
  std::uint64_t host_held_bytes = 0;          // of those, pages that sequences hold
  std::uint64_t retired_pages = 0;  // given back behind windows, over all layers and sequences
  // Slots now, each counted by whoever has them: free + evictable + protected + in flight = total.
  std::uint32_t slots_total = 0;
  std::uint32_t slots_free = 0;
  std::uint32_t slots_evictable = 0;  // tails of earlier steps, kept as long as nobody needs them
  std::uint32_t slots_protected = 0;  // tails of the open step
  std::uint32_t slots_in_flight = 0;  // ring slots fetched or being read
};

}  // namespace kvspan
