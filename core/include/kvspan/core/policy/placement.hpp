// SPDX-License-Identifier: Apache-2.0
// Which pages are resident and how large the ring is; what a placement makes a step stream; and the
// best placement of a pool under the cost model. Pure; any thread. Read first: load.hpp; next:
// step_time.hpp, policy.hpp.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/policy/load.hpp"

#include <cstdint>
#include <vector>

namespace kvspan {

// Fetching less at a time costs the link; more hides nothing.
inline constexpr std::uint32_t kGroupMax = 32;

// The same for chunks of a prompt: each wave reads and writes the state of every row and split that
// it feeds, so that a narrow chunk is as fast as its link only in waves twice as long (512 rows of
// geometry A over 32K: 1.09 of the larger of work and link in groups of 32, 1.015 in groups of 64;
// docs/measuring).
inline constexpr std::uint32_t kPromptGroupMax = 64;

struct Placement {
  std::uint32_t ring_slots = 0;  // 0 where nothing streams
  std::uint32_t group_pages = 1;
  std::vector<std::uint64_t> resident_pages;  // [layer] first pages of every sequence

  [[nodiscard]] bool operator==(const Placement&) const = default;
};

// Device memory for resident pages and the ring together; a slot holds the largest page.
struct Pool {
  std::uint64_t bytes = 0;
  std::uint64_t slot_bytes = 0;
};

// Pages of a layer that a step brings over the link.
[[nodiscard]] std::uint64_t streamed_pages(const StepLoad& load,
                                           const Placement& placement,
                                           std::size_t layer);

// Bytes that a step brings over the link, all layers and sequences.
[[nodiscard]] std::uint64_t streamed_bytes(const StepLoad& load, const Placement& placement);

// Bytes of the pool that a placement takes.
[[nodiscard]] std::uint64_t placed_bytes(const StepLoad& load,
                                         const Pool& pool,
                                         const Placement& placement);

// `spilled` layers of `layers`, as far apart as they can be: the ring is drained evenly then.
[[nodiscard]] std::vector<bool> spaced_layers(std::size_t layers, std::size_t spilled);

// Resident runs in `room_bytes`: layers that are not spilled whole, the others evenly, a page more
// for the first layers while it fits. More room never takes a page from any layer. Empty when the
// layers that are not spilled do not fit.
[[nodiscard]] std::vector<std::uint64_t> resident_runs(const StepLoad& load,
                                                       const std::vector<bool>& spilled,
                                                       std::uint64_t room_bytes);

// The placement with the least predicted step time of those that the pool holds. Properties: a
// larger pool never predicts a slower step; pages are conserved; everything is resident where that
// fits. Among equals the one that streams least.
// Errors: invalid_argument for a load without layers or sequences, or numbers that are not finite;
// device_memory when two slots do not fit (required, provided and missing in bytes).
[[nodiscard]] Result<Placement> best_placement(const StepLoad& load, const Pool& pool);

// A placement with what the pool has left of it put to use for sequences that grow: up to
// `pages_max` pages a layer resident, where nothing streams yet behind the ring and the groups that
// there were. Nothing is taken from any layer, so that no step is predicted slower.
[[nodiscard]] Placement with_rest(const StepLoad& load,
                                  const Pool& pool,
                                  const Placement& before,
                                  Placement placement,
                                  std::uint64_t pages_max);

// The same where one layer's streamed pages must be in the ring all at once, for a consumer that
// cannot take them in waves: residents give way evenly until the ring holds them.
// Errors: as best_placement; device_memory when the pool cannot hold the layer.
[[nodiscard]] Result<Placement> admit_whole_layer(const StepLoad& load,
                                                  const Pool& pool,
                                                  const Placement& placement,
                                                  std::size_t layer);

}  // namespace kvspan
