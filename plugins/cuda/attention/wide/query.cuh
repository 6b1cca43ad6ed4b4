// SPDX-License-Identifier: Apache-2.0
// Queries of a warpgroup's pairs as operands of the attending warps' products: 16 a warp. Device code
// only. Read next: attend.cuh.
#pragma once

#include "attention/tensor/open.cuh"
#include "attention/tensor/ptx.cuh"
#include "attention/wide/block.cuh"
#include "plane.cuh"

namespace kvspan::cuda::wide {

// Of the item that is open, by all warps of the group: ask(), then make().
template <class K, class V>
class Queries {
 public:
  using Owner = Block<K, V>;
  using Places = typename Owner::Places;
  static constexpr uint32_t size = Places::size;

  __device__ explicit Queries(const Owner& block)
      : block_(block), rows_(block.opened().entry.q), aligned_(are_aligned(rows_)) {}

  // Behind the products with those before. What else a warp fetches may be asked for behind this.
  __device__ void ask() {
    if (aligned_) {
      ask_for_all();
      return;
    }
#pragma unroll 1
    for (uint32_t i = 0; i < kAWarp; ++i) {
      store(first() + i, tensor::fetch_query<K>(block_, first() + i));
    }
  }

  __device__ void make() {
    if (aligned_) {
      ptx::wait_for_units();
      __syncwarp();
      // Eight lanes that read at once have eight rows that follow each other, and so different banks.
      const uint32_t lane = threadIdx.x % 32;
      make_half(first() + lane % kAWarp, rows_.type, lane / kAWarp);
    }
  }

 private:
  static constexpr uint32_t kAWarp = kGroupPairs / 4;
  static_assert(kAWarp == 16);

  [[nodiscard]] __device__ static uint32_t first() { return threadIdx.x / 32 * kAWarp; }

  // Whether each eight elements of 16 bits are one load.
  __device__ static bool are_aligned(const RowsView& rows) {
    return ((reinterpret_cast<uint64_t>(rows.base) | rows.row_stride | rows.head_stride) & 15) == 0;
  }

  // Rows of 16 bits are asked for, all at once, to where their operands will be; two lanes make a row what
  // it shall be there. Short loops: this code is fetched anew for each item.
  __device__ void ask_for_all() {
    const Item& opened = block_.opened();
    const uint32_t lane = threadIdx.x % 32;
    // Lane i has the row of this warp's i-th pair.
    const uint32_t mine = first() + lane % kAWarp;
    const tensor::PairPlace at = tensor::place_of(opened, block_.problem, mine);
    const auto row = reinterpret_cast<unsigned long long>(row_of(rows_, at.row, at.head));
#pragma unroll 4
    for (uint32_t i = 0; i < kAWarp; ++i) {
      const uint32_t pair = first() + i;
      const auto from = __shfl_sync(~0u, row, static_cast<int>(i));
      if (8 * lane >= size) {
        continue;
      }
      if (pair < opened.count) {
        ptx::load_unit<16>(unit_of(pair, lane), reinterpret_cast<const uint8_t*>(from) + 16 * lane);
      } else {
        *unit_of(pair, lane) = uint4{};
      }
    }
  }

  // Half a row that lies where its operand will be, with the lane that has the other half.
  __device__ void make_half(uint32_t pair, kvspan_type_t type, uint32_t half) {
    constexpr uint32_t kUnits = size / 16;
    tensor::Query query{};
#pragma unroll 4
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      tensor::widen(type, *unit_of(pair, half * kUnits + unit), query.values);
      tensor::find_most_of(query);
    }
    query.most = fmaxf(query.most, __shfl_xor_sync(~0u, query.most, kAWarp));
    const float down = tensor::power_of_two(-query.exponent());
#pragma unroll 4
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      uint4* const at = unit_of(pair, half * kUnits + unit);
      tensor::widen(type, *at, query.values);
      *at = operand_of(query, down);
    }
    tell_scale(pair, query, half == 0);
  }

  // Where eight elements of a query lie.
  [[nodiscard]] __device__ uint4* unit_of(uint32_t pair, uint32_t unit) const {
    return reinterpret_cast<uint4*>(block_.q() + unit / 8 * Places::q_panel_bytes +
                                    wgmma::unit_place(pair, unit % 8));
  }

  // Eight elements of a query as they are multiplied: divided by a power of two that brings its largest
  // near 1, so that it fits 16 bits whatever its size.
  __device__ static uint4 operand_of(const tensor::Query& query, float down) {
    uint32_t words[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      words[i] = ptx::bits_of(__floats2half2_rn(__fmul_rn(query.values[2 * i], down),
                                                __fmul_rn(query.values[2 * i + 1], down)));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  __device__ void tell_scale(uint32_t pair, const tensor::Query& query, bool first) {
    if (first) {
      block_.kept().pairs.q_scale[pair] =
          __fmul_rn(block_.problem.scale, tensor::power_of_two(query.exponent()));
    }
  }

  // A warp: a query of which each lane has eight elements.
  __device__ void store(uint32_t pair, const tensor::Query& query) {
    const uint32_t lane = threadIdx.x % 32;
    tell_scale(pair, query, lane == 0);
    if (8 * lane < size) {
      *unit_of(pair, lane) = operand_of(query, tensor::power_of_two(-query.exponent()));
    }
  }

  const Owner& block_;
  const RowsView& rows_;
  const bool aligned_;
};

}  // namespace kvspan::cuda::wide
