// SPDX-License-Identifier: Apache-2.0
// In which order the items of a call are begun: the longest first, so that what a card is still at
// when the others are done is short. An item's bits are its own, so the order changes none. Read
// next: args.cpp.
#pragma once

#include "attention/kernel.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace kvspan::cuda {

// Items of advance; those of one length as the caller had them: by entry, then by token.
inline void put_longest_first(AdvanceWork* items, uint64_t count) {
  const auto before = [](const AdvanceWork& a, const AdvanceWork& b) {
    const uint64_t tokens = a.end - a.first;
    const uint64_t others = b.end - b.first;
    return tokens != others     ? tokens > others
           : a.entry != b.entry ? a.entry < b.entry
                                : a.first < b.first;
  };
  if (!std::is_sorted(items, items + count, before)) {
    std::sort(items, items + count, before);
  }
}

// Entries of run, whose items are not listed, by the tokens that one of their items walks at most.
// False: they are in order.
inline bool order_entries(const EntryView* entries, uint32_t count, uint32_t* order) {
  const auto tokens = [&](uint32_t index) {
    const EntryView& entry = entries[index];
    return entry.run_count == 0 ? entry.token_total
                                : std::min(entry.token_total, entry.split_tokens);
  };
  const auto before = [&](uint32_t a, uint32_t b) {
    return tokens(a) != tokens(b) ? tokens(a) > tokens(b) : a < b;
  };
  std::iota(order, order + count, 0U);
  if (std::is_sorted(order, order + count, before)) {
    return false;
  }
  std::sort(order, order + count, before);
  return true;
}

}  // namespace kvspan::cuda
