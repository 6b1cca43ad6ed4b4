// SPDX-License-Identifier: Apache-2.0
// Counted token by token or page by page: slow, and right to look at.
#include "windows.hpp"

#include <algorithm>

namespace kvspan::sim {

namespace {

// Whether a layer ever gives pages back.
bool slides(const SessionOptions& options, const LayerGeometry& layer) {
  return layer.window_tokens != 0 &&
         layer.window_tokens + options.rewind_tokens < options.context_tokens;
}

}  // namespace

std::uint64_t cut_limit(const SessionOptions& options, std::uint64_t tokens) {
  const std::uint64_t page = options.geometry.page_tokens;
  std::uint64_t limit = 0;
  for (const LayerGeometry& layer : options.geometry.layers) {
    if (!slides(options, layer)) {
      continue;
    }
    // The first token that the row behind the oldest promised cut sees; its page is there.
    const std::uint64_t cut = tokens > options.rewind_tokens ? tokens - options.rewind_tokens : 0;
    const std::uint64_t seen = cut + 1 > layer.window_tokens ? cut + 1 - layer.window_tokens : 0;
    const std::uint64_t first = seen / page * page;
    limit = std::max(limit, first == 0 ? 0 : first + layer.window_tokens - 1);
  }
  return limit;
}

bool rolls(const SessionOptions& options, const Plan& plan, std::size_t layer, std::uint32_t rows) {
  const std::uint64_t window = options.geometry.layers[layer].window_tokens;
  if (window == 0 || window >= options.context_tokens) {
    return false;
  }
  const std::uint64_t page = options.geometry.page_tokens;
  const std::uint64_t tokens = window - 1 + rows;
  // They touch the most pages when their first is a page's last.
  const std::uint64_t pages = 1 + (tokens - 1 + page - 1) / page;
  return plan.resident_pages[layer] >= std::min<std::uint64_t>(pages, plan.pages_a_sequence);
}

std::uint64_t placed_bytes_of(const SessionOptions& options,
                              const Plan& plan,
                              const Placement& placement) {
  std::uint64_t sequence = 0;
  for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
    sequence += placement.resident_pages[layer] * plan.pages[layer].page_bytes;
  }
  const auto whole = [&](std::uint64_t bytes) {
    return (bytes + plan.alignment - 1) / plan.alignment * plan.alignment;
  };
  const std::uint64_t slots = std::uint64_t{placement.ring_slots} + plan.tail_slots;
  // Where phases take turns, a sequence's part may be cut in two.
  const std::uint64_t cut =
      options.placement.phases_take_turns && sequence != 0 ? plan.alignment : 0;
  return options.sequences * (whole(sequence) + cut) + whole(slots * plan.slot_bytes);
}

std::uint64_t held_bytes_max(const SessionOptions& options, const Plan& plan, std::uint32_t rows) {
  const std::uint64_t page = options.geometry.page_tokens;
  const std::uint64_t all = (options.context_tokens + page - 1) / page;
  std::uint64_t bytes = 0;
  for (std::size_t layer = 0; layer < plan.pages.size(); ++layer) {
    const LayerGeometry& of = options.geometry.layers[layer];
    std::uint64_t pages = all;
    if (slides(options, of)) {
      // What the next row and a promised cut see, rows on their way, rows to come.
      const std::uint64_t tokens = of.window_tokens - 1 + options.rewind_tokens + 2ULL * rows;
      pages = std::min(all, (tokens - 1 + page - 1) / page + 1);
    }
    bytes += pages * plan.pages[layer].page_bytes * options.sequences;
  }
  return bytes;
}

}  // namespace kvspan::sim
