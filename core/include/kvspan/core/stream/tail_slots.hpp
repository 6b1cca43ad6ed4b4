// SPDX-License-Identifier: Apache-2.0
// Tail slots: device slots of the pages that are being appended to. A page stays here while rows go
// into it and, as long as slots suffice, between steps, so that a token does not fetch its own page
// again. Not here: the resident pages (their last page is appended to in place) and the ring.
#pragma once

#include "kvspan/core/backend/moment.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvspan {

// A page of one layer of one sequence.
struct PageKey {
  std::uint32_t sequence = 0;
  std::uint32_t layer = 0;
  std::uint64_t page = 0;

  [[nodiscard]] bool operator==(const PageKey&) const = default;
};

// Slots by what they are: free, of the open step (pinned), or of an earlier one, which the next
// that needs a slot may evict.
struct TailCounts {
  std::uint32_t free = 0;
  std::uint32_t evictable = 0;
  std::uint32_t pinned = 0;
};

// Invariant: free + held = count. Thread class: SYNC(slots).
class TailSlots {
 public:
  // Slots first_slot .. first_slot + count - 1 of the arena's slot region.
  TailSlots(std::uint32_t first_slot, std::uint32_t count);

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(slots_.size()); }

  [[nodiscard]] std::uint32_t held() const { return held_; }

  // Each slot looked at.
  [[nodiscard]] TailCounts counts() const;

  // The slot that holds the page, with rows [0, valid_rows) of it on the device.
  [[nodiscard]] std::optional<std::uint32_t> find(const PageKey& key) const;

  // A slot for the page: a free one, else the one that was used longest ago and is not `pinned` by
  // this step. Nothing when every slot is pinned: the step asks for more tails than the plan gave
  // it.
  [[nodiscard]] std::optional<std::uint32_t> take(const PageKey& key);

  // Keeps a slot for the rest of the step.
  void pin(std::uint32_t slot);
  void unpin_all();

  // Forgets pages of a sequence from `first_page` on.
  void forget(std::uint32_t sequence, std::uint64_t first_page);

  // Forgets every page of a sequence before `page`: they are complete, and later steps fetch them
  // like others.
  void forget_before(std::uint32_t sequence, std::uint64_t page);

  [[nodiscard]] Hazard& hazard(std::uint32_t slot) { return slots_[slot - first_].hazard; }

  void reset();

 private:
  struct Slot {
    std::optional<PageKey> key;
    bool pinned = false;
    std::uint64_t used = 0;
    Hazard hazard;
  };

  void drop(Slot& slot);

  std::uint32_t first_;
  std::uint32_t held_ = 0;
  std::uint64_t clock_ = 0;  // counts uses, no time
  std::vector<Slot> slots_;
};

}  // namespace kvspan
