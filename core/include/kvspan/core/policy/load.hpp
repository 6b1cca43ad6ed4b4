// SPDX-License-Identifier: Apache-2.0
// What a step asks of the device, layer by layer: the input of every policy. Numbers only: where
// pages lie is placement.hpp. Plain data.
#pragma once

#include "kvspan/core/policy/link.hpp"

#include <cstdint>
#include <vector>

namespace kvspan {

struct LayerLoad {
  std::uint64_t page_bytes = 0;
  std::uint64_t window_pages = 0;   // that a step sees at most; 0 = the whole history
  double gap_ns = 0.0;              // in which nobody consumes K/V, before this layer's attention
  double attend_page_ns = 0.0;      // attention of one page that is on the device
  std::uint64_t rolling_pages = 0;  // resident ones that hold all a window comes to; 0 = all pages
};

struct StepLoad {
  std::vector<LayerLoad> layers;
  std::vector<std::uint64_t> sequence_pages;  // [sequence of the step] complete pages of a layer
  std::uint32_t sequences_max = 1;            // that resident pages are kept for
  Link link;
  double jitter_ns = 0.0;  // by which a group may be late
  double wave_ns = 0.0;    // of each wave of a layer that streams, beyond its pages
};

// Pages of a layer that a step of one sequence sees.
[[nodiscard]] inline std::uint64_t visible_of(const LayerLoad& layer, std::uint64_t pages) {
  return layer.window_pages == 0 || layer.window_pages > pages ? pages : layer.window_pages;
}

// Whether a resident run from the first page keeps serving a layer: not where a window slides off.
[[nodiscard]] inline bool can_stay(const LayerLoad& layer, std::uint64_t pages) {
  return layer.window_pages == 0 || layer.window_pages >= pages;
}

// Resident pages with which a layer never streams, in a sequence of `pages` pages.
[[nodiscard]] inline std::uint64_t whole_of(const LayerLoad& layer, std::uint64_t pages) {
  return can_stay(layer, pages) || layer.rolling_pages == 0 || layer.rolling_pages > pages
             ? pages
             : layer.rolling_pages;
}

}  // namespace kvspan
