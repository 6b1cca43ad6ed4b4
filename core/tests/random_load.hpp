// SPDX-License-Identifier: Apache-2.0
// Random loads and pools for the policy's properties, from one seed and a round.
#pragma once

#include "kvspan/core/policy/placement.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>

namespace kvspan::test {

struct LoadCase {
  StepLoad load;
  Pool pool;
  std::string text;  // enough to see the case in a report
};

class RandomLoads {
 public:
  explicit RandomLoads(std::uint64_t seed) : random_(seed), seed_(seed) {}

  // Equal layers, one sequence: what the systems that kvspan starts from can do.
  LoadCase uniform() {
    LoadCase out;
    const std::uint64_t layers = pick(1, pick(0, 3) == 0 ? 16 : 5);
    LayerLoad layer;
    layer.page_bytes = 425984;
    layer.gap_ns = spread(1e3, 3e6) * static_cast<double>(pick(0, 4) != 0);
    layer.attend_page_ns = spread(20.0, 20000.0);
    out.load.layers.assign(layers, layer);
    out.load.sequence_pages = {pick(1, pick(0, 3) == 0 ? 1024 : 100)};
    out.pool.slot_bytes = layer.page_bytes;
    const std::uint64_t most = layers * out.load.sequence_pages.front();
    out.pool.bytes = (layers + 1 + pick(0, most + most / 4)) * layer.page_bytes;
    finish(out);
    return out;
  }

  // Layers of several sizes, windows, sequences of unequal lengths.
  LoadCase mixed() {
    LoadCase out;
    const std::uint64_t layers = pick(1, 6);
    for (std::uint64_t index = 0; index < layers; ++index) {
      LayerLoad layer;
      layer.page_bytes = 1000 * pick(1, 400);
      layer.window_pages = pick(0, 3) == 0 ? pick(1, 30) : 0;
      layer.rolling_pages =
          layer.window_pages == 0 || pick(0, 1) == 0 ? 0 : layer.window_pages + pick(0, 9);
      layer.gap_ns = pick(0, 2) == 0 ? 0.0 : spread(1e3, 3e6);
      layer.attend_page_ns = spread(20.0, 20000.0);
      out.pool.slot_bytes = std::max(out.pool.slot_bytes, layer.page_bytes);
      out.load.layers.push_back(layer);
    }
    const std::uint64_t sequences = pick(1, 3);
    for (std::uint64_t index = 0; index < sequences; ++index) {
      out.load.sequence_pages.push_back(pick(0, 80));
    }
    out.load.sequences_max = static_cast<std::uint32_t>(sequences + pick(0, 1));
    out.pool.bytes = 2 * out.pool.slot_bytes + pick(0, layers * 80 * sequences * 300000);
    finish(out);
    return out;
  }

  std::uint64_t pick(std::uint64_t low, std::uint64_t high) {
    return low + random_() % (high - low + 1);
  }

 private:
  // Log-uniform: every order of magnitude alike.
  double spread(double low, double high) {
    const double part = static_cast<double>(random_() >> 11) / 9007199254740992.0;
    return low * std::pow(high / low, part);
  }

  void finish(LoadCase& out) {
    out.load.link = {spread(200.0, 20000.0), spread(1e9, 4e11)};
    out.load.jitter_ns = pick(0, 1) == 0 ? 0.0 : spread(1e3, 1e6);
    out.load.wave_ns = pick(0, 1) == 0 ? 0.0 : spread(500.0, 50000.0);
    out.text = "seed " + std::to_string(seed_) + ", round " + std::to_string(round_++) + ": " +
               std::to_string(out.load.layers.size()) + " layers, pages " +
               std::to_string(out.load.sequence_pages.front()) + ", pool " +
               std::to_string(out.pool.bytes) + ", slot " + std::to_string(out.pool.slot_bytes) +
               ", link " + std::to_string(out.load.link.bytes_s) + " B/s + " +
               std::to_string(out.load.link.copy_ns) + " ns, gap " +
               std::to_string(out.load.layers.front().gap_ns) + ", jitter " +
               std::to_string(out.load.jitter_ns) + ", wave " + std::to_string(out.load.wave_ns) +
               ", attend " + std::to_string(out.load.layers.front().attend_page_ns);
  }

  std::mt19937_64 random_;
  std::uint64_t seed_;
  std::uint64_t round_ = 0;
};

}  // namespace kvspan::test
