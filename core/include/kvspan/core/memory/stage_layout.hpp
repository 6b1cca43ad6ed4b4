// SPDX-License-Identifier: Apache-2.0
// Where the resources of one stage lie in their pools: persistent regions stay where they are,
// minima are placed first fit, and what is left is shared equally up to what each prefers.
// Metadata only: transition.hpp makes it real in arenas.
// Read next: region.hpp (first fit), transition.hpp.
#pragma once

#include "kvspan/core/memory/region.hpp"
#include "kvspan/core/memory/requirement.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvspan {

// Bytes of one kind in one domain; at most one pool for each pair.
struct MemoryPool {
  std::uint64_t domain = 0;
  MemoryKind kind = MemoryKind::device;
  std::uint64_t capacity_bytes = 0;  // > 0
  std::uint64_t alignment = 1;       // a power of two: the least of every region in it

  friend bool operator==(const MemoryPool&, const MemoryPool&) = default;
};

// A committed region whose contents a stage takes over: region.id is the resource's.
struct FixedRegion {
  std::uint64_t domain = 0;
  MemoryKind kind = MemoryKind::device;
  Region region{};
};

enum class LayoutSizes : std::uint8_t {
  minimum,  // exactly what each needs
  elastic   // more, up to what each prefers
};

// One pool's regions; region ids are resource ids.
struct PoolLayout {
  MemoryPool pool;
  std::vector<Region> regions;       // by offset
  std::uint64_t needed_bytes = 0;    // the capacity that this very layout needs
  std::uint64_t base_alignment = 1;  // what the parent's first byte must be aligned to at least

  friend bool operator==(const PoolLayout&, const PoolLayout&) = default;
};

struct StageLayout {
  std::uint64_t stage = 0;
  std::vector<PoolLayout> pools;  // one for each pool given, in its order

  friend bool operator==(const StageLayout&, const StageLayout&) = default;
};

// Places the live resources of a stage. Pure and deterministic; pools do not influence each other.
//
// A fixed region is taken over exactly, whatever its resource prefers by now. Then minima in
// ascending id, first fit: first of what keeps or rebuilds its contents and prefers no more, then
// of what else keeps or rebuilds, then of the rest; a resource that needs nothing takes nothing.
// `elastic` then walks the resources in rounds of ascending id, giving each one byte more while it
// is below what it prefers and its gap (between regions that are fixed or placed first, as the
// minima were placed) still holds everything in it, until a round gives nothing; one that needs
// nothing begins with a byte where one fits. It never moves a resource to another gap, so `minimum`
// fits exactly when `elastic` does. So where all that is kept prefers what it needs and lives in
// all stages, as large in each, stages fit in any order where each fits alone. Regions of what
// keeps or rebuilds its contents are persistent.
//
// Errc::invalid_argument: a pool or a fixed region that contradicts itself, the pools, the stage or
// another one. Errc::not_found: no pool of the resource's kind in its domain. Errc::too_large: no
// room for a minimum; required = the capacity with which that minimum would have fitted, missing,
// component = the resource. Nothing is placed then.
[[nodiscard]] Result<StageLayout> lay_out(const LiveStage& stage,
                                          std::span<const MemoryPool> pools,
                                          std::span<const FixedRegion> fixed,
                                          LayoutSizes sizes);

}  // namespace kvspan
