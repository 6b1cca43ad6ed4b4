// SPDX-License-Identifier: Apache-2.0
// The bytes of rows, planes and pages. Every sum and product is checked: a size that wrapped would
// be allocated.
// Read next: kv_type.cpp for what a row takes.
#include "kvspan/core/layout/geometry.hpp"

#include "kvspan/core/layout/checked.hpp"
#include "kvspan/core/layout/kv_type.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace kvspan {
namespace {

tl::unexpected<Error> refuse(std::string message) {
  return tl::unexpected(Error{Errc::invalid_argument, std::move(message)});
}

tl::unexpected<Error> refuse_overflow(const std::string& what) {
  return tl::unexpected(Error{Errc::too_large,
                              what + " takes more bytes than 64 bits can count; use fewer tokens, "
                                     "fewer heads or smaller heads"});
}

// "layer 3: <why>", so that one sentence says where and what.
tl::unexpected<Error> of_layer(Error error, std::size_t layer) {
  error.component = "layer " + std::to_string(layer);
  error.message = error.component + ": " + error.message;
  return tl::unexpected(std::move(error));
}

Result<std::uint64_t> named_row_bytes(const char* field, kvspan_type_t type, std::uint32_t size) {
  if (size == 0) {
    return refuse(std::string(field) + " head size is 0; it must be at least 1 element");
  }
  auto bytes = row_bytes(type, size);
  if (!bytes) {
    bytes.error().message = std::string(field) + ": " + bytes.error().message;
  }
  return bytes;
}

Result<void> check_heads(const LayerGeometry& layer) {
  if (layer.kv_heads == 0) {
    return refuse("kv_heads is 0; a layer has at least 1 KV head");
  }
  if (layer.q_heads == 0) {
    return refuse("q_heads is 0; a layer has at least 1 query head");
  }
  if (layer.q_heads % layer.kv_heads != 0) {
    return refuse("q_heads " + std::to_string(layer.q_heads) + " is not a multiple of kv_heads " +
                  std::to_string(layer.kv_heads) +
                  "; every KV head serves the same number of query heads");
  }
  return {};
}

Result<void> check_v_in_k(const LayerGeometry& layer) {
  if (layer.v_type != layer.k_type) {
    return refuse("v_type differs from k_type although V lies in K's row; give both the same type");
  }
  if (layer.head_size_v > layer.head_size_k) {
    return refuse("V head size " + std::to_string(layer.head_size_v) +
                  " is larger than K head size " + std::to_string(layer.head_size_k) +
                  " although V lies in K's row; V can be at most as wide as K");
  }
  return {};
}

Result<void> check_page(std::uint32_t page_tokens,
                        std::uint64_t alignment,
                        std::uint32_t tile_tokens_max,
                        std::uint64_t row_alignment) {
  if (page_tokens == 0) {
    return refuse("page_tokens is 0; a page holds at least 1 token, 256 is usual");
  }
  if (!is_power_of_two(alignment)) {
    return refuse("alignment " + std::to_string(alignment) +
                  " is not a power of two; use 128, or the device's memory alignment");
  }
  if (!is_power_of_two(tile_tokens_max)) {
    return refuse("tile_tokens_max " + std::to_string(tile_tokens_max) +
                  " is not a power of two; use 64");
  }
  if (!is_power_of_two(row_alignment) || row_alignment > alignment) {
    return refuse("row_alignment " + std::to_string(row_alignment) +
                  " is not a power of two up to the alignment, " + std::to_string(alignment) +
                  "; use what the device's copies are aligned to, and an alignment of as much");
  }
  return {};
}

// Bytes of one side of a tile; nothing where one does not fit 64 bits.
struct TileSide {
  std::uint64_t head_bytes;
  std::uint64_t bytes;
  std::uint64_t padded_bytes;
};

std::optional<TileSide> tile_side(std::uint64_t row_bytes,
                                  std::uint32_t tokens,
                                  std::uint32_t heads,
                                  std::uint64_t alignment) {
  const auto head = checked_mul(row_bytes, tokens);
  if (!head) {
    return std::nullopt;
  }
  const auto bytes = checked_mul(*head, heads);
  if (!bytes) {
    return std::nullopt;
  }
  const auto padded = checked_align_up(*bytes, alignment);
  if (!padded) {
    return std::nullopt;
  }
  return TileSide{*head, *bytes, *padded};
}

// Fills head, token, tile and page sizes from the rows; false when one does not fit 64 bits.
bool place_tiles(PageLayout& page, const LayerGeometry& layer, std::uint64_t alignment) {
  const std::uint64_t v_row = layer.v_in_k ? 0 : page.v_row_bytes;
  const auto k = tile_side(page.k_row_bytes, page.tile_tokens, layer.kv_heads, alignment);
  const auto v = tile_side(v_row, page.tile_tokens, layer.kv_heads, alignment);
  if (!k || !v) {
    return false;
  }
  const auto tile = checked_add(k->padded_bytes, v->padded_bytes);
  if (!tile) {
    return false;
  }
  const auto total = checked_mul(*tile, page.page_tokens / page.tile_tokens);
  if (!total) {
    return false;
  }
  page.k_head_bytes = k->head_bytes;
  page.v_head_bytes = v->head_bytes;
  page.k_token_bytes = page.k_row_bytes * layer.kv_heads;  // at most a tile's, which fits
  page.v_token_bytes = v_row * layer.kv_heads;
  page.k_tile_bytes = k->bytes;
  page.v_tile_bytes = v->bytes;
  page.v_offset = layer.v_in_k ? 0 : k->padded_bytes;
  page.tile_bytes = *tile;
  page.page_bytes = *total;
  return true;
}

}  // namespace

