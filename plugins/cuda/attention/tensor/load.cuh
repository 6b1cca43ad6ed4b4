// SPDX-License-Identifier: Apache-2.0
// The loading warps: the rows of each granule that some pair sees, into the next free slots. Where core
// laid the pages out (tile_load.cuh), one warp does it with two bulk copies a granule. Else a warp takes
// every fourth granule, so that its chain of addresses may be four granules long. Of fewer slots than
// that, only as many warps work: a warp further ahead would take the end of a phase for that of the one
// before. Rows that follow each other come by one bulk copy, others in units of 16, 8 or 4 bytes, a lane
// each: bulk copies of single rows were seven times slower. Rows that are not aligned for that are
// copied two bytes a lane. Of page numbers 32 are fetched at once. Device code only.
#pragma once

#include "attention/held.cuh"
#include "attention/tensor/block.cuh"
#include "attention/tensor/cursor.cuh"
#include "attention/tensor/tile_load.cuh"
#include "plane.cuh"

namespace kvspan::cuda::tensor {

// A slot to fill.
struct Target {
  uint8_t* slot;
  uint64_t* full;
};

// `Owner`: the kernel's kind of block.
template <class K, class V, class Owner>
class Loader {
 public:
  static constexpr uint32_t slots = Owner::Places::slots;
  static constexpr uint32_t warps = slots < kLoadWarps ? slots : kLoadWarps;
  // As walk_tiles does: a warp begins when the one so many before it has its first keys, and goes on
  // when it has its own.
  static constexpr uint32_t kAtOnce = 2;

  __device__ explicit Loader(const Owner& block)
      : block_(block), warp_(threadIdx.x / 32 - Owner::Warps::first_loader), lane_(threadIdx.x % 32) {}

  // The warps that have something to do, the first ones.
  [[nodiscard]] __device__ static uint32_t working_warps(const Owner& block) {
    return loads_tiles(block) ? 1 : warps;
  }

  // The block as this warp sees it, for one that opens several items.
  __device__ Owner& block() { return block_; }

  // All granules of the item that is open.
  __device__ void walk() {
    if (warp_ >= working_warps(block_)) {
      return;
    }
    if (lane_ == 0) {
      span().token_count = 0;  // none found yet
    }
    __syncwarp();
    if (loads_tiles(block_)) {
      walk_tiles();
    } else {
      walk_every_fourth();
    }
  }

  // Behind the last item: nobody waits for a warp that had no granule at all.
  __device__ void end() {
    if (warp_ < working_warps(block_) && !loads_tiles(block_) && !began_) {
      wait_for_others();
      let_others_begin();
    }
  }

  // Behind the last item, for those who take granules without knowing of items: there are no more.
  __device__ void tell_over() {
    if ((loads_tiles(block_) ? 0 : before_) != warp_) {
      return;  // the next granule would be another warp's
    }
    ptx::wait(&block_.kept().k_empty[ring_.slot], ring_.parity ^ 1);
    if (lane_ == 0) {
      block_.tell(ring_.slot, Granule::over);
    }
    __syncwarp();
    ptx::arrive(&block_.kept().k_full[ring_.slot]);
  }

 private:
  [[nodiscard]] __device__ static bool loads_tiles(const Owner& block) {
    const Problem& problem = block.problem;
    return block.call.view.tiled != 0 && lies_dense(K::type(problem.k_type)) &&
           lies_dense(V::type(problem.v_type));
  }

  // By one warp. In the beginning two granules are asked for at once: what is asked for together
  // shares the card's rate, and the first of all slots' would be there last.
  __device__ void walk_tiles() {
    TileCursor tiles(block_);
    for_each_stretch(block_.opened(), [&](const Stretch& stretch) {
      for (uint32_t i = 0; i < stretch.granules; ++i) {
        if (number_ >= 2 && number_ < slots) {
          ptx::wait(&block_.kept().k_full[number_ - 2], 0);
        }
        if (stretch.is_open(i)) {
          load_tile(tiles, stretch.token(i));
        } else {
          load(stretch, i);
        }
        ring_.next(slots);
        number_ += number_ < slots ? 1 : 0;
      }
    });
  }

