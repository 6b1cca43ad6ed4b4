// SPDX-License-Identifier: Apache-2.0
// First fit over a sorted list of regions. Each call works out its answer before it changes
// anything, and makes room in vectors before it moves an element, so that a failure leaves the
// planner as it was.
#include "kvspan/core/memory/region.hpp"

#include "kvspan/core/layout/checked.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace kvspan {
namespace {

std::string region_name(std::uint64_t id) {
  return "region " + std::to_string(id);
}

Error refusal(std::uint64_t id, const std::string& why) {
  return error_of(Errc::invalid_argument, region_name(id) + ": " + why, region_name(id));
}

Error no_open_plan() {
  return Error{Errc::invalid_argument, "no plan of the arena is open; call begin() first"};
}

Error beyond_capacity(std::uint64_t id,
                      std::uint64_t bytes,
                      std::optional<std::uint64_t> required,
                      std::uint64_t capacity) {
  Error error{Errc::too_large, region_name(id) + ": ", 0, 0, 0, region_name(id)};
  if (!required) {
    error.message +=
        std::to_string(bytes) + " bytes end beyond what 64 bits can count; ask for fewer bytes";
    return error;
  }
  error.required = *required;
  error.provided = capacity;
  error.missing = *required - capacity;
  error.message += std::to_string(bytes) + " bytes do not fit an arena of " +
                   std::to_string(capacity) + " bytes; " + std::to_string(*required) +
                   " bytes would do, " + std::to_string(error.missing) + " are missing";
  return error;
}

// Regions never wrap: their ends were checked when they were placed.
std::uint64_t end_of(const Region& region) {
  return region.offset + region.bytes;
}

const Region* find_id(std::span<const Region> regions, std::uint64_t id) {
  const auto found = std::find_if(
      regions.begin(), regions.end(), [id](const Region& region) { return region.id == id; });
  return found == regions.end() ? nullptr : &*found;
}

const Region* find_overlap(std::span<const Region> regions, std::uint64_t from, std::uint64_t to) {
  const auto found = std::find_if(regions.begin(), regions.end(), [=](const Region& region) {
    return region.offset < to && from < end_of(region);
  });
  return found == regions.end() ? nullptr : &*found;
}

void insert_sorted(std::vector<Region>& regions, const Region& region) {
  regions.reserve(regions.size() + 1);  // the only step that can fail, and it changes nothing
  const auto place = std::upper_bound(
      regions.begin(), regions.end(), region, [](const Region& left, const Region& right) {
        return left.offset < right.offset;
      });
  regions.insert(place, region);
}

std::uint64_t last_end(std::span<const Region> regions) {
  return regions.empty() ? 0 : end_of(regions.back());
}

}  // namespace

Result<RegionPlanner> RegionPlanner::create(std::uint64_t capacity_bytes, std::uint64_t alignment) {
  if (capacity_bytes == 0) {
    return tl::unexpected(Error{Errc::invalid_argument,
                                "an arena of 0 bytes holds nothing; give it at least 1 byte"});
  }
  if (!is_power_of_two(alignment)) {
    return tl::unexpected(Error{Errc::invalid_argument,
                                "arena alignment " + std::to_string(alignment) +
                                    " is not a power of two; use the device's memory alignment"});
  }
  return RegionPlanner(capacity_bytes, alignment);
}

Result<void> RegionPlanner::begin() {
  if (plan_is_open_) {
    return tl::unexpected(
        Error{Errc::busy, "a plan of the arena is open already; commit it or roll it back first"});
  }
  planned_.clear();
  plan_is_open_ = true;
  return {};
}

Result<std::uint64_t> RegionPlanner::check_request(std::uint64_t id,
                                                   std::uint64_t bytes,
                                                   std::uint64_t alignment) const {
  if (!plan_is_open_) {
    return tl::unexpected(no_open_plan());
  }
  if (bytes == 0) {
    return tl::unexpected(refusal(id, "0 bytes asked for; a region has at least 1 byte"));
  }
  if (!is_power_of_two(alignment)) {
    return tl::unexpected(refusal(id,
                                  "alignment " + std::to_string(alignment) +
                                      " is not a power of two; 1 gives the arena's own, " +
                                      std::to_string(alignment_)));
  }
  if (find_id(planned_, id) != nullptr) {
    return tl::unexpected(refusal(id, "the plan has a region of this id already; use another id"));
  }
  return std::max(alignment, alignment_);
}

