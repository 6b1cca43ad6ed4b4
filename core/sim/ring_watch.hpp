// SPDX-License-Identifier: Apache-2.0
// Ring slots as the device sees them: a copy up fills one, the first attention that reads it gives
// it back. What core drops in between it counts itself. Private to core/sim.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace kvspan::sim {

// Where the ring lies in the session's arena, in bytes.
struct RingPlace {
  std::uint64_t begin = 0;
  std::uint64_t slot_bytes = 0;
  std::uint32_t slots = 0;
};

// Thread class: SYNC(device).
class RingWatch {
 public:
  // Another session: `where` is asked at each access, for its present plan.
  void follow(std::function<RingPlace()> where) {
    where_ = std::move(where);
    filled_by_.clear();
    full_.clear();
    fetched_ = read_ = 0;
  }

  // Submit number `order` fills these bytes of the arena.
  void fill(std::uint64_t begin, std::uint64_t end, std::uint64_t order) {
    visit(begin, end, [&](std::size_t slot) {
      fetched_ += filled_by_[slot] != order ? 1U : 0U;
      filled_by_[slot] = order;
      full_[slot] = true;
    });
  }

  void read(std::uint64_t begin, std::uint64_t end) {
    visit(begin, end, [&](std::size_t slot) {
      read_ += full_[slot] ? 1U : 0U;
      full_[slot] = false;
    });
  }

  // Slots that were filled and that nobody read; of those core may have dropped some.
  [[nodiscard]] std::uint64_t unread() const { return fetched_ - read_; }

 private:
  template <class Visit>
  void visit(std::uint64_t begin, std::uint64_t end, const Visit& visit) {
    if (!where_) {
      return;
    }
    const RingPlace place = where_();
    const std::uint64_t ring_end = place.begin + place.slots * place.slot_bytes;
    if (full_.size() < place.slots) {
      full_.resize(place.slots);
      filled_by_.resize(place.slots);
    }
    for (std::uint64_t at = begin < place.begin ? place.begin : begin; at < end && at < ring_end;) {
      const std::uint64_t slot = (at - place.begin) / place.slot_bytes;
      visit(static_cast<std::size_t>(slot));
      at = place.begin + (slot + 1) * place.slot_bytes;
    }
  }

  std::function<RingPlace()> where_;
  std::vector<std::uint64_t> filled_by_;  // [slot]
  std::vector<bool> full_;                // [slot]
  std::uint64_t fetched_ = 0;
  std::uint64_t read_ = 0;
};

}  // namespace kvspan::sim
