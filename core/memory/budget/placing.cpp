// SPDX-License-Identifier: Apache-2.0
// The request in the policy's words, and its placement in the plan's.
#include "memory/budget/placing.hpp"

#include "kvspan/core/layout/checked.hpp"
#include "kvspan/core/policy/overlap_policy.hpp"
#include "kvspan/core/policy/placement.hpp"

#include "memory/budget/rooms.hpp"

#include <algorithm>
#include <optional>
#include <string>

namespace kvspan {

namespace {

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

// Of the phases' components: what resident pages and the ring take now, what is idle then.
void set_placed(Plan& plan) {
  const Plan rooms[] = {entered(plan, Phase::prefill), entered(plan, Phase::decode)};
  for (PhaseBudget& phase : plan.phases) {
    const Plan& room = rooms[phase.name == name(Phase::prefill) ? 0 : 1];
    for (PlanComponent& component : phase.components) {
      if (component.name == "resident pages") {
        component.size_bytes = room.regions.resident_bytes;
      } else if (component.name == "ring") {
        component.size_bytes = room.ring_slots * plan.slot_bytes;
      }
    }
    phase.components.back().size_bytes = plan.total_bytes() - phase.needed_bytes();
  }
}

// Each sequence's residents, and the slots, begin at a region's alignment.
std::uint64_t padding_bytes(const Basis& basis) {
  return (basis.request.sequences + 1ULL) * kRegionAlignment +
         basis.request.sequences * basis.cut_bytes;
}

}  // namespace

bool is_the_policys(const StreamOptions& stream) {
  return stream.link_bytes_s != 0 && stream.group_pages == 0 &&
         stream.resident_pages_max == UINT32_MAX;
}

StepLoad step_load(const PlanRequest& request, const Plan& plan) {
  const StreamOptions& stream = request.stream;
  StepLoad load;
  for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
    LayerLoad of;
    of.page_bytes = plan.pages[layer].page_bytes;
    of.window_pages =
        plan.visible_pages[layer] == plan.pages_a_sequence ? 0 : plan.visible_pages[layer];
    of.rolling_pages = plan.rolling_pages[layer];
    of.gap_ns = static_cast<double>(stream.gap_ns);
    of.attend_page_ns =
        stream.attend_bytes_s == 0
            ? 0.0
            : static_cast<double>(of.page_bytes) / static_cast<double>(stream.attend_bytes_s) * 1e9;
    load.layers.push_back(of);
  }
  load.sequence_pages.assign(request.sequences, plan.pages_a_sequence);
  load.sequences_max = request.sequences;
  load.link = {static_cast<double>(stream.copy_ns), static_cast<double>(stream.link_bytes_s)};
  load.jitter_ns = static_cast<double>(stream.jitter_ns);
  load.wave_ns = static_cast<double>(stream.wave_ns);
  return load;
}

Placement placement_of(const Plan& plan) {
  Placement out{plan.ring_slots, plan.group_pages, {}};
  out.resident_pages.assign(plan.resident_pages.begin(), plan.resident_pages.end());
  return out;
}

Result<Plan> replaced(const Plan& plan, std::uint32_t sequences, const Placement& placement) {
  const std::size_t layers = plan.pages.size();
  const std::uint32_t slots_min = std::max(2U, placement.group_pages);
  if (plan.mode != PlanMode::streaming || placement.resident_pages.size() != layers ||
      placement.group_pages == 0 || placement.ring_slots < slots_min) {
    return tl::unexpected(error_of(Errc::invalid_argument,
                                   "a placement has resident pages for each of " +
                                       std::to_string(layers) + " layers and a ring of at least " +
                                       std::to_string(slots_min) +
                                       " slots, in a plan that streams; place what it lacks",
                                   "placement"));
  }
  Placement asked = placement;
  std::uint64_t offset = 0;
  std::vector<std::uint64_t> offsets;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::uint64_t& pages = asked.resident_pages[layer];
    pages = std::min<std::uint64_t>(pages, plan.pages_a_sequence);
    offsets.push_back(offset);
    offset += pages * plan.pages[layer].page_bytes;
  }
  // Rooms may cut a resident part in two, now and when another phase is placed.
  const std::uint64_t cut_bytes = plan.rooms.empty() || offset == 0 ? 0 : plan.alignment;
  const std::uint64_t sequence_bytes = align_up(offset, plan.alignment) + cut_bytes;
  const std::uint64_t pool_bytes = plan.regions.resident_bytes + plan.regions.slots_bytes;
  const std::uint64_t slots = std::uint64_t{asked.ring_slots} + plan.tail_slots;
  const std::uint64_t required =
      sequences * sequence_bytes + align_up(slots * plan.slot_bytes, plan.alignment);
  if (required > pool_bytes) {
    return tl::unexpected(Error{Errc::device_memory,
                                "the placement takes " + std::to_string(required) +
                                    " bytes of resident pages and slots, but the arena has " +
                                    std::to_string(pool_bytes) +
                                    " for them; keep fewer pages resident or a smaller ring",
                                required,
                                pool_bytes,
                                required - pool_bytes,
                                "placement"});
  }
  Plan out = plan;
  if (!plan.rooms.empty()) {
    out.rooms[static_cast<std::size_t>(plan.phase)].placement = std::move(asked);
    cut_rooms(sequences, out);
  } else {
    out.ring_slots = asked.ring_slots;
    out.group_pages = asked.group_pages;
    out.resident_pages.assign(asked.resident_pages.begin(), asked.resident_pages.end());
    out.resident_offsets = std::move(offsets);
    out.resident_sequence_bytes = sequence_bytes;
    out.regions.resident_bytes = sequences * sequence_bytes;
    out.regions.slots_bytes = pool_bytes - out.regions.resident_bytes;
  }
  set_placed(out);
  return out;
}

std::uint64_t pool_bytes(const Basis& basis, std::uint64_t spare_bytes, const Plan& least) {
  const std::uint64_t padding = std::min(spare_bytes, padding_bytes(basis));
  return least.ring_slots * basis.slot_bytes + spare_bytes - padding;
}

bool place(const Basis& basis, std::uint64_t spare_bytes, Plan& out) {
  if (!is_the_policys(basis.request.stream)) {
    return false;
  }
  if (spare_bytes < padding_bytes(basis)) {
    return false;
  }
  const Pool pool{pool_bytes(basis, spare_bytes, out), basis.slot_bytes};
  std::optional<Placement> placement;
  if (basis.request.stream.rule == PlacementRule::overlap) {
    placement = overlap_placement(basis, pool);
  } else if (auto best = best_placement(step_load(basis.request, out), pool)) {
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
  return predict(step_load(basis.request, plan), placement_of(plan));
}

}  // namespace kvspan
