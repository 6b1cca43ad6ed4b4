// SPDX-License-Identifier: Apache-2.0
// TailSlots: a handful of slots, so plain searches.
#include "kvspan/core/stream/tail_slots.hpp"

namespace kvspan {

TailSlots::TailSlots(std::uint32_t first_slot, std::uint32_t count)
    : first_(first_slot), slots_(count) {}

TailCounts TailSlots::counts() const {
  TailCounts counts;
  for (const Slot& slot : slots_) {
    ++(!slot.key ? counts.free : slot.pinned ? counts.pinned : counts.evictable);
  }
  return counts;
}

std::optional<std::uint32_t> TailSlots::find(const PageKey& key) const {
  for (std::uint32_t index = 0; index < count(); ++index) {
    if (slots_[index].key == key) {
      return first_ + index;
    }
  }
  return std::nullopt;
}

std::optional<std::uint32_t> TailSlots::take(const PageKey& key) {
  Slot* chosen = nullptr;
  for (Slot& slot : slots_) {
    if (!slot.key) {
      chosen = &slot;
      break;
    }
    if (!slot.pinned && (chosen == nullptr || slot.used < chosen->used)) {
      chosen = &slot;
    }
  }
  if (chosen == nullptr) {
    return std::nullopt;
  }
  held_ += chosen->key ? 0U : 1U;
  chosen->key = key;
  chosen->used = ++clock_;
  return first_ + static_cast<std::uint32_t>(chosen - slots_.data());
}

void TailSlots::pin(std::uint32_t slot) {
  slots_[slot - first_].pinned = true;
  slots_[slot - first_].used = ++clock_;
}

void TailSlots::unpin_all() {
  for (Slot& slot : slots_) {
    slot.pinned = false;
  }
}

void TailSlots::forget(std::uint32_t sequence, std::uint64_t first_page) {
  for (Slot& slot : slots_) {
    if (slot.key && slot.key->sequence == sequence && slot.key->page >= first_page) {
      drop(slot);
    }
  }
}

void TailSlots::forget_before(std::uint32_t sequence, std::uint64_t page) {
  for (Slot& slot : slots_) {
    if (slot.key && slot.key->sequence == sequence && slot.key->page < page) {
      drop(slot);
    }
  }
}

void TailSlots::reset() {
  for (Slot& slot : slots_) {
    drop(slot);
    slot.hazard = Hazard{};
  }
}

void TailSlots::drop(Slot& slot) {
  held_ -= slot.key ? 1U : 0U;
  slot.key.reset();
  slot.pinned = false;
}

}  // namespace kvspan
