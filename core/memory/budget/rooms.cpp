// SPDX-License-Identifier: Apache-2.0
// Read first: rooms.hpp.
#include "memory/budget/rooms.hpp"

#include "kvspan/core/layout/checked.hpp"

#include <algorithm>

namespace kvspan {

namespace {

PhaseRoom room_of(const Plan& alone, std::uint64_t total_bytes) {
  PhaseRoom room{alone.mode, alone.regions, alone.tail_slots, placement_of(alone)};
  room.regions.slots_bytes += total_bytes - alone.regions.total_bytes();
  return room;
}

// First pages of a layer that have the same places in both rooms. Where a window rolls, a page's
// place follows from how many there are.
std::uint64_t kept_of(std::uint64_t prefill, std::uint64_t decode, std::uint32_t rolling) {
  return prefill == decode || rolling == 0 ? std::min(prefill, decode) : 0;
}

std::uint64_t own_sequence_bytes(const Plan& plan, const PhaseRoom& room) {
  std::uint64_t bytes = 0;
  for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
    bytes += (room.placement.resident_pages[layer] - plan.kept_pages[layer]) *
             plan.pages[layer].page_bytes;
  }
  return align_up(bytes, plan.alignment);
}

// The plan's own fields are those of its phase's room.
void show_room(Plan& plan) {
  const PhaseRoom& room = plan.rooms[static_cast<std::size_t>(plan.phase)];
  plan.mode = room.mode;
  plan.regions = room.regions;
  plan.tail_slots = room.tail_slots;
  plan.ring_slots = room.placement.ring_slots;
  plan.group_pages = room.placement.group_pages;
  std::uint64_t offset = 0;
  for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
    plan.resident_pages[layer] = static_cast<std::uint32_t>(room.placement.resident_pages[layer]);
    plan.resident_offsets[layer] = offset;
    offset += (plan.resident_pages[layer] - plan.kept_pages[layer]) * plan.pages[layer].page_bytes;
  }
  plan.resident_sequence_bytes = own_sequence_bytes(plan, room);
}

}  // namespace

Plan with_rooms(const Basis& basis, const Plan& prefill, const Plan& decode) {
  Plan out = decode;
  const std::uint64_t total_bytes =
      std::max(prefill.regions.total_bytes(), decode.regions.total_bytes());
  out.rooms = {room_of(prefill, total_bytes), room_of(decode, total_bytes)};
  out.phase = Phase::decode;
  out.prompt = prefill.prompt;
  out.prefill_splits_in_flight = prefill.prefill_splits_in_flight;
  cut_rooms(basis.request.sequences, out);
  return out;
}

void cut_rooms(std::uint32_t sequences, Plan& plan) {
  std::uint64_t offset = 0;
  for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
    plan.kept_pages[layer] =
        static_cast<std::uint32_t>(kept_of(plan.rooms[0].placement.resident_pages[layer],
                                           plan.rooms[1].placement.resident_pages[layer],
                                           plan.rolling_pages[layer]));
    plan.kept_offsets[layer] = offset;
    offset += plan.kept_pages[layer] * plan.pages[layer].page_bytes;
  }
  plan.kept_sequence_bytes = align_up(offset, plan.alignment);
  for (PhaseRoom& room : plan.rooms) {
    const std::uint64_t pool_bytes = room.regions.resident_bytes + room.regions.slots_bytes;
    room.regions.resident_bytes =
        sequences * (plan.kept_sequence_bytes + own_sequence_bytes(plan, room));
    room.regions.slots_bytes = pool_bytes - room.regions.resident_bytes;
  }
  show_room(plan);
}

Plan entered(const Plan& plan, Phase phase) {
  Plan out = plan;
  if (!plan.rooms.empty()) {
    out.phase = phase;
    show_room(out);
  }
  return out;
}

}  // namespace kvspan