  // Every pair sees all of it. One lane does what there is to do.
  __device__ void load_tile(TileCursor& tiles, uint64_t first) {
    const SpanView& found = span();
    if (first < found.first_token || first - found.first_token >= found.token_count) {
      find_span(first);
    }
    tiles.go_to(found);
    const TilePlaces places = tiles.at(static_cast<uint32_t>((first - found.first_token) / kTokens));
    if (!ptx::kHasBulkCopies || lane_ == 0) {
      auto& kept = block_.kept();
      const Problem& problem = block_.problem;
      const uint32_t k_bytes =
          kTokens * K::stride(K::type(problem.k_type), K::elements(problem.head_size_k));
      const uint32_t v_bytes =
          kTokens * V::stride(V::type(problem.v_type), V::elements(problem.head_size_v));
      ptx::wait_idly(&kept.k_empty[ring_.slot], ring_.parity ^ 1);
      block_.tell(ring_.slot, Granule::open);
      load_all_of(block_.k_slot(ring_.slot), places.k, k_bytes, &kept.k_full[ring_.slot]);
      ptx::wait_idly(&kept.v_empty[ring_.slot], ring_.parity ^ 1);
      load_all_of(block_.v_slot(ring_.slot), places.v, v_bytes, &kept.v_full[ring_.slot]);
    }
    __syncwarp();
  }

  // By one lane, for the warp; without bulk copies by all of them.
  __device__ static void load_all_of(uint8_t* slot,
                                     const uint8_t* from,
                                     uint32_t bytes,
                                     uint64_t* full) {
#if __CUDA_ARCH__ >= 900
    ptx::arrive_expecting(full, bytes);
    ptx::bulk_load(slot, from, bytes, full);
    ptx::arrive(full, 31);
#else
    for (uint32_t at = 16 * (threadIdx.x % 32); at < bytes; at += 16 * 32) {
      ptx::load_unit<16>(slot + at, from + at);
    }
    ptx::arrive_behind_units(full);
#endif
  }

  // By all warps.
  __device__ void walk_every_fourth() {
    for_each_stretch(block_.opened(), [&](const Stretch& stretch) {
      uint32_t granule = (warp_ + warps - before_) % warps;
      for (uint32_t i = 0; i < stretch.granules; ++i) {
        if (i == granule) {
          if (!began_) {
            wait_for_others();
          }
          load(stretch, i);
          if (!began_) {
            ptx::wait(&block_.kept().k_full[ring_.slot], 0);
            let_others_begin();
          }
          began_ = true;
          granule += warps;
        }
        ring_.next(slots);
      }
      before_ = (before_ + stretch.granules) % warps;
    });
  }

  __device__ SpanView& span() const { return block_.kept().spans[warp_]; }

  __device__ void wait_for_others() const {
    if (warp_ >= kAtOnce) {
      ptx::sync(kLoadBarrier + warp_ - kAtOnce, 64);
    }
  }

  __device__ void let_others_begin() const {
    if (warp_ + kAtOnce < warps) {
      ptx::arrive_at(kLoadBarrier + warp_, 64);
    }
  }

  __device__ void load(const Stretch& stretch, uint32_t granule) {
    auto& kept = block_.kept();
    const bool latent = block_.problem.v_in_k != 0;
    const uint64_t first = stretch.token(granule);
    const uint64_t wanted = stretch.is_open(granule) ? ~0ull : wanted_of(first, stretch.stop);
    seek(first, wanted, latent);
    ptx::wait(&kept.k_empty[ring_.slot], ring_.parity ^ 1);
    if (lane_ == 0) {
      block_.tell(ring_.slot, stretch.is_open(granule) ? Granule::open : Granule::closed);
    }
    fill<K>({block_.k_slot(ring_.slot), &kept.k_full[ring_.slot]},
            block_.problem.k_type,
            block_.problem.head_size_k,
            false,
            k_rows_,
            first,
            wanted);
    ptx::wait(&kept.v_empty[ring_.slot], ring_.parity ^ 1);
    if (lane_ == 0) {
      kept.v_wanted[ring_.slot] = wanted;
    }
    fill<V>({block_.v_slot(ring_.slot), &kept.v_full[ring_.slot]},
            latent ? block_.problem.k_type : block_.problem.v_type,
            block_.problem.head_size_v,
            !latent,
            v_rows_,
            first,
            wanted);
  }

