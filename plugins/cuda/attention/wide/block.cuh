// SPDX-License-Identifier: Apache-2.0
// What a block of the kernel for wide rows (prefill) is made of: 128 pairs of one KV head, and granules
// of 64 tokens that pass through four kinds of warps, each at the next one while others are behind:
//   4 loading warps        open items, bring rows as they come into slots (open.cuh, load.cuh)
//   4 making warps         K and V as f16 tiles that matrix instructions read (make.cuh)
//   2 x 4 attending warps  64 pairs each: scores, weights, u, outputs (attend.cuh, query.cuh, sums.cuh)
// Rows are the first operand of all products, so that an instruction takes 64 of them. A pair's bits
// depend on its own tokens and elements only. There are as many blocks as multiprocessors, and each takes
// every so-many-th item: while one item ends the next is opened and its first rows come, which was half
// of a short item's time. Device code only. Read first: tensor/block.cuh.
#pragma once

#include "attention/tensor/block.cuh"
#include "attention/wide/wgmma.cuh"

#include <cstdint>

namespace kvspan::cuda::wide {

using tensor::kTokens;

inline constexpr uint32_t kPairs = kWidePairs;
inline constexpr uint32_t kAttendWarps = kPairs / 16;
inline constexpr uint32_t kAttendThreads = 32 * kAttendWarps;
inline constexpr uint32_t kMakeWarps = 4;
inline constexpr uint32_t kGroupPairs = kPairs / 2;  // of a warpgroup of attending warps
inline constexpr uint32_t kGroupBarrier = 1;         // and 2, a warpgroup of attending warps each

// Of an attending thread: the number of its warpgroup, and its two pairs.
__device__ inline uint32_t own_group() {
  return threadIdx.x / 128;
}

__device__ inline uint32_t own_pair(uint32_t r) {
  return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
}

// An item that a block has opened, while the one before it goes on.
struct Item : tensor::Opened<kPairs> {
  bool over;  // there is none: the work was cancelled
};

// Numbers of each pair of the tile that the attending warps are at.
struct Pairs {
  int64_t position[kPairs];
  float slope[kPairs];
  float q_scale[kPairs];  // of a product with the normalised query, to natural units
};

// What a block knows.
struct Kept {
  alignas(16) uint8_t near[tensor::kNearBytes];
  Item items[2];                       // in turn
  SpanView spans[tensor::kLoadWarps];  // the one that a loading warp found last
  Pairs pairs;
  // Of every other granule: scales of K's blocks of 32 elements, where scale_place says; tokens whose V is
  // no number, 16 a making warp, which the products leave out.
  alignas(16) float scales[2][kHeadSizeMax / 32][kTokens];
  alignas(8) uint16_t odd[2][kMakeWarps];
  tensor::Granule granules[tensor::kSlotsMax];  // of slots
  uint64_t item_full[2];
  uint64_t item_empty[2];
  uint64_t v_wanted[tensor::kSlotsMax];
  uint64_t k_full[tensor::kSlotsMax];
  uint64_t k_empty[tensor::kSlotsMax];
  uint64_t v_full[tensor::kSlotsMax];
  uint64_t v_empty[tensor::kSlotsMax];
  uint64_t tile_full[4];
  uint64_t tile_empty[4];
};

// Where the scale of a token of the granule is kept: of each 32 the eight that an attending thread needs lie
// side by side.
__device__ inline uint32_t scale_place(uint32_t token) {
  return token / 32 * 32 + token % 8 / 2 * 8 + token % 32 / 8 * 2 + token % 2;
}

// Places in dynamic shared memory, bytes.
template <class K, class V>
struct Layout {
  static_assert(K::size_max == V::size_max && K::size_max % wgmma::kPanelElements == 0);
  using Numbers = Kept;
  static constexpr uint32_t size = K::size_max;
  static constexpr uint32_t panels = size / wgmma::kPanelElements;
  static constexpr uint32_t q_panel_bytes = kPairs * wgmma::kPanelRowBytes;
  static constexpr uint32_t tile_panel_bytes = kTokens * wgmma::kPanelRowBytes;
  static constexpr uint32_t tile_bytes = panels * tile_panel_bytes;
  // K and V of granules in turn. More than four would outrun Kept::scales.
  static constexpr uint32_t tiles = size == 256 ? 3 : 4;
  static constexpr uint32_t k_slot_bytes = tensor::round128(K::slot_bytes);
  static constexpr uint32_t v_slot_bytes = tensor::round128(V::slot_bytes);

  static constexpr uint32_t q_at = 0;
  static constexpr uint32_t tiles_at = q_at + panels * q_panel_bytes;
  static constexpr uint32_t numbers_at = tiles_at + tiles * tile_bytes;
  static constexpr uint32_t slots_at = numbers_at + tensor::round128(sizeof(Kept));
  static constexpr uint32_t slots_fit = (kShared227KiB - slots_at) / (k_slot_bytes + v_slot_bytes);
  static constexpr uint32_t slots = slots_fit < 4 ? slots_fit : 4;
  static_assert(slots >= 1);
  static constexpr uint32_t v_slots_at = slots_at + slots * k_slot_bytes;
  static constexpr uint32_t bytes = v_slots_at + slots * v_slot_bytes;
};

// The warps of a block, in this order.
struct Roles {
  static constexpr uint32_t first_maker = kAttendWarps;
  static constexpr uint32_t first_loader = first_maker + kMakeWarps;
  static constexpr uint32_t threads = 32 * (first_loader + tensor::kLoadWarps);

  static constexpr uint32_t registers = 128;
  static constexpr uint32_t attender_registers = 224;
  static constexpr uint32_t maker_registers = 40;
  static constexpr uint32_t loader_registers = 24;
  static_assert(kAttendThreads * attender_registers + 32 * kMakeWarps * maker_registers +
                    tensor::kLoadThreads * loader_registers <=
                registers * threads);
};

template <class K, class V>
struct Block : tensor::Sharing<Layout<K, V>> {
  using Places = Layout<K, V>;
  using Warps = Roles;
  static constexpr uint32_t pairs = kPairs;

  tensor::Ring items;  // where the item is that this role is at

  __device__ Item& opened() const { return this->kept().items[items.slot]; }

  // Beside the rows of a slot, by one thread.
  __device__ void tell(uint32_t slot, tensor::Granule granule) const {
    this->kept().granules[slot] = granule;
  }

  // By the attending warps, and those loading ones that do not open items: until there is one. False:
  // there is none any more.
  __device__ bool wait_for_item() const {
    ptx::wait(&this->kept().item_full[items.slot], items.parity);
    return !opened().over;
  }

  // By every thread: the item may go.
  __device__ void leave_item() {
    ptx::arrive(&this->kept().item_empty[items.slot]);
    items.next(2);
  }

  // Of f16 [panel][pair].
  __device__ uint8_t* q() const { return this->shared + Places::q_at; }

  // Of f16 [panel][token].
  __device__ uint8_t* tile(uint32_t number) const {
    return this->shared + Places::tiles_at + number * Places::tile_bytes;
  }
};

}  // namespace kvspan::cuda::wide
