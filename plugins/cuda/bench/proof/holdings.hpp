// SPDX-License-Identifier: Apache-2.0
// What a process holds now, as the system and the card count it.
#pragma once

#include "rig.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace kvspan::cuda_proof {

struct Holdings {
  std::optional<std::uint64_t> device_used_bytes;  // of the card, by all; none without a card
  std::uint64_t plugin_device_bytes = 0;           // by the plugin's own count
  std::uint64_t resident_bytes = 0;  // of the process: pinned memory is resident, so it is in here
  std::uint64_t heap_bytes = 0;      // that are allocated and not freed, by all of the process
  std::uint64_t descriptors = 0;
  std::uint64_t threads = 0;
};

// Free bytes of the card; none without one.
[[nodiscard]] std::optional<std::uint64_t> device_free_bytes();

// Throws Failure where /proc cannot be read.
[[nodiscard]] Holdings holdings(const cuda_bench::Rig& rig);

// By how much each may grow.
struct Bounds {
  // The driver gives device memory out in pieces of 2 MiB: one may come late, a leak takes more.
  std::uint64_t device_bytes = std::uint64_t{2} << 20;
  // The allocator's own: pieces of freed blocks that larger ones do not fit into.
  std::uint64_t resident_bytes = std::uint64_t{16} << 20;
  // What is allocated depends on nothing but what lives: a soak's records, a driver's caches.
  std::uint64_t heap_bytes = std::uint64_t{256} << 10;
};

// Whether samples of equal states stayed flat: descriptors, threads and the plugin's device bytes
// never above what they were in the first quarter, which warms up; the card's never above it by
// more than the bound; of resident and heap bytes the median of the last quarter, by no more than
// the bound above the median of the second. Writes what each was by and by, and the bounds. Throws
// Failure where one grew, or with fewer than 8 samples.
void judge_flat(const std::vector<Holdings>& samples,
                const Bounds& bounds,
                nlohmann::ordered_json& out);

}  // namespace kvspan::cuda_proof
