// SPDX-License-Identifier: Apache-2.0
// The search: groups x layers that stream x ring sizes. The candidates follow from the load alone,
// but for the largest ring that a pool holds, so that a larger pool has every candidate of a
// smaller one, with at least its residents: that makes more memory never slower.
#include "kvspan/core/policy/placement.hpp"
#include "kvspan/core/policy/step_time.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace kvspan {

namespace {

// Numbers of spilled layers that are tried; all of them up to this many layers.
constexpr std::size_t kSpilledMax = 64;

// Layers looked at in a search, over all placements tried: a second's work. Real loads take a
// thousandth of it; without an end, thousands of layers in a huge pool would take hours.
constexpr std::uint64_t kLayersLookedAtMax = 40'000'000;

tl::unexpected<Error> wrong_load(std::string message) {
  return tl::unexpected(error_of(Errc::invalid_argument, std::move(message), "policy"));
}

bool is_time(double value) {
  return std::isfinite(value) && value >= 0.0;
}

Result<void> check_load(const StepLoad& load, const Pool& pool) {
  if (load.layers.empty() || load.sequence_pages.empty() || load.sequences_max == 0) {
    return wrong_load("a step has at least one layer and one sequence");
  }
  if (!std::isfinite(load.link.bytes_s) || load.link.bytes_s <= 0.0 ||
      !is_time(load.link.copy_ns) || !is_time(load.jitter_ns) || !is_time(load.wave_ns)) {
    return wrong_load(
        "the link's rate must be above 0 and its times not below; measure them again");
  }
  for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
    const LayerLoad& of = load.layers[layer];
    if (of.page_bytes == 0 || of.page_bytes > pool.slot_bytes || !is_time(of.gap_ns) ||
        !is_time(of.attend_page_ns)) {
      return wrong_load("layer " + std::to_string(layer) + " has pages of " +
                        std::to_string(of.page_bytes) + " bytes for slots of " +
                        std::to_string(pool.slot_bytes) +
                        ", or a time below 0; pages are 1 byte to a slot");
    }
  }
  return {};
}

Error no_ring(const Pool& pool, std::uint64_t slots) {
  const std::uint64_t required = slots * pool.slot_bytes;
  return Error{Errc::device_memory,
               "a ring of " + std::to_string(slots) + " slots takes " + std::to_string(required) +
                   " bytes, but the pool has " + std::to_string(pool.bytes) +
                   "; give it a larger arena",
               required,
               pool.bytes,
               required - pool.bytes,
               "ring"};
}

// Looks for the best placement of one pool.
class Search {
 public:
  Search(const StepLoad& load, const Pool& pool) : load_(load), pool_(pool) {}

  [[nodiscard]] std::optional<Placement> best() {
    const std::size_t layers = load_.layers.size();
    if (everything_resident()) {
      return best_;
    }
    const std::size_t tries = std::min(layers, kSpilledMax);
    for (std::size_t index = tries; index >= 1; --index) {
      spilled_ = spaced_layers(layers, (index * layers + tries - 1) / tries);
      const std::uint64_t whole = whole_bytes();
      if (whole > pool_.bytes) {
        break;
      }
      const std::uint64_t most =
          std::min<std::uint64_t>((pool_.bytes - whole) / pool_.slot_bytes, UINT32_MAX);
      for (group_ = kGroupMax; group_ >= 1; group_ /= 2) {
        if (2ULL * group_ <= most) {
          consider(2ULL * group_);
          consider(most);
          search(2ULL * group_, most);
        }
      }
    }
    if (best_) {
      trim(*best_);
    }
    return best_;
  }

 private:
  // A placement and what it costs.
  struct Tried {
    Placement placement;
    double step_ns = std::numeric_limits<double>::infinity();
    std::uint64_t bytes = UINT64_MAX;
  };

  // Times that differ by rounding alone are the same.
  [[nodiscard]] bool is_better(const Tried& tried) const {
    return tried.step_ns < least_ns_ * (1.0 - kSameTime) ||
           (tried.step_ns <= least_ns_ * (1.0 + kSameTime) && tried.bytes < best_bytes_);
  }

  // The smallest ring that is predicted no slower: a larger one would only take memory.
  void trim(Placement& placement) const {
    std::uint32_t low = std::min(placement.ring_slots, 2 * placement.group_pages);
    std::uint32_t high = placement.ring_slots;
    while (low < high) {
      placement.ring_slots = low + (high - low) / 2;
      const bool holds = predict(load_, placement).step_ns <= least_ns_ * (1.0 + 2.0 * kSameTime);
      (holds ? high : low) = placement.ring_slots + (holds ? 0 : 1);
    }
    placement.ring_slots = high;
  }