Result<Region> RegionPlanner::reserve(std::uint64_t id,
                                      std::uint64_t bytes,
                                      std::uint64_t alignment,
                                      RegionOptions options) {
  auto effective = check_request(id, bytes, alignment);
  if (!effective) {
    return tl::unexpected(std::move(effective.error()));
  }
  // Every gap in order, then what follows the last region; only the latter can grow with the arena.
  std::uint64_t gap_begin = 0;
  for (const Region& next : planned_) {
    const auto offset = checked_align_up(gap_begin, *effective);
    if (offset && *offset <= next.offset && bytes <= next.offset - *offset) {
      const Region region{id, *offset, bytes, *effective, options.persistent};
      insert_sorted(planned_, region);
      return region;
    }
    gap_begin = end_of(next);
  }
  const auto offset = checked_align_up(gap_begin, *effective);
  const auto end = offset ? checked_add(*offset, bytes) : std::nullopt;
  if (!end || *end > capacity_bytes_) {
    return tl::unexpected(beyond_capacity(id, bytes, end, capacity_bytes_));
  }
  const Region region{id, *offset, bytes, *effective, options.persistent};
  insert_sorted(planned_, region);
  return region;
}

Result<Region> RegionPlanner::reserve_at(std::uint64_t id,
                                         std::uint64_t offset,
                                         std::uint64_t bytes,
                                         std::uint64_t alignment,
                                         RegionOptions options) {
  auto effective = check_request(id, bytes, alignment);
  if (!effective) {
    return tl::unexpected(std::move(effective.error()));
  }
  if (offset % *effective != 0) {
    return tl::unexpected(refusal(id,
                                  "offset " + std::to_string(offset) +
                                      " is not a multiple of the alignment " +
                                      std::to_string(*effective) + "; use one that is"));
  }
  const auto end = checked_add(offset, bytes);
  if (!end || *end > capacity_bytes_) {
    return tl::unexpected(beyond_capacity(id, bytes, end, capacity_bytes_));
  }
  if (const Region* other = find_overlap(planned_, offset, *end)) {
    return tl::unexpected(refusal(id,
                                  "bytes " + std::to_string(offset) + " to " +
                                      std::to_string(*end) + " overlap " + region_name(other->id) +
                                      "; choose bytes that the plan has not given away"));
  }
  const Region region{id, offset, bytes, *effective, options.persistent};
  insert_sorted(planned_, region);
  return region;
}

Result<void> RegionPlanner::keep_persistent() {
  if (!plan_is_open_) {
    return tl::unexpected(no_open_plan());
  }
  std::vector<Region> merged = planned_;
  for (const Region& region : committed_) {
    if (!region.persistent) {
      continue;
    }
    if (const Region* planned = find_id(planned_, region.id)) {
      if (*planned == region) {
        continue;
      }
      return tl::unexpected(refusal(region.id,
                                    "it is persistent, but the plan has another region of its id; "
                                    "keep persistent regions before reserving"));
    }
    if (const Region* other = find_overlap(planned_, region.offset, end_of(region))) {
      return tl::unexpected(refusal(region.id,
                                    "it is persistent, but the plan gave its bytes to " +
                                        region_name(other->id) +
                                        "; keep persistent regions before reserving"));
    }
    insert_sorted(merged, region);
  }
  planned_ = std::move(merged);
  return {};
}

Result<void> RegionPlanner::commit() {
  if (!plan_is_open_) {
    return tl::unexpected(no_open_plan());
  }
  const auto next = checked_add(generation_, 1);
  if (!next) {
    return tl::unexpected(Error{Errc::internal, "the arena's generations are used up"});
  }
  committed_.swap(planned_);
  planned_.clear();
  plan_is_open_ = false;
  generation_ = *next;
  peak_bytes_ = std::max(peak_bytes_, high_water_bytes());
  return {};
}

Result<void> RegionPlanner::rollback() {
  if (!plan_is_open_) {
    return tl::unexpected(no_open_plan());
  }
  planned_.clear();
  plan_is_open_ = false;
  return {};
}

Result<Region> RegionPlanner::find(std::uint64_t id) const {
  if (const Region* region = find_id(committed_, id)) {
    return *region;
  }
  return tl::unexpected(error_of(Errc::not_found,
                                 region_name(id) + " is not committed; reserve and commit it first",
                                 region_name(id)));
}

std::uint64_t RegionPlanner::used_bytes() const {
  std::uint64_t sum = 0;  // cannot overflow: regions do not overlap and lie within the capacity
  for (const Region& region : committed_) {
    sum += region.bytes;
  }
  return sum;
}

std::uint64_t RegionPlanner::high_water_bytes() const {
  return last_end(committed_);
}

}  // namespace kvspan
