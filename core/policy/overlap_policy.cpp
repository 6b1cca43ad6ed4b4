// SPDX-License-Identifier: Apache-2.0
// Their rule in whole numbers: 1.10 is 11 tenths.
#include "kvspan/core/policy/overlap_policy.hpp"

#include <algorithm>
#include <string>

namespace kvspan {

namespace {

constexpr std::uint64_t kStartRing = 8;
constexpr std::uint64_t kOverlapTenths = 11;

// Groups as ours, the largest that the ring holds twice.
std::uint32_t group_of(std::uint64_t ring_pages) {
  std::uint32_t group = 1;
  while (group < kGroupMax && 4ULL * group <= ring_pages) {
    group *= 2;
  }
  return group;
}

Placement empty_placement(const OverlapRequest& request, const OverlapLayout& layout) {
  Placement out;
  out.ring_slots = static_cast<std::uint32_t>(layout.ring_pages);
  out.group_pages = group_of(layout.ring_pages);
  out.resident_pages.assign(request.layers, layout.resident_pages);
  return out;
}

}  // namespace

Result<OverlapLayout> overlap_start(const OverlapRequest& request) {
  if (request.layers == 0) {
    return tl::unexpected(
        error_of(Errc::invalid_argument, "the overlap rule needs at least 1 layer", "policy"));
  }
  if (request.pages <= request.layers) {
    const std::uint64_t required = request.layers + 1;
    return tl::unexpected(Error{Errc::device_memory,
                                "the overlap rule needs a page a layer and one more, " +
                                    std::to_string(required) + " pages, but the pool has " +
                                    std::to_string(request.pages),
                                required,
                                request.pages,
                                required - request.pages,
                                "ring"});
  }
  const std::uint64_t hint = request.ring_hint != 0
                                 ? std::min(request.ring_hint, request.pages)
                                 : std::min(kStartRing, request.pages - request.layers);
  const std::uint64_t resident = (request.pages - hint) / request.layers;
  return OverlapLayout{resident, request.pages - resident * request.layers};
}

Result<OverlapLayout> overlap_target(const OverlapRequest& request) {
  auto start = overlap_start(request);
  if (!start || request.active_pages <= start->resident_pages) {
    return start;
  }
  std::uint64_t resident = std::max<std::uint64_t>(start->resident_pages, 1);
  const auto overlaps = [&](std::uint64_t kept) {
    const std::uint64_t ring = request.pages - kept * request.layers;
    return 10 * ring >= kOverlapTenths * (request.active_pages - kept);
  };
  while (resident > 1 && !overlaps(resident)) {
    --resident;
  }
  return OverlapLayout{resident, request.pages - resident * request.layers};
}

Placement overlap_concentrated(const OverlapRequest& request, const OverlapLayout& layout) {
  Placement out = empty_placement(request, layout);
  if (request.active_pages <= layout.resident_pages || layout.ring_pages == 0) {
    return out;
  }
  const std::uint64_t deficit = (request.active_pages - layout.resident_pages) * request.layers;
  const auto parts = [deficit](std::uint64_t size) { return (deficit + size - 1) / size; };
  const std::uint64_t split =
      std::max(std::min(request.layers, parts(layout.ring_pages)), parts(request.active_pages));
  const std::vector<bool> spilled = spaced_layers(request.layers, split);
  std::uint64_t index = 0;
  for (std::size_t layer = 0; layer < request.layers; ++layer) {
    out.resident_pages[layer] = request.active_pages;
    if (spilled[layer]) {
      out.resident_pages[layer] -= deficit / split + (index < deficit % split ? 1 : 0);
      ++index;
    }
  }
  return out;
}

Placement overlap_uniform(const OverlapRequest& request, const OverlapLayout& layout) {
  return empty_placement(request, layout);
}

}  // namespace kvspan