  // Both cursors to a granule.
  __device__ void seek(uint64_t first, uint64_t wanted, bool latent) {
    if (wanted == 0) {
      return;
    }
    const uint64_t token =
        first + static_cast<uint32_t>(__ffsll(static_cast<long long>(wanted)) - 1);
    const SpanView& found = span();
    if (token < found.first_token || token - found.first_token >= found.token_count) {
      find_span(token);
    }
    const uint32_t kv_head = block_.opened().kv_head;
    k_rows_.seek(found.k, found, first, token, kv_head);
    v_rows_.seek(latent ? found.k : found.v, found, first, token, kv_head);
  }

  // Tokens that some pair sees: no others may be touched, they may lie in no span.
  __device__ uint64_t wanted_of(uint64_t first, uint64_t stop) const {
    uint64_t bits = 0;
    const auto& opened = block_.opened();
    for (uint32_t pair = lane_; pair < opened.count; pair += 32) {
      bits |= visible_bits(opened, pair, first, stop);
    }
    const uint32_t low = __reduce_or_sync(~0u, static_cast<uint32_t>(bits));
    const uint32_t high = __reduce_or_sync(~0u, static_cast<uint32_t>(bits >> 32));
    return uint64_t{high} << 32 | low;
  }

  // All wanted tokens of a granule are in one span, since every span but the last ends on it.
  __device__ void find_span(uint64_t token) {
    const EntryView& entry = block_.opened().entry;
    __syncwarp();
    uint32_t low = 0;
    uint32_t high = entry.span_count;
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      const SpanView& at = entry.spans[middle];
      if (at.first_token + at.token_count <= token) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    copy_struct(&span(), &entry.spans[low]);
    if (lane_ == 0) {
      reach_all(block_.near(), span());
    }
    __syncwarp();
    k_rows_.holds = v_rows_.holds = false;
  }

  // Rows of the tokens in `wanted` of the granule from `first` on, of K or of V's own plane. Every
  // lane arrives once.
  template <class Side>
  __device__ void fill(const Target& to,
                       kvspan_type_t given_type,
                       uint32_t given_size,
                       bool of_v,
                       const Cursor& rows,
                       uint64_t first,
                       uint64_t wanted) {
    const kvspan_type_t type = Side::type(given_type);
    const uint32_t size = Side::elements(given_size);
    const uint32_t to_stride = Side::stride(type, size);
    const uint32_t row_bytes = bytes_of_row(type, size);
    // Of the granule's tokens all those that are wanted are in the same page.
    const uint32_t count = 64 - static_cast<uint32_t>(__clzll(static_cast<long long>(wanted)));
    const bool together = count <= rows.tokens && rows.stride != 0;
    const auto low = static_cast<uint32_t>(reinterpret_cast<uint64_t>(rows.base)) | to_stride;
#if __CUDA_ARCH__ >= 900
    const bool dense = rows.stride == to_stride && row_bytes == to_stride;
    const bool first_ones = (wanted & (wanted + 1)) == 0 && wanted != 0;
    if (together && dense && first_ones && ((low | count * row_bytes) & 15) == 0) {
      if (lane_ == 0) {
        ptx::arrive_expecting(to.full, count * row_bytes);
        ptx::bulk_load(to.slot, rows.base, count * row_bytes, to.full);
      } else {
        ptx::arrive(to.full);
      }
      return;
    }
#endif
    const uint32_t odd = low | rows.stride | row_bytes;
    if (!together || odd % 4 != 0) {
      copy_rows(to.slot, to_stride, row_bytes, of_v, first, wanted);
      ptx::arrive(to.full);
      return;
    }
    if (odd % 16 == 0) {
      load_rows<Side>(to.slot, to_stride, row_bytes, rows, wanted);
    } else if (odd % 8 == 0) {
      load_wanted<8>(to.slot, to_stride, row_bytes, rows, wanted);
    } else {
      load_wanted<4>(to.slot, to_stride, row_bytes, rows, wanted);
    }
    ptx::arrive_behind_units(to.full);
  }

