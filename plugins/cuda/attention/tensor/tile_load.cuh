// SPDX-License-Identifier: Apache-2.0
// Where tiles lie: of pages laid out as core does, 64 tokens of a head one behind the other, so that a
// granule's rows begin at one address and end before the next tile. Device code only. Read next:
// load.cuh.
#pragma once

#include "attention/kernel.hpp"

#include <cstdint>

namespace kvspan::cuda::tensor {

struct TilePlaces {
  const uint8_t* k;
  const uint8_t* v;
};

// By a warp: the tiles of a span of one KV head. Small, since it lives in registers.
class TileCursor {
 public:
  template <class Owner>
  __device__ explicit TileCursor(const Owner& block) : kv_head_(block.opened().kv_head) {}

  __device__ void go_to(const SpanView& span) {
    if (span.first_token == first_token_) {
      return;
    }
    first_token_ = span.first_token;
    k_.begin(span.k, kv_head_);
    v_.begin(span.v, kv_head_);
    tiles_ = static_cast<uint32_t>((span.token_count + kTensorGranuleTokens - 1) /
                                   kTensorGranuleTokens);
    held_count_ = 0;
  }

  // Tile `tile` of the span; the whole warp asks for the same.
  __device__ TilePlaces at(uint32_t tile) {
    if (k_.list == nullptr && v_.list == nullptr) {
      return {k_.at(tile), v_.at(tile)};
    }
    if (tile - held_first_ >= held_count_) {
      const uint32_t mine = tile + threadIdx.x % 32;
      held_first_ = tile;
      held_count_ = 32;
      k_.held = k_.number(mine, tiles_);
      v_.held = v_.number(mine, tiles_);
    }
    const auto from = static_cast<int>(tile - held_first_);
    return {k_.at(__shfl_sync(~0u, k_.held, from)), v_.at(__shfl_sync(~0u, v_.held, from))};
  }

 private:
  struct Plane {
    const uint8_t* base = nullptr;  // of the KV head
    uint64_t stride = 0;            // bytes between tiles
    const uint32_t* list = nullptr;
    uint32_t held = 0;  // the place of a tile a lane

    __device__ void begin(const PlaneView& plane, uint32_t kv_head) {
      base = plane.base + uint64_t{kv_head} * plane.head_stride;
      stride = plane.page_stride;
      list = plane.page_list;
    }

    [[nodiscard]] __device__ uint32_t number(uint32_t tile, uint32_t tiles) const {
      return list != nullptr && tile < tiles ? list[tile] : tile;
    }

    [[nodiscard]] __device__ const uint8_t* at(uint32_t place) const {
      return base + uint64_t{place} * stride;
    }
  };

  uint32_t kv_head_;
  uint64_t first_token_ = UINT64_MAX;  // of the span
  uint32_t tiles_ = 0;
  uint32_t held_first_ = 0;  // the tile whose place lane 0 holds
  uint32_t held_count_ = 0;
  Plane k_;
  Plane v_;
};

}  // namespace kvspan::cuda::tensor
