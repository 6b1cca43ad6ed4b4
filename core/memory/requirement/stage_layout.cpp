// SPDX-License-Identifier: Apache-2.0
// One pool at a time: fixed regions, then minima through RegionPlanner, then growth gap by gap.
#include "kvspan/core/memory/stage_layout.hpp"

#include "kvspan/core/layout/checked.hpp"

#include "memory/requirement/elastic.hpp"
#include "memory/requirement/form.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

namespace kvspan {
namespace {

Error refused(const std::string& thing, const std::string& why) {
  return stage_error(Errc::invalid_argument, thing, why);
}

std::string pool_name(std::uint64_t domain, MemoryKind kind) {
  return "the pool of " + std::string(name(kind)) + " memory in domain " + std::to_string(domain);
}

bool in_pool(const MemoryPool& pool, std::uint64_t domain, MemoryKind kind) {
  return pool.domain == domain && pool.kind == kind;
}

const MemoryPool* find_pool(std::span<const MemoryPool> pools,
                            std::uint64_t domain,
                            MemoryKind kind) {
  const auto found = std::find_if(pools.begin(), pools.end(), [&](const MemoryPool& pool) {
    return in_pool(pool, domain, kind);
  });
  return found == pools.end() ? nullptr : &*found;
}

Result<void> check_pools(const LiveStage& stage, std::span<const MemoryPool> pools) {
  for (const MemoryPool& pool : pools) {
    const std::string thing = pool_name(pool.domain, pool.kind);
    if (pool.capacity_bytes == 0 || !is_power_of_two(pool.alignment) ||
        static_cast<std::uint32_t>(pool.kind) >= kMemoryKindCount) {
      return tl::unexpected(
          refused(thing, "needs bytes, an alignment that is a power of two, and a kind"));
    }
    if (find_pool(pools, pool.domain, pool.kind) != &pool) {
      return tl::unexpected(refused(thing, "is given twice; give all its bytes as one"));
    }
  }
  for (const LiveResource& live : stage.live) {
    const MemoryResource& resource = live.resource;
    if (live.requirement.preferred_bytes != 0 &&
        find_pool(pools, resource.domain, resource.kind) == nullptr) {
      return tl::unexpected(
          stage_error(Errc::not_found,
                      "resource " + std::to_string(resource.id),
                      "wants " + pool_name(resource.domain, resource.kind) +
                          ", which is not given; give one, since no other kind takes its place"));
    }
  }
  return {};
}

const LiveResource* find_live(const LiveStage& stage, std::uint64_t id) {
  const auto found = std::find_if(stage.live.begin(), stage.live.end(), [id](const auto& live) {
    return live.resource.id == id;
  });
  return found == stage.live.end() ? nullptr : &*found;
}

Result<void> check_fixed(const LiveStage& stage,
                         std::span<const MemoryPool> pools,
                         const FixedRegion& fixed) {
  const std::string thing = "fixed region " + std::to_string(fixed.region.id);
  const LiveResource* live = find_live(stage, fixed.region.id);
  if (live == nullptr || live->resource.domain != fixed.domain ||
      live->resource.kind != fixed.kind) {
    return tl::unexpected(refused(thing, "is of no resource that lives there in this stage"));
  }
  const MemoryPool* pool = find_pool(pools, fixed.domain, fixed.kind);
  if (pool == nullptr) {
    return tl::unexpected(refused(thing, "lies in a pool that is not given"));
  }
  if (!fixed.region.persistent || live->resource.contents == Contents::discarded) {
    return tl::unexpected(refused(thing, "is not persistent, or its contents are discarded"));
  }
  if (fixed.region.alignment < live->requirement.alignment) {
    return tl::unexpected(refused(thing, "is aligned to less than its resource needs"));
  }
  if (fixed.region.bytes < live->requirement.minimum_bytes) {
    return tl::unexpected(refused(thing, "has fewer bytes than its resource needs"));
  }
  if (fixed.region.alignment < pool->alignment) {
    return tl::unexpected(refused(thing, "is aligned to less than its pool"));
  }
  return {};
}

// The regions of one pool, as they grow.
class PoolPlacing {
 public:
  PoolPlacing(const LiveStage& stage, const MemoryPool& pool, RegionPlanner planner)
      : stage_(&stage), pool_(pool), planner_(std::move(planner)) {}

  Result<PoolLayout> place(std::span<const FixedRegion> fixed, LayoutSizes sizes) {
    Result<void> placed = planner_.begin();
    if (placed) {
      placed = place_fixed(fixed);
    }
    for (const Order order : {Order::rigid, Order::lasting, Order::passing}) {
      if (placed) {
        placed = place_minima(order);
      }
    }
    if (!placed) {
      return tl::unexpected(std::move(placed).error());
    }
    if (sizes == LayoutSizes::elastic) {
      seed_empty();
      return layout_of(grown());
    }
    return layout_of({planner_.planned().begin(), planner_.planned().end()});
  }

