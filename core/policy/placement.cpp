// SPDX-License-Identifier: Apache-2.0
// Counts and bytes of placements, and resident runs in a room.
#include "kvspan/core/policy/placement.hpp"

#include <algorithm>

namespace kvspan {

namespace {

std::uint64_t longest(const StepLoad& load) {
  std::uint64_t pages = 0;
  for (const std::uint64_t of_sequence : load.sequence_pages) {
    pages = std::max(pages, of_sequence);
  }
  return pages;
}

// Fills runs page by page in one order, so that more room only ever appends to it.
class RunFiller {
 public:
  RunFiller(const StepLoad& load, std::uint64_t room_bytes)
      : load_(load), left_bytes_(room_bytes), all_(longest(load)), runs_(load.layers.size(), 0) {}

  // All pages of a layer, or all that its window rolls in; false when they do not fit.
  bool add_whole(std::size_t layer) {
    const std::uint64_t each = cost(layer);
    const std::uint64_t whole = whole_of(load_.layers[layer], all_);
    if (each != 0 && whole > left_bytes_ / each) {
      return false;
    }
    left_bytes_ -= whole * each;
    runs_[layer] = whole;
    return true;
  }

  // The same number for all of these layers, then one more for the first of them that fit.
  // False when they are not whole then.
  bool add_evenly(const std::vector<std::size_t>& layers) {
    std::uint64_t row_bytes = 0;
    for (const std::size_t layer : layers) {
      row_bytes += cost(layer);
    }
    const std::uint64_t rows = row_bytes == 0 ? all_ : std::min(all_, left_bytes_ / row_bytes);
    left_bytes_ -= rows * row_bytes;
    for (const std::size_t layer : layers) {
      runs_[layer] = rows;
    }
    if (rows == all_) {
      return true;
    }
    for (const std::size_t layer : layers) {
      if (cost(layer) > left_bytes_) {
        break;
      }
      left_bytes_ -= cost(layer);
      ++runs_[layer];
    }
    return false;
  }

  [[nodiscard]] std::vector<std::uint64_t> take() { return std::move(runs_); }

 private:
  // One page of the layer for every sequence that the arena is made for.
  [[nodiscard]] std::uint64_t cost(std::size_t layer) const {
    return load_.layers[layer].page_bytes * load_.sequences_max;
  }

  const StepLoad& load_;
  std::uint64_t left_bytes_;
  std::uint64_t all_;
  std::vector<std::uint64_t> runs_;
};

}  // namespace

std::uint64_t streamed_pages(const StepLoad& load, const Placement& placement, std::size_t layer) {
  const LayerLoad& of = load.layers[layer];
  const std::uint64_t resident = placement.resident_pages[layer];
  std::uint64_t total = 0;
  for (const std::uint64_t pages : load.sequence_pages) {
    if (resident >= whole_of(of, pages)) {
      continue;
    }
    total += can_stay(of, pages) ? pages - resident : visible_of(of, pages);
  }
  return total;
}

std::uint64_t streamed_bytes(const StepLoad& load, const Placement& placement) {
  std::uint64_t total_bytes = 0;
  for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
    total_bytes += streamed_pages(load, placement, layer) * load.layers[layer].page_bytes;
  }
  return total_bytes;
}

std::uint64_t placed_bytes(const StepLoad& load, const Pool& pool, const Placement& placement) {
  std::uint64_t total_bytes = placement.ring_slots * pool.slot_bytes;
  for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
    total_bytes +=
        placement.resident_pages[layer] * load.layers[layer].page_bytes * load.sequences_max;
  }
  return total_bytes;
}

std::vector<bool> spaced_layers(std::size_t layers, std::size_t spilled) {
  std::vector<bool> out(layers, false);
  for (std::size_t index = 0; index < std::min(spilled, layers); ++index) {
    out[index * layers / spilled] = true;
  }
  return out;
}

std::vector<std::uint64_t> resident_runs(const StepLoad& load,
                                         const std::vector<bool>& spilled,
                                         std::uint64_t room_bytes) {
  RunFiller filler(load, room_bytes);
  const std::uint64_t all = longest(load);
  std::vector<std::size_t> evenly;
  std::vector<std::size_t> sliding;
  for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
    if (!can_stay(load.layers[layer], all)) {
      sliding.push_back(layer);
    } else if (spilled[layer]) {
      evenly.push_back(layer);
    } else if (!filler.add_whole(layer)) {
      return {};
    }
  }
  if (filler.add_evenly(evenly)) {
    // Pages serve a window that slides only when they hold everything that the window comes to.
    for (const std::size_t layer : sliding) {
      if (!filler.add_whole(layer)) {
        break;
      }
    }
  }
  return filler.take();
}

Placement with_rest(const StepLoad& load,
                    const Pool& pool,
                    const Placement& before,
                    Placement placement,
                    std::uint64_t pages_max) {
  const auto left_bytes = [&] {
    return pool.bytes - std::min(pool.bytes, placed_bytes(load, pool, placement));
  };
  if (streamed_bytes(load, placement) == 0 && before.ring_slots > placement.ring_slots &&
      (before.ring_slots - placement.ring_slots) * pool.slot_bytes <= left_bytes()) {
    placement.ring_slots = before.ring_slots;
    placement.group_pages = before.group_pages;
  }
  // A window's whole or nothing; then runs, the shortest first, page by page in even rows.
  std::vector<std::size_t> runs;
  for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
    const LayerLoad& of = load.layers[layer];
    std::uint64_t& resident = placement.resident_pages[layer];
    if (of.rolling_pages == 0) {
      runs.push_back(layer);
    } else if (resident < of.rolling_pages && of.rolling_pages <= pages_max &&
               (of.rolling_pages - resident) * of.page_bytes * load.sequences_max <= left_bytes()) {
      resident = of.rolling_pages;
    }
  }
  for (;;) {
    std::uint64_t least = pages_max;
    for (const std::size_t layer : runs) {
      least = std::min(least, placement.resident_pages[layer]);
    }
    std::uint64_t next = pages_max;  // up to which the shortest ones grow together
    std::uint64_t row_bytes = 0;
    for (const std::size_t layer : runs) {
      const std::uint64_t resident = placement.resident_pages[layer];
      row_bytes += resident == least ? load.layers[layer].page_bytes * load.sequences_max : 0;
      next = resident > least ? std::min(next, resident) : next;
    }
    const std::uint64_t rows =
        row_bytes == 0 ? 0 : std::min(next - least, left_bytes() / row_bytes);
    if (rows == 0) {
      return placement;
    }
    for (const std::size_t layer : runs) {
      std::uint64_t& resident = placement.resident_pages[layer];
      resident += resident == least ? rows : 0;
    }
  }
}

}  // namespace kvspan
