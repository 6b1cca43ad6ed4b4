// SPDX-License-Identifier: Apache-2.0
// What a machine has, against what a plan takes: headroom, the arena that is given when nobody
// named one, and refusals before anything is allocated. Amounts are measured by the host and handed
// in. Not here: what a plan takes (budget.hpp).
#pragma once

#include "kvspan/core/error.hpp"

#include <cstdint>
#include <string>

namespace kvspan {

// Bytes. An amount that nobody could measure stays at its default, which refuses nothing.
struct MachineMemory {
  std::uint64_t device_bytes = UINT64_MAX;  // of the card
  std::uint64_t device_used_bytes = 0;      // by others: driver, display, weights, the engine
  std::uint64_t host_bytes = UINT64_MAX;    // physical
  std::uint64_t host_used_bytes = 0;
  std::uint64_t reserve_bytes =
      0;                 // left alone, on the device; of the one memory where it is unified
  bool unified = false;  // device and host share host_bytes
};

// What is left when the plan runs; negative: taken twice.
struct Headroom {
  std::int64_t device_bytes = INT64_MAX;
  std::int64_t host_bytes = INT64_MAX;

  // The driver would move device memory to the host and slow everything down, without an error:
  // show it where the user sees it.
  [[nodiscard]] bool warning() const { return device_bytes < 0; }
};

// Headroom of a plan with this arena and these pinned bytes. The reserve does not count as taken.
// Errors: host_memory when the pinned bytes, with unified memory arena and pinned bytes together,
// pass what the host has: required, provided and missing are bytes, component "history". Next: a
// shorter context, fewer sequences, smaller types.
[[nodiscard]] Result<Headroom> headroom(const MachineMemory& machine,
                                        std::uint64_t arena_bytes,
                                        std::uint64_t pinned_bytes);

struct AutomaticArena {
  std::uint64_t arena_bytes = 0;
  std::string rule;  // one sentence with the numbers in it
};

// The rule: what is free, less the reserve, rounded down to `grain_bytes`; never more than
// `useful_bytes` (everything resident) nor than the device allocates at once, never less than
// `minimum_bytes`.
struct ArenaRule {
  std::uint64_t free_bytes = 0;
  std::uint64_t reserve_bytes = 0;
  std::uint64_t minimum_bytes = 0;
  std::uint64_t useful_bytes = UINT64_MAX;
  std::uint64_t allocation_bytes_max = UINT64_MAX;
  std::uint64_t grain_bytes = 1;
};

// Errors: device_memory when free less reserve is below the minimum; missing is what would do.
[[nodiscard]] Result<AutomaticArena> automatic_arena(const ArenaRule& rule);

}  // namespace kvspan