 private:
  Result<void> place_fixed(std::span<const FixedRegion> fixed) {
    for (const FixedRegion& at : fixed) {
      if (!in_pool(pool_, at.domain, at.kind)) {
        continue;
      }
      auto placed = planner_.reserve_at(
          at.region.id, at.region.offset, at.region.bytes, at.region.alignment, {true});
      if (!placed) {  // overlap, twice, no bytes, beyond the pool: all the caller's own
        Error error = std::move(placed).error();
        error.code = Errc::invalid_argument;
        return tl::unexpected(std::move(error));
      }
      fixed_.insert(at.region.id);
    }
    return {};
  }

  [[nodiscard]] bool is_ours(const LiveResource& live) const {
    return in_pool(pool_, live.resource.domain, live.resource.kind) &&
           !fixed_.contains(live.resource.id);
  }

  Result<Region> reserve(const LiveResource& live, std::uint64_t bytes) {
    return planner_.reserve(live.resource.id,
                            bytes,
                            live.requirement.alignment,
                            {live.resource.contents != Contents::discarded});
  }

  // What lasts comes first, so that what comes and goes between stages never cuts the room in two;
  // and of that first what cannot grow, so that it never moves.
  enum class Order : std::uint8_t { rigid, lasting, passing };

  static Order order_of(const LiveResource& live) {
    if (live.resource.contents == Contents::discarded) {
      return Order::passing;
    }
    const Requirement& need = live.requirement;
    return need.minimum_bytes == need.preferred_bytes ? Order::rigid : Order::lasting;
  }

  Result<void> place_minima(Order order) {
    for (const LiveResource& live : stage_->live) {
      if (!is_ours(live) || live.requirement.minimum_bytes == 0 || order_of(live) != order) {
        continue;
      }
      if (auto placed = reserve(live, live.requirement.minimum_bytes); !placed) {
        Error error = std::move(placed).error();
        error.component = "resource " + std::to_string(live.resource.id);
        error.message = "stage " + std::to_string(stage_->id) + ": " + error.message;
        return tl::unexpected(std::move(error));
      }
    }
    return {};
  }

  // One byte for each that needs none; who finds no room goes without.
  void seed_empty() {
    for (const LiveResource& live : stage_->live) {
      if (is_ours(live) && live.requirement.minimum_bytes == 0 &&
          live.requirement.preferred_bytes != 0) {
        (void)reserve(live, 1);
      }
    }
  }

  // Every gap between regions that do not move, with what lies in it.
  [[nodiscard]] std::vector<Region> grown() const {
    std::vector<Region> regions;
    ElasticGap gap{0, pool_.capacity_bytes, {}};
    const auto close = [&](std::uint64_t end) {
      gap.end = end;
      grow(gap);
      std::uint64_t at = gap.begin;
      for (const ElasticRegion& region : gap.regions) {
        at = align_up(at, region.alignment);
        const bool persistent =
            find_live(*stage_, region.id)->resource.contents != Contents::discarded;
        regions.push_back({region.id, at, region.bytes, region.alignment, persistent});
        at += region.bytes;
      }
      gap.regions.clear();
    };
    for (const Region& region : planner_.planned()) {
      if (fixed_.contains(region.id) || order_of(*find_live(*stage_, region.id)) == Order::rigid) {
        close(region.offset);
        regions.push_back(region);
        gap.begin = region.offset + region.bytes;
        continue;
      }
      const Requirement& need = find_live(*stage_, region.id)->requirement;
      gap.regions.push_back({region.id, region.bytes, need.preferred_bytes, region.alignment});
    }
    close(pool_.capacity_bytes);
    return regions;
  }

  [[nodiscard]] PoolLayout layout_of(std::vector<Region> regions) const {
    PoolLayout layout{pool_, std::move(regions), 0, pool_.alignment};
    for (const Region& region : layout.regions) {
      layout.needed_bytes = std::max(layout.needed_bytes, region.offset + region.bytes);
      layout.base_alignment = std::max(layout.base_alignment, region.alignment);
    }
    return layout;
  }

  const LiveStage* stage_;
  MemoryPool pool_;
  RegionPlanner planner_;
  std::set<std::uint64_t> fixed_;
};

}  // namespace

Result<StageLayout> lay_out(const LiveStage& stage,
                            std::span<const MemoryPool> pools,
                            std::span<const FixedRegion> fixed,
                            LayoutSizes sizes) {
  if (auto right = check_pools(stage, pools); !right) {
    return tl::unexpected(std::move(right).error());
  }
  for (const FixedRegion& region : fixed) {
    if (auto right = check_fixed(stage, pools, region); !right) {
      return tl::unexpected(std::move(right).error());
    }
  }
  StageLayout layout{stage.id, {}};
  for (const MemoryPool& pool : pools) {
    auto planner = RegionPlanner::create(pool.capacity_bytes, pool.alignment);
    if (!planner) {
      return tl::unexpected(std::move(planner).error());
    }
    auto placed = PoolPlacing(stage, pool, std::move(*planner)).place(fixed, sizes);
    if (!placed) {
      return tl::unexpected(std::move(placed).error());
    }
    layout.pools.push_back(std::move(*placed));
  }
  return layout;
}

}  // namespace kvspan