  // Rows of units of 16 bytes.
  template <class Side>
  __device__ void load_rows(uint8_t* slot,
                            uint32_t slot_stride,
                            uint32_t row_bytes,
                            const Cursor& rows,
                            uint64_t wanted) const {
    if constexpr (Side::units != 0) {
      if (~wanted == 0) {
        load_all<Side::units>(slot, slot_stride, rows.base, rows.stride);
        return;
      }
    }
    load_wanted<16>(slot, slot_stride, row_bytes, rows, wanted);
  }

  // All rows of `kUnits` units. Lanes share a row or several as far as a power of two goes, and take
  // the units that are left a row each, so that an address costs one addition.
  template <uint32_t kUnits>
  __device__ void load_all(uint8_t* slot,
                           uint32_t slot_stride,
                           const uint8_t* base,
                           uint32_t stride) const {
    constexpr uint32_t kShared = kUnits >= 32 ? 32 : kUnits >= 16 ? 16 : kUnits >= 8 ? 8 : 4;
    constexpr uint32_t kRows = 32 / kShared;  // at once
    static_assert(kUnits == 0 || kUnits >= kShared);
    const uint32_t row = lane_ / kShared;
    const uint8_t* from = base + uint64_t{row} * stride + 16 * (lane_ % kShared);
    uint8_t* const to = slot + row * slot_stride + 16 * (lane_ % kShared);
    const uint64_t step = uint64_t{kRows} * stride;
#pragma unroll
    for (uint32_t i = 0; i < kTokens / kRows; ++i) {
      ptx::load_unit<16>(to + i * kRows * slot_stride, from);
      from += step;
    }
    for (uint32_t unit = kShared; unit < kUnits; ++unit) {
#pragma unroll
      for (uint32_t i = 0; i < kTokens / 32; ++i) {
        const uint32_t token = lane_ + 32 * i;
        ptx::load_unit<16>(slot + token * slot_stride + 16 * unit,
                       base + uint64_t{token} * stride + 16 * unit);
      }
    }
  }

  template <uint32_t kUnit>  // bytes
  __device__ void load_wanted(uint8_t* slot,
                              uint32_t slot_stride,
                              uint32_t row_bytes,
                              const Cursor& rows,
                              uint64_t wanted) const {
    const uint32_t units = row_bytes / kUnit;
    for (uint32_t number = lane_; number < kTokens * units; number += 32) {
      const uint32_t token = number / units;
      const uint32_t unit = number - token * units;
      if ((wanted >> token & 1) != 0) {
        ptx::load_unit<kUnit>(slot + token * slot_stride + kUnit * unit,
                              rows.base + uint64_t{token} * rows.stride + kUnit * unit);
      }
    }
  }

  // Two bytes a lane: no row is aligned for less.
  __device__ void copy_rows(uint8_t* slot,
                            uint32_t slot_stride,
                            uint32_t row_bytes,
                            bool of_v,
                            uint64_t first,
                            uint64_t wanted) const {
    const PlaneView& plane = of_v ? span().v : span().k;
    for (uint64_t left = wanted; left != 0; left &= left - 1) {
      const auto t = static_cast<uint32_t>(__ffsll(static_cast<long long>(left)) - 1);
      const uint8_t* const from =
          row_of(plane, first + t - span().first_token, block_.opened().kv_head);
      for (uint32_t at = 2 * lane_; at < row_bytes; at += 64) {
        *reinterpret_cast<uint16_t*>(slot + t * slot_stride + at) =
            *reinterpret_cast<const uint16_t*>(from + at);
      }
    }
    ptx::fence_async();  // the slot's next rows may come by a bulk copy
  }

  Owner block_;
  const uint32_t warp_;  // of the role
  const uint32_t lane_;
  Ring ring_;
  uint32_t number_ = 0;  // of the next granule, up to `slots`
  uint32_t before_ = 0;  // granules of the items before, modulo the warps
  bool began_ = false;
  Cursor k_rows_;
  Cursor v_rows_;
};

}  // namespace kvspan::cuda::tensor
