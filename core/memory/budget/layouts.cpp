// SPDX-License-Identifier: Apache-2.0
// Order of the regions: resident pages, slots (ring, tails), split states, accumulators, workspace,
// what is lent.
#include "memory/budget/layouts.hpp"

#include "kvspan/core/layout/checked.hpp"

#include "memory/budget/phases.hpp"
#include "memory/budget/placing.hpp"

#include <algorithm>

namespace kvspan {

namespace {

// Two groups in flight: one that is read while the other arrives. Fewer slots would stop the link
// at every wave.
constexpr std::uint32_t kRingSlotsMin = 2;

// The ring's share of the slots that a small arena has left after tails and scratch.
constexpr std::uint32_t kRingShare = 3;

std::uint64_t resident_sequence_bytes(const Basis& basis,
                                      const std::vector<std::uint32_t>& counts) {
  std::uint64_t total_bytes = 0;
  for (std::size_t layer = 0; layer < counts.size(); ++layer) {
    total_bytes += counts[layer] * basis.pages[layer].page_bytes;
  }
  return total_bytes == 0 ? 0 : align_up(total_bytes, kRegionAlignment) + basis.cut_bytes;
}

// Resident pages of a layer in which its window rolls, whatever a step of the chunk's rows sees of
// it; 0 where rows see everything.
std::uint32_t rolling_pages(const Basis& basis, std::size_t layer, std::uint32_t prefill_rows) {
  const PlanRequest& request = basis.request;
  const std::uint64_t window = request.geometry.layers[layer].window_tokens;
  if (window == 0 || window >= request.context_tokens) {
    return 0;
  }
  return static_cast<std::uint32_t>(visible_pages(request.context_tokens,
                                                  window,
                                                  std::max(prefill_rows, request.decode_rows),
                                                  request.geometry.page_tokens));
}

void set_scratch(const Basis& basis, const Candidate& rows, PlanRegions& regions) {
  regions.states_bytes = std::max(rows.prefill.states_bytes, rows.decode.states_bytes);
  regions.accumulators_bytes =
      std::max(rows.prefill.accumulators_bytes, rows.decode.accumulators_bytes);
  regions.workspace_bytes = std::max(rows.prefill.workspace_bytes, rows.decode.workspace_bytes);
  regions.lent_bytes = lent_bytes(basis.request.demands, regions.scratch_bytes(), rows.alone);
}

void set_regions(const Basis& basis, const Candidate& rows, Plan& out) {
  out.pages = basis.pages;
  out.visible_pages = basis.visible_pages;
  out.reserved_bytes = basis.reserved_bytes;
  out.slot_bytes = basis.slot_bytes;
  out.pages_a_sequence = basis.pages_a_sequence;
  out.alignment = kRegionAlignment;
  out.prefill_rows = rows.prefill_rows;
  out.decode_rows = basis.request.decode_rows;
  out.prefill_splits_in_flight = rows.prefill.splits_in_flight;
  out.decode_splits_in_flight = rows.decode.splits_in_flight;
  out.resident_sequence_bytes = resident_sequence_bytes(basis, out.resident_pages);
  out.resident_offsets.assign(basis.pages.size(), 0);
  out.kept_pages.assign(basis.pages.size(), 0);
  out.kept_offsets.assign(basis.pages.size(), 0);
  out.rolling_pages.clear();
  std::uint64_t offset = 0;
  for (std::size_t layer = 0; layer < basis.pages.size(); ++layer) {
    out.rolling_pages.push_back(rolling_pages(basis, layer, rows.prefill_rows));
    out.resident_offsets[layer] = offset;
    offset += out.resident_pages[layer] * basis.pages[layer].page_bytes;
  }
  PlanRegions& regions = out.regions;
  regions.resident_bytes = basis.request.sequences * out.resident_sequence_bytes;
  regions.slots_bytes =
      align_up((static_cast<std::uint64_t>(out.ring_slots) + out.tail_slots) * basis.slot_bytes,
               kRegionAlignment);
  set_scratch(basis, rows, regions);
}

// Two groups, and what arrives in a gap. Groups are as asked for; else as large as a third of the
// page room allows.
void set_ring(const Basis& basis, std::uint64_t spare_slots, Plan& out) {
  const StreamOptions& stream = basis.request.stream;
  const std::uint64_t room = spare_slots + kRingSlotsMin;
  const std::uint64_t extra = gap_pages(stream, basis.slot_bytes);
  const std::uint64_t share = stream.group_pages != 0 ? room : room / kRingShare;
  const std::uint64_t group_max =
      stream.group_pages != 0 ? stream.group_pages : std::uint64_t{kGroupPagesMax};
  const std::uint64_t useful = std::max(basis.pages_a_sequence, 1U);
  const std::uint64_t group = std::clamp<std::uint64_t>(
      (share - std::min(share, extra)) / 2, 1, std::min(group_max, useful));
  out.group_pages = static_cast<std::uint32_t>(group);
  out.ring_slots = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      2 * group + extra, kRingSlotsMin, std::max<std::uint64_t>(share, 2)));
}

