// SPDX-License-Identifier: Apache-2.0
// Pages of valid random rows. A page's content is a function of (layer, page), so that any run can
// be compared with any other and with the host's own arithmetic. Never zeros: they hide unwritten
// outputs and can run faster than real data.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/layout/geometry.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvspan::bench {

// A float in [-1, 1) from two integers. Source: the splitmix64 finaliser.
[[nodiscard]] float noise(std::uint64_t a, std::uint64_t b);

// Queries of random rows are this much larger than K: scores then spread by about 4, so that some
// tokens matter far more than others and a wrong one is seen.
inline constexpr float kQueryScale = 12.0F;

// A pool of different pages of one layer geometry, encoded once. Thread class: ANY.
class RandomPages {
 public:
  // Errors: page_layout()'s.
  [[nodiscard]] static Result<RandomPages> create(const LayerGeometry& layer,
                                                  std::uint32_t page_tokens,
                                                  std::uint64_t alignment);

  [[nodiscard]] const PageLayout& layout() const { return layout_; }

  [[nodiscard]] const LayerGeometry& layer() const { return layer_; }

  // The page's bytes, page_bytes of the layout.
  [[nodiscard]] std::span<const std::byte> page(std::uint64_t layer, std::uint64_t page) const;

  // Bytes of a token's live rows, K and V.
  [[nodiscard]] std::uint64_t token_bytes() const {
    return layout_.k_token_bytes + layout_.v_token_bytes;
  }

 private:
  RandomPages(const LayerGeometry& layer, const PageLayout& layout);

  LayerGeometry layer_;
  PageLayout layout_;
  std::vector<std::byte> pool_;  // [page, layout_.page_bytes]
};

// Attention of one query row and head over tokens [0, visible_end) of a layer in double precision:
// head_size_v values. `q` has head_size_k elements.
[[nodiscard]] std::vector<double> exact_attention(const RandomPages& pages,
                                                  std::uint64_t layer,
                                                  std::uint64_t visible_end,
                                                  std::uint32_t kv_head,
                                                  std::span<const float> q,
                                                  double scale);

}  // namespace kvspan::bench
