// SPDX-License-Identifier: Apache-2.0
// Read first: random_pages.hpp.
#include "kvspan/bench/random_pages.hpp"

#include "kvspan/sdk/reference/quant.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvspan::bench {

namespace {

// Different pages in the pool: enough that neighbours differ, few enough to encode in a second.
constexpr std::uint64_t kPages = 61;

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

struct Plane {
  kvspan_type_t type;
  std::uint32_t elements;  // of a head
  std::uint64_t (*offset)(const PageLayout& page, std::uint64_t row, std::uint64_t head);
};

// Every row of every head of a page.
void encode_plane(const Plane& plane,
                  const PageLayout& layout,
                  std::uint32_t heads,
                  std::uint64_t seed,
                  std::byte* page) {
  std::vector<float> row(plane.elements);
  for (std::uint64_t index = 0; index < layout.page_tokens; ++index) {
    for (std::uint64_t head = 0; head < heads; ++head) {
      for (std::uint64_t element = 0; element < plane.elements; ++element) {
        row[element] = noise(seed + index, head * plane.elements + element);
      }
      std::byte* const to = page + plane.offset(layout, index, head);
      (void)kvspan_ref_encode_row(plane.type, row.data(), plane.elements, to);
    }
  }
}

}  // namespace

float noise(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t x = mixed(mixed(a) + b);
  return static_cast<float>(static_cast<double>(x >> 11) / 4503599627370496.0 - 1.0);
}

Result<RandomPages> RandomPages::create(const LayerGeometry& layer,
                                        std::uint32_t page_tokens,
                                        std::uint64_t alignment) {
  auto layout = page_layout(layer, page_tokens, alignment);
  if (!layout) {
    return tl::unexpected(std::move(layout).error());
  }
  return RandomPages(layer, *layout);
}

RandomPages::RandomPages(const LayerGeometry& layer, const PageLayout& layout)
    : layer_(layer), layout_(layout) {
  pool_.resize(kPages * layout_.page_bytes);
  for (std::uint64_t page = 0; page < kPages; ++page) {
    std::byte* const at = pool_.data() + page * layout_.page_bytes;
    encode_plane(
        {layer.k_type, layer.head_size_k, k_row_offset}, layout, layer.kv_heads, page << 32, at);
    encode_plane({layer.v_type, layer.head_size_v, v_row_offset},
                 layout,
                 layer.kv_heads,
                 (page << 32) + (1ULL << 31),
                 at);
  }
}

std::span<const std::byte> RandomPages::page(std::uint64_t layer, std::uint64_t page) const {
  const std::uint64_t index = mixed((layer << 32) + page) % kPages;
  return {pool_.data() + index * layout_.page_bytes, layout_.page_bytes};
}

std::vector<double> exact_attention(const RandomPages& pages,
                                    std::uint64_t layer,
                                    std::uint64_t visible_end,
                                    std::uint32_t kv_head,
                                    std::span<const float> q,
                                    double scale) {
  const LayerGeometry& geometry = pages.layer();
  const PageLayout& layout = pages.layout();
  std::vector<float> k(geometry.head_size_k);
  std::vector<float> v(geometry.head_size_v);
  std::vector<double> scores(visible_end);
  double most = -std::numeric_limits<double>::infinity();
  const auto page_of = [&](std::uint64_t token) {
    return pages.page(layer, token / layout.page_tokens).data();
  };
  for (std::uint64_t token = 0; token < visible_end; ++token) {
    const std::byte* const row =
        page_of(token) + k_row_offset(layout, token % layout.page_tokens, kv_head);
    (void)kvspan_ref_decode_row(geometry.k_type, row, geometry.head_size_k, k.data());
    double dot = 0.0;
    for (std::size_t element = 0; element < k.size(); ++element) {
      dot += static_cast<double>(k[element]) * static_cast<double>(q[element]);
    }
    scores[token] = dot * scale;
    most = std::max(most, scores[token]);
  }
  std::vector<double> out(geometry.head_size_v);
  double sum = 0.0;
  for (std::uint64_t token = 0; token < visible_end; ++token) {
    const double weight = std::exp(scores[token] - most);
    sum += weight;
    if (weight < 1e-12) {
      continue;  // far below what the bound on the error can see
    }
    const std::byte* const row =
        page_of(token) + v_row_offset(layout, token % layout.page_tokens, kv_head);
    (void)kvspan_ref_decode_row(geometry.v_type, row, geometry.head_size_v, v.data());
    for (std::size_t element = 0; element < v.size(); ++element) {
      out[element] += weight * static_cast<double>(v[element]);
    }
  }
  for (double& value : out) {
    value /= sum;
  }
  return out;
}

}  // namespace kvspan::bench