// Grows the resident pages of layers as far as `room_bytes` for all sequences allow.
class ResidentGrowth {
 public:
  ResidentGrowth(const Basis& basis, std::uint64_t room_bytes, Plan& plan)
      : basis_(basis),
        room_bytes_(room_bytes),
        rolling_(plan.rolling_pages),
        counts_(plan.resident_pages) {}

  // Runs of the layers that see everything: evenly, then one page more for the first while it fits.
  void grow_runs(std::uint32_t most) {
    std::uint32_t low = 0;
    std::uint32_t high = most;
    while (low < high) {
      const std::uint32_t middle = low + (high - low + 1) / 2;
      set_runs(middle);
      if (fits()) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    set_runs(low);
    for (bool grown = true; grown;) {
      grown = false;
      for (std::size_t layer = 0; layer < counts_.size(); ++layer) {
        grown = (rolling_[layer] == 0 && counts_[layer] < most && take(layer, 1)) || grown;
      }
    }
  }

  // What windows roll in, a layer's whole or nothing of it: a run would soon be behind them.
  void grow_windows(std::uint32_t most) {
    for (std::size_t layer = 0; layer < counts_.size(); ++layer) {
      if (rolling_[layer] != 0 && rolling_[layer] <= most) {
        (void)take(layer, rolling_[layer]);
      }
    }
  }

 private:
  [[nodiscard]] bool fits() const {
    return basis_.request.sequences * resident_sequence_bytes(basis_, counts_) <= room_bytes_;
  }

  bool take(std::size_t layer, std::uint32_t pages) {
    counts_[layer] += pages;
    if (fits()) {
      return true;
    }
    counts_[layer] -= pages;
    return false;
  }

  void set_runs(std::uint32_t count) {
    for (std::size_t layer = 0; layer < counts_.size(); ++layer) {
      counts_[layer] = rolling_[layer] == 0 ? count : counts_[layer];
    }
  }

  const Basis& basis_;
  std::uint64_t room_bytes_;
  const std::vector<std::uint32_t>& rolling_;
  std::vector<std::uint32_t>& counts_;
};

}  // namespace

void set_placement(const Basis& basis,
                   const Candidate& rows,
                   const Placement& placement,
                   Plan& out) {
  out.ring_slots = placement.ring_slots;
  out.group_pages = placement.group_pages;
  for (std::size_t layer = 0; layer < out.resident_pages.size(); ++layer) {
    out.resident_pages[layer] = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(placement.resident_pages[layer], basis.pages_a_sequence));
  }
  set_regions(basis, rows, out);
}

Plan resident_layout(const Basis& basis, const Candidate& rows) {
  Plan out;
  out.mode = PlanMode::resident;
  out.resident_pages.assign(basis.pages.size(), basis.pages_a_sequence);
  for (std::size_t layer = 0; layer < basis.pages.size(); ++layer) {
    if (const std::uint32_t rolling = rolling_pages(basis, layer, rows.prefill_rows)) {
      out.resident_pages[layer] = rolling;
    }
  }
  set_regions(basis, rows, out);
  return out;
}

Plan streaming_minimum(const Basis& basis, const Candidate& rows) {
  Plan out;
  out.resident_pages.assign(basis.pages.size(), 0);
  out.ring_slots = kRingSlotsMin;
  out.tail_slots = rows.tail_slots();
  set_regions(basis, rows, out);
  return out;
}

std::uint64_t usable_arena_bytes(const Basis& basis) {
  const std::uint64_t regions_bytes = basis.request.arena_bytes - basis.reserved_bytes;
  return regions_bytes / kRegionAlignment * kRegionAlignment + basis.reserved_bytes;
}

Plan streaming_layout(const Basis& basis, const Candidate& rows) {
  const PlanRequest& request = basis.request;
  Plan out = streaming_minimum(basis, rows);
  const std::uint64_t usable_bytes = usable_arena_bytes(basis);
  const std::uint64_t spare_bytes = usable_bytes - out.total_bytes();
  if (place(basis, spare_bytes, out)) {
    set_regions(basis, rows, out);
    return out;
  }
  set_ring(basis, spare_bytes / basis.slot_bytes, out);
  set_regions(basis, rows, out);
  const std::uint64_t room_bytes = usable_bytes - out.total_bytes();
  const std::uint32_t most = std::min(basis.pages_a_sequence, request.stream.resident_pages_max);
  ResidentGrowth growth(basis, room_bytes, out);
  growth.grow_runs(most);
  growth.grow_windows(most);
  set_regions(basis, rows, out);
  return out;
}

}  // namespace kvspan
