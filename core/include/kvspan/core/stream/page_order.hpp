// SPDX-License-Identifier: Apache-2.0
// In which order the pages of a layer that are not resident are fetched, so that every group feeds
// as many splits as there are. Pure functions of counts. Not here: fetching (prefetch.hpp).
#pragma once

#include <cstdint>
#include <vector>

namespace kvspan {

// Rows [first_row, first_row + rows) of a page: all of it, or its part in one split.
struct PageUnit {
  std::uint64_t page = 0;
  std::uint32_t first_row = 0;
  std::uint32_t rows = 0;

  [[nodiscard]] bool operator==(const PageUnit&) const = default;
};

struct PageOrderRequest {
  std::uint64_t first_page = 0;
  std::uint64_t end_page = 0;  // past the last
  std::uint32_t page_tokens = 1;
  std::uint64_t split_tokens = 0;  // 0: one page after another
  std::uint64_t first_token = 0;   // seen by some row; lies in the first page, or before
  std::uint32_t run_pages = 1;     // of a split at a turn: neighbours, which one copy brings
  // Splits that are fed side by side at most, those before complete first; 0: all.
  std::uint32_t splits_at_once = 0;
};

// Round robin over the splits, or over as many as go side by side, each giving its next pages; one
// whose first tokens do not come joins when the others are as far. What lies in two splits comes in
// two units, since one split needs it first and the other last. Splits shorter than two pages are
// not told apart: there, one page after another feeds them as well, without cutting pages. Every
// row of the pages is in exactly one unit, and the units of a split ascend. What nobody sees of the
// first page comes with what is seen of it.
[[nodiscard]] std::vector<PageUnit> page_order(const PageOrderRequest& request);

}  // namespace kvspan
