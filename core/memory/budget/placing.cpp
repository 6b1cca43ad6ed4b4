// SPDX-License-Identifier: Apache-2.0
// The request in the policy's words, and its placement in the plan's.
#include "memory/budget/placing.hpp"

#include "kvspan/core/policy/overlap_policy.hpp"
#include "kvspan/core/policy/placement.hpp"

#include <algorithm>
#include <optional>

namespace kvspan {

namespace {

StepLoad load_of(const Basis& basis, const Plan& plan) {
  const StreamOptions& stream = basis.request.stream;
  StepLoad load;
  for (std::size_t layer = 0; layer < basis.pages.size(); ++layer) {
    LayerLoad of;
    of.page_bytes = basis.pages[layer].page_bytes;
    of.window_pages =
        basis.visible_pages[layer] == basis.pages_a_sequence ? 0 : basis.visible_pages[layer];
    of.rolling_pages = plan.rolling_pages[layer];
    of.gap_ns = static_cast<double>(stream.gap_ns);
    of.attend_page_ns =
        stream.attend_bytes_s == 0
            ? 0.0
            : static_cast<double>(of.page_bytes) / static_cast<double>(stream.attend_bytes_s) * 1e9;
    load.layers.push_back(of);
  }
  load.sequence_pages.assign(basis.request.sequences, basis.pages_a_sequence);
  load.sequences_max = basis.request.sequences;
  load.link = {static_cast<double>(stream.copy_ns), static_cast<double>(stream.link_bytes_s)};
  load.jitter_ns = static_cast<double>(stream.jitter_ns);
  load.wave_ns = static_cast<double>(stream.wave_ns);
  return load;
}

bool is_the_policys(const StreamOptions& stream) {
  return stream.link_bytes_s != 0 && stream.group_pages == 0 &&
         stream.resident_pages_max == UINT32_MAX;
}

std::optional<Placement> overlap_placement(const Basis& basis, const Pool& pool) {
  const OverlapRequest request{
      pool.bytes / pool.slot_bytes, basis.pages.size(), basis.pages_a_sequence, 0};
  auto layout = overlap_target(request);
  if (!layout || layout->ring_pages > UINT32_MAX) {
    return std::nullopt;
  }
  if (layout->ring_pages < 2 && layout->resident_pages > 0) {  // we read a slot while one arrives
    --layout->resident_pages;
    layout->ring_pages += request.layers;
  }
  return overlap_concentrated(request, *layout);
}

}  // namespace

bool place(const Basis& basis, std::uint64_t spare_bytes, Plan& out) {
  if (!is_the_policys(basis.request.stream)) {
    return false;
  }
  // Each sequence's residents, and the slots, begin at a region's alignment.
  const std::uint64_t padding_bytes = (basis.request.sequences + 1ULL) * kRegionAlignment;
  const std::uint64_t ring_bytes = out.ring_slots * basis.slot_bytes;
  if (spare_bytes < padding_bytes) {
    return false;
  }
  const Pool pool{ring_bytes + spare_bytes - padding_bytes, basis.slot_bytes};
  std::optional<Placement> placement;
  if (basis.request.stream.rule == PlacementRule::overlap) {
    placement = overlap_placement(basis, pool);
  } else if (auto best = best_placement(load_of(basis, out), pool)) {
    placement = std::move(*best);
  }
  if (!placement || placement->ring_slots < 2) {
    return false;
  }
  out.ring_slots = placement->ring_slots;
  out.group_pages = placement->group_pages;
  for (std::size_t layer = 0; layer < out.resident_pages.size(); ++layer) {
    out.resident_pages[layer] = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(placement->resident_pages[layer], basis.pages_a_sequence));
  }
  return true;
}

StepTime predicted_step(const Basis& basis, const Plan& plan) {
  if (basis.request.stream.link_bytes_s == 0) {
    return {};
  }
  Placement placement{plan.ring_slots, plan.group_pages, {}};
  placement.resident_pages.assign(plan.resident_pages.begin(), plan.resident_pages.end());
  return predict(load_of(basis, plan), placement);
}

}  // namespace kvspan
