// SPDX-License-Identifier: Apache-2.0
// The ring: page-sized device slots that are taken and given back in one order. Pure bookkeeping
// with a hazard a physical slot. Not here: what is fetched into them (prefetch.hpp).
#pragma once

#include "kvspan/core/backend/moment.hpp"

#include <cstdint>
#include <vector>

namespace kvspan {

// Slots first_slot .. first_slot + count - 1 of the arena's slot region.
// Invariant: free + taken = count. Thread class: SYNC(ring).
class SlotRing {
 public:
  SlotRing(std::uint32_t first_slot, std::uint32_t count)
      : first_(first_slot), free_(count), hazards_(count) {}

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(hazards_.size()); }

  [[nodiscard]] std::uint32_t taken() const { return taken_; }

  // Kept, not worked out of those taken: whoever has them counts those.
  [[nodiscard]] std::uint32_t free() const { return free_; }

  // The next free slot in ring order; the caller made sure that one is free.
  [[nodiscard]] std::uint32_t take() {
    const std::uint32_t index = (oldest_ + taken_) % count();
    ++taken_;
    --free_;
    return first_ + index;
  }

  // Takes back the newest `slots` takes: nothing was fetched into them.
  void untake(std::uint32_t slots) {
    taken_ -= slots;
    free_ += slots;
  }

  // Gives back the oldest `slots` taken slots. Their hazards stay: whoever takes them next waits by
  // them.
  void give_back(std::uint32_t slots) {
    oldest_ = count() == 0 ? 0 : (oldest_ + slots) % count();
    taken_ -= slots;
    free_ += slots;
  }

  [[nodiscard]] Hazard& hazard(std::uint32_t slot) { return hazards_[slot - first_]; }

  // All work settled: everything is free and nobody is waited for.
  void reset() {
    taken_ = 0;
    free_ = count();
    for (Hazard& hazard : hazards_) {
      hazard = Hazard{};
    }
  }

 private:
  std::uint32_t first_;
  std::uint32_t oldest_ = 0;  // index of the oldest taken slot
  std::uint32_t taken_ = 0;
  std::uint32_t free_;
  std::vector<Hazard> hazards_;
};

}  // namespace kvspan
