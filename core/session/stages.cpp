// SPDX-License-Identifier: Apache-2.0
// Read first: stages.hpp.
#include "stages.hpp"

#include <algorithm>
#include <utility>

namespace kvspan {

namespace {

// Where a layer's resident page `place` lies, from the arena's start.
std::uint64_t place_offset(const Plan& plan,
                           std::uint32_t sequences,
                           std::uint32_t sequence,
                           std::size_t layer,
                           std::uint64_t place) {
  const std::uint64_t page_bytes = plan.pages[layer].page_bytes;
  return place < plan.kept_pages[layer]
             ? sequence * plan.kept_sequence_bytes + plan.kept_offsets[layer] + place * page_bytes
             : kept_bytes(plan, sequences) + sequence * plan.resident_sequence_bytes +
                   plan.resident_offsets[layer] + (place - plan.kept_pages[layer]) * page_bytes;
}

}  // namespace

std::uint64_t kept_bytes(const Plan& plan, std::uint32_t sequences) {
  return sequences * plan.kept_sequence_bytes;
}

std::uint64_t first_moved(const Plan& now,
                          const Plan& next,
                          std::uint32_t sequences,
                          std::uint32_t sequence,
                          std::size_t layer) {
  const std::uint64_t before = now.resident_pages[layer];
  const std::uint64_t after = next.resident_pages[layer];
  if (before != after && now.rolling_pages[layer] != 0) {
    return 0;
  }
  const std::uint64_t both = std::min(before, after);
  const std::uint64_t kept[] = {now.kept_pages[layer], next.kept_pages[layer]};
  for (const std::uint64_t part : {std::uint64_t{0}, std::min(kept[0], kept[1])}) {
    const bool is_same = part < both && place_offset(now, sequences, sequence, layer, part) ==
                                            place_offset(next, sequences, sequence, layer, part);
    if (!is_same) {
      return std::min(part, both);
    }
  }
  return kept[0] == kept[1] ? both : std::min(both, std::max(kept[0], kept[1]));
}

StageRequest stages_of(const Plan& plan, std::uint32_t sequences, std::uint64_t kept_region) {
  StageRequest request;
  request.domains = {{kStageDomain, bit(MemoryKind::device), 0}};
  for (const std::uint64_t id : {std::uint64_t{kResidentRegion},
                                 std::uint64_t{kSlotsRegion},
                                 std::uint64_t{kScratchRegion},
                                 kept_region}) {
    request.resources.push_back({id,
                                 kStageDomain,
                                 MemoryKind::device,
                                 id == kept_region ? Contents::kept : Contents::discarded});
  }
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const Plan room = entered(plan, phase);
    const PlanRegions& regions = room.regions;
    const std::pair<std::uint64_t, std::uint64_t> sizes[] = {
        {kept_region, kept_bytes(room, sequences)},
        {kResidentRegion, regions.resident_bytes - kept_bytes(room, sequences)},
        {kSlotsRegion, regions.slots_bytes},
        {kScratchRegion, regions.scratch_bytes()}};
    MemoryStage stage{static_cast<std::uint64_t>(phase) + 1, {}, {}};
    for (const auto& [id, bytes] : sizes) {
      if (bytes != 0) {
        stage.requirements.push_back({id, bytes, bytes, plan.alignment, MemoryAccess::read_write});
      }
    }
    request.stages.push_back(std::move(stage));
  }
  if (kept_bytes(plan, sequences) != 0) {
    request.outputs = {kept_region};
    request.inputs = request.outputs;
  }
  return request;
}

}  // namespace kvspan