  bool everything_resident() {
    Placement placement;
    placement.resident_pages =
        resident_runs(load_, std::vector<bool>(load_.layers.size(), false), pool_.bytes);
    if (placement.resident_pages.empty() || streamed_bytes(load_, placement) != 0) {
      return false;
    }
    best_ = std::move(placement);
    return true;
  }

  // Of the layers that are not spilled.
  [[nodiscard]] std::uint64_t whole_bytes() const {
    std::uint64_t pages = 0;
    for (const std::uint64_t of_sequence : load_.sequence_pages) {
      pages = std::max(pages, of_sequence);
    }
    std::uint64_t bytes = 0;
    for (std::size_t layer = 0; layer < spilled_.size(); ++layer) {
      if (!spilled_[layer] && can_stay(load_.layers[layer], pages)) {
        bytes += pages * load_.layers[layer].page_bytes * load_.sequences_max;
      }
    }
    return bytes;
  }

  // The residents that `beside` slots leave room for, with a ring of `slots`.
  [[nodiscard]] Tried try_out(std::uint64_t slots, std::uint64_t beside) {
    Tried tried;
    looked_at_ += load_.layers.size();
    tried.placement.ring_slots = static_cast<std::uint32_t>(slots);
    tried.placement.group_pages = group_;
    tried.placement.resident_pages =
        resident_runs(load_, spilled_, pool_.bytes - beside * pool_.slot_bytes);
    const StepTime time = predict(load_, tried.placement);
    tried.step_ns = time.step_ns;
    tried.bytes = time.streamed_bytes;
    return tried;
  }

  void consider(std::uint64_t slots) {
    Tried tried = try_out(slots, slots);
    if (is_better(tried)) {
      least_ns_ = std::min(least_ns_, tried.step_ns);
      best_bytes_ = tried.bytes;
      best_ = std::move(tried.placement);
    }
  }

  // Rings between two that were considered. No ring there can beat the larger of them with the
  // residents of the smaller: where that is no better than the best, none needs a look.
  void search(std::uint64_t low, std::uint64_t high) {
    if (high - low < 2 || looked_at_ > kLayersLookedAtMax || !is_better(try_out(high, low))) {
      return;
    }
    const std::uint64_t middle = low + (high - low) / 2;
    consider(middle);
    search(low, middle);
    search(middle, high);
  }

  const StepLoad& load_;
  const Pool& pool_;
  std::vector<bool> spilled_;
  std::uint32_t group_ = 1;
  std::uint64_t looked_at_ = 0;
  double least_ns_ = std::numeric_limits<double>::infinity();
  std::uint64_t best_bytes_ = UINT64_MAX;
  std::optional<Placement> best_;
};

}  // namespace

Result<Placement> best_placement(const StepLoad& load, const Pool& pool) {
  if (auto checked = check_load(load, pool); !checked) {
    return tl::unexpected(std::move(checked).error());
  }
  auto best = Search(load, pool).best();
  if (!best) {
    return tl::unexpected(no_ring(pool, 2));
  }
  return *best;
}

Result<Placement> admit_whole_layer(const StepLoad& load,
                                    const Pool& pool,
                                    const Placement& placement,
                                    std::size_t layer) {
  if (auto checked = check_load(load, pool); !checked) {
    return tl::unexpected(std::move(checked).error());
  }
  if (layer >= load.layers.size() || placement.resident_pages.size() != load.layers.size()) {
    return wrong_load("there is no layer " + std::to_string(layer) + " of " +
                      std::to_string(load.layers.size()) + " in this placement");
  }
  if (streamed_pages(load, placement, layer) <= placement.ring_slots) {
    return placement;
  }
  Placement out = placement;
  const std::vector<bool> all(load.layers.size(), true);
  std::uint64_t needed = 0;
  for (std::uint64_t slots = placement.ring_slots; slots <= pool.bytes / pool.slot_bytes;
       slots = std::max(slots + 1, std::min(needed, pool.bytes / pool.slot_bytes))) {
    out.ring_slots = static_cast<std::uint32_t>(slots);
    out.resident_pages = resident_runs(load, all, pool.bytes - slots * pool.slot_bytes);
    needed = streamed_pages(load, out, layer);
    if (needed <= slots) {
      return out;
    }
  }
  return tl::unexpected(no_ring(pool, needed));
}

}  // namespace kvspan