std::uint32_t tile_tokens(std::uint32_t page_tokens, std::uint32_t tile_tokens_max) {
  return page_tokens <= tile_tokens_max ? page_tokens : std::gcd(page_tokens, tile_tokens_max);
}

std::uint64_t k_row_offset(const PageLayout& page, std::uint64_t row, std::uint64_t head) {
  return row / page.tile_tokens * page.tile_bytes + head * page.k_head_bytes +
         row % page.tile_tokens * page.k_row_bytes;
}

std::uint64_t v_row_offset(const PageLayout& page, std::uint64_t row, std::uint64_t head) {
  return row / page.tile_tokens * page.tile_bytes + page.v_offset + head * page.v_head_bytes +
         row % page.tile_tokens * page.v_row_bytes;
}

Result<PageLayout> page_layout(const LayerGeometry& layer,
                               std::uint32_t page_tokens,
                               std::uint64_t alignment,
                               std::uint32_t tile_tokens_max,
                               std::uint64_t row_alignment) {
  if (auto page = check_page(page_tokens, alignment, tile_tokens_max, row_alignment); !page) {
    return tl::unexpected(std::move(page.error()));
  }
  if (auto heads = check_heads(layer); !heads) {
    return tl::unexpected(std::move(heads.error()));
  }
  auto k_row = named_row_bytes("K", layer.k_type, layer.head_size_k);
  if (!k_row) {
    return tl::unexpected(std::move(k_row.error()));
  }
  auto v_row = named_row_bytes("V", layer.v_type, layer.head_size_v);
  if (!v_row) {
    return tl::unexpected(std::move(v_row.error()));
  }
  if (layer.v_in_k) {
    if (auto inside = check_v_in_k(layer); !inside) {
      return tl::unexpected(std::move(inside.error()));
    }
  }
  PageLayout page{};
  page.page_tokens = page_tokens;
  page.tile_tokens = tile_tokens(page_tokens, tile_tokens_max);
  page.k_row_bytes = align_up(*k_row, row_alignment);
  page.v_row_bytes = align_up(*v_row, row_alignment);
  if (!place_tiles(page, layer, alignment)) {
    return refuse_overflow("a page of " + std::to_string(page_tokens) + " tokens");
  }
  return page;
}

Result<std::vector<PageLayout>> page_layouts(const Geometry& geometry) {
  if (auto page = check_page(geometry.page_tokens,
                             geometry.alignment,
                             geometry.tile_tokens_max,
                             geometry.row_alignment);
      !page) {
    return tl::unexpected(std::move(page.error()));
  }
  if (geometry.layers.empty()) {
    return refuse("layers is empty; a history has at least 1 layer");
  }
  std::vector<PageLayout> pages;
  pages.reserve(geometry.layers.size());
  for (std::size_t i = 0; i < geometry.layers.size(); ++i) {
    auto page = page_layout(geometry.layers[i],
                            geometry.page_tokens,
                            geometry.alignment,
                            geometry.tile_tokens_max,
                            geometry.row_alignment);
    if (!page) {
      return of_layer(std::move(page.error()), i);
    }
    pages.push_back(*page);
  }
  return pages;
}

Result<std::uint64_t> live_bytes(const Geometry& geometry, std::uint64_t tokens) {
  auto pages = page_layouts(geometry);
  if (!pages) {
    return tl::unexpected(std::move(pages.error()));
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < pages->size(); ++i) {
    const std::uint64_t window = geometry.layers[i].window_tokens;
    const std::uint64_t live_tokens = window == 0 ? tokens : std::min(tokens, window);
    // The sum cannot overflow: both are at most a page's bytes, which page_layout has checked.
    const std::uint64_t token_bytes = (*pages)[i].k_token_bytes + (*pages)[i].v_token_bytes;
    const auto layer_bytes = checked_mul(live_tokens, token_bytes);
    const auto sum = layer_bytes ? checked_add(total, *layer_bytes) : std::nullopt;
    if (!sum) {
      return of_layer(refuse_overflow("a history of " + std::to_string(tokens) + " tokens").value(),
                      i);
    }
    total = *sum;
  }
  return total;
}

Result<std::uint64_t> page_count(std::uint64_t tokens, std::uint32_t page_tokens) {
  const auto pages = checked_ceil_div(tokens, page_tokens);
  if (!pages) {
    return refuse("page_tokens is 0; a page holds at least 1 token, 256 is usual");
  }
  return *pages;
}

Result<std::vector<std::uint64_t>> pages_per_parent(std::uint64_t pages,
                                                    std::uint64_t page_bytes,
                                                    std::uint64_t allocation_bytes_max) {
  if (page_bytes == 0) {
    return refuse("page_bytes is 0; take it from page_layout");
  }
  const std::uint64_t fit = allocation_bytes_max / page_bytes;
  if (fit == 0) {
    Error error{Errc::too_large,
                "a page of " + std::to_string(page_bytes) + " bytes is larger than the " +
                    std::to_string(allocation_bytes_max) +
                    " bytes that one allocation may have; use fewer tokens a page"};
    error.required = page_bytes;
    error.provided = allocation_bytes_max;
    error.missing = page_bytes - allocation_bytes_max;
    return tl::unexpected(std::move(error));
  }
  std::vector<std::uint64_t> parents(pages / fit, fit);
  if (pages % fit != 0) {
    parents.push_back(pages % fit);
  }
  return parents;
}

}  // namespace kvspan
