// SPDX-License-Identifier: Apache-2.0
// Prefetch in demand order: the pages that a step will read, grouped, each group one batched copy
// into ring slots as soon as slots are free. Strictly first in, first out. Not here: which pages
// those are (session/step.cpp).
#pragma once

#include "kvspan/core/backend/lane.hpp"
#include "kvspan/core/error.hpp"
#include "kvspan/core/stream/page_order.hpp"
#include "kvspan/core/stream/slot_ring.hpp"
#include "kvspan/core/stream/tail_slots.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace kvspan {

// Pages of one layer of one sequence, in whole or in part: one copy, one wave, a slot a unit.
struct PageGroup {
  std::uint32_t sequence = 0;
  std::uint32_t layer = 0;
  bool last = false;  // of its layer and sequence in a step
  std::vector<PageUnit> units;

  [[nodiscard]] bool operator==(const PageGroup&) const = default;
};

// A group whose copy was submitted.
struct FetchedGroup {
  PageGroup group;
  std::vector<std::uint32_t> slots;  // [unit of the group]
  std::uint64_t ready = 0;           // value of the upload lane
};

// One layer of one sequence in the demand, and what comes behind it.
struct PartAhead {
  std::uint64_t units = 0;       // not handed out yet
  std::uint64_t groups = 0;      // in so many groups
  std::uint64_t cut_units = 0;   // of the units, with rows of a part of a tile
  std::uint64_t next_units = 0;  // of the part behind it, as far as it was demanded
};

// Submits the copy of a group into `slots`; returns the upload lane's value.
using FetchGroup =
    std::function<Result<std::uint64_t>(const PageGroup&, const std::vector<std::uint32_t>& slots)>;

// Invariant: groups are fetched, handed out and given back in the order they were demanded; a slot
// is demanded again only after its reader was submitted. What throws on the way, memory or the
// fetch, changes nothing: no group is lost, no slot taken. Thread class: SYNC(prefetcher).
class Prefetcher {
 public:
  // `ring` outlives the prefetcher.
  Prefetcher(SlotRing& ring, FetchGroup fetch) : ring_(&ring), fetch_(std::move(fetch)) {}

  // What a step reads, in order, and `ahead` of it the first groups of the step after, so that the
  // link does not rest between the two. Groups that were primed for exactly this are kept; if the
  // primed ones differ, all are dropped (their slots wait for their copies by hazard).
  void demand(std::vector<PageGroup> groups, std::vector<PageGroup> ahead);

  // Fetches groups while slots are free. Errors: the submit's own.
  [[nodiscard]] Result<void> pump();

  // The next group in order, its copy submitted, for that layer of that sequence. Errors: the
  // submit's own; internal where no such group is the next: nothing is handed out then.
  [[nodiscard]] Result<FetchedGroup> next(std::uint32_t sequence, std::uint32_t layer);

  // What next() hands out up to the end of a layer of a sequence.
  [[nodiscard]] PartAhead part_ahead(std::uint32_t tile_tokens) const;

  // Gives back the oldest group handed out, read at `compute`.
  void release(const FetchedGroup& group, const Moment& read);

  // Drops everything; hazards stay.
  void cancel();

  // Slots of groups that were fetched and not given back, by its own count.
  [[nodiscard]] std::uint32_t in_flight() const;

  [[nodiscard]] bool done() const { return waiting_.empty() && fetched_.empty(); }

 private:
  SlotRing* ring_;
  FetchGroup fetch_;
  std::deque<PageGroup> waiting_;     // not fetched yet
  std::deque<FetchedGroup> fetched_;  // fetched, not handed out
  std::uint32_t handed_out_slots_ = 0;
};

}  // namespace kvspan
