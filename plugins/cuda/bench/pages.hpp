// SPDX-License-Identifier: Apache-2.0
// Geometries of the benchmark and pages of valid random rows. A page's content is a function of
// (layer, page), so that any run can be compared with any other and with the host's own arithmetic.
#pragma once

#include "kvspan/core/layout/geometry.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace kvspan::cuda_bench {

inline constexpr std::uint32_t kPageTokens = 256;

// "A" = 24 query heads, 4 KV heads, head size 256; "B" = 32, 8, 128; q8_0 K and q4_0 V unless told.
[[nodiscard]] LayerGeometry geometry_named(const std::string& name);

// Different pages of one layer geometry, encoded once. Thread class: ANY after construction.
class RandomPages {
 public:
  explicit RandomPages(const LayerGeometry& layer);

  [[nodiscard]] const PageLayout& layout() const { return layout_; }

  [[nodiscard]] const LayerGeometry& layer() const { return layer_; }

  // The page's bytes, page_bytes of the layout.
  [[nodiscard]] std::span<const std::byte> page(std::uint64_t layer, std::uint64_t page) const;

 private:
  LayerGeometry layer_;
  PageLayout layout_;
  std::vector<std::byte> pool_;  // [page, layout_.page_bytes]
};

// One RandomPages a geometry, made when it is first asked for.
class PagePool {
 public:
  [[nodiscard]] const RandomPages& of(const std::string& geometry);

 private:
  std::map<std::string, RandomPages> made_;
};

// A float in [-1, 1) from two integers. Source: the splitmix64 finaliser.
[[nodiscard]] float noise(std::uint64_t a, std::uint64_t b);

// Attention of one query row and head over tokens [0, visible_end) in double precision:
// head_size_v values. `q` has head_size_k elements.
[[nodiscard]] std::vector<double> exact_attention(const RandomPages& pages,
                                                  std::uint64_t layer,
                                                  std::uint64_t visible_end,
                                                  std::uint32_t kv_head,
                                                  std::span<const float> q,
                                                  double scale);

}  // namespace kvspan::cuda_bench
