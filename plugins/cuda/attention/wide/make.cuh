// SPDX-License-Identifier: Apache-2.0
// The making warps: quantised rows of a granule as tiles of f16. K's are the blocks' whole numbers,
// exactly, and their scales are kept beside them, so that K is not rounded; V's are the values, rounded
// once. A warp makes 16 tokens; lanes 0 to 15 have one of two neighbouring blocks of 32 elements, the
// others the next, so that neighbouring lanes read and write different banks. Device code only.
#pragma once

#include "attention/tensor/k_operand.cuh"
#include "attention/tensor/ptx.cuh"
#include "attention/wide/block.cuh"

namespace kvspan::cuda::wide {

// A block of 32 quantised elements as it comes from shared memory.
template <class Side>
class QuantBlock {
 public:
  static constexpr kvspan_type_t type = Side::type(KVSPAN_TYPE_F32);
  static constexpr bool is_q8 = type == KVSPAN_TYPE_Q8_0;
  static_assert(is_q8 || type == KVSPAN_TYPE_Q4_0);
  static constexpr uint32_t bytes = block_shape(type).bytes;
  static constexpr uint32_t stride = Side::stride(type, Side::size_max);
  static constexpr uint32_t unit = stride % 16 == 0 ? 16 : 8;  // of a load
  static_assert(stride % unit == 0);
  static constexpr uint32_t units = (unit - 2 + bytes + unit - 1) / unit;
  // A larger one times the largest number could leave f16. Bits of f16.
  static constexpr uint32_t largest_scale = is_q8 ? 0x6000 : 0x6FFF;  // 512, 8188

  // Words around block 2 two + half of a row, half: 0 or 1. Loaded before the block before is made:
  // the compiler moves no load of shared memory over a store.
  struct Words {
    uint32_t all[units * unit / 4];

    __device__ void load(const uint8_t* row, uint32_t two, uint32_t half) {
      const uint8_t* const from = row + ((2 * two + half) * bytes & ~(unit - 1));
#pragma unroll
      for (uint32_t i = 0; i < units; ++i) {
        if constexpr (unit == 16) {
          const uint4 four = reinterpret_cast<const uint4*>(from)[i];
          all[4 * i] = four.x;
          all[4 * i + 1] = four.y;
          all[4 * i + 2] = four.z;
          all[4 * i + 3] = four.w;
        } else {
          const uint2 next = reinterpret_cast<const uint2*>(from)[i];
          all[2 * i] = next.x;
          all[2 * i + 1] = next.y;
        }
      }
    }
  };

  template <uint32_t kTwo>
  __device__ static QuantBlock of(const Words& words, uint32_t half) {
    // A pair of blocks is 4 bytes longer than units are, and the second begins 2 behind a word.
    static_assert(2 * bytes % unit == 4);
    constexpr uint32_t first = kTwo % (unit / 4);
    static_assert(first + bytes / 4 < units * unit / 4);
    QuantBlock out;
    out.scale_ = half == 0 ? words.all[first] & 0xFFFFu : words.all[first] >> 16;
#pragma unroll
    for (uint32_t i = 0; i < kWords; ++i) {
      out.words_[i] = __byte_perm(
          words.all[first + i], words.all[first + i + 1], half == 0 ? 0x5432 : 0x7654);
    }
    return out;
  }

  [[nodiscard]] __device__ uint32_t scale_bits() const { return scale_; }

  [[nodiscard]] __device__ float scale() const {
    return __half2float(__ushort_as_half(static_cast<uint16_t>(scale_)));
  }

  // Elements 8 i to 8 i + 7: the whole numbers.
  [[nodiscard]] __device__ uint4 numbers(uint32_t i) const {
    __half2 n[4];
    if constexpr (is_q8) {
      put(words_[2 * i] ^ 0x80808080u, n[0], n[1], 1152.0f);
      put(words_[2 * i + 1] ^ 0x80808080u, n[2], n[3], 1152.0f);
    } else {
      const uint32_t shift = i / 2 * 4;  // low halves of all bytes are elements 0 to 15
      put(words_[2 * (i % 2)] >> shift & 0x0F0F0F0Fu, n[0], n[1], 1032.0f);
      put(words_[2 * (i % 2) + 1] >> shift & 0x0F0F0F0Fu, n[2], n[3], 1032.0f);
    }
    return make_uint4(
        ptx::bits_of(n[0]), ptx::bits_of(n[1]), ptx::bits_of(n[2]), ptx::bits_of(n[3]));
  }

  // Whether a value could leave f16, or is no number.
  [[nodiscard]] __device__ bool is_large() const { return (scale_ & 0x7FFFu) > largest_scale; }

  // Elements 8 i to 8 i + 7, rounded, unless the block is large.
  [[nodiscard]] __device__ uint4 values(uint32_t i) const {
    const uint4 whole = numbers(i);
    const __half2 both = ptx::half2_of(scale_ | scale_ << 16);
    return make_uint4(ptx::bits_of(__hmul2(ptx::half2_of(whole.x), both)),
                      ptx::bits_of(__hmul2(ptx::half2_of(whole.y), both)),
                      ptx::bits_of(__hmul2(ptx::half2_of(whole.z), both)),
                      ptx::bits_of(__hmul2(ptx::half2_of(whole.w), both)));
  }

  // The same of any block: what f16 does not reach saturates, NaN and infinity stay.
  __device__ static uint4 any_values(const uint8_t* row, uint32_t first) {
    uint32_t words[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      words[i] = ptx::bits_of(
          __floats2half2_rn(tensor::saturated(tensor::element_at(type, row, first + 2 * i)),
                            tensor::saturated(tensor::element_at(type, row, first + 2 * i + 1))));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

 private:
  static constexpr uint32_t kWords = (bytes - 2) / 4;

  // Four bytes less a bias.
  __device__ static void put(uint32_t word, __half2& low, __half2& high, float bias) {
    low = __hsub2(tensor::bytes_as_half2<0x4140>(word), __float2half2_rn(bias));
    high = __hsub2(tensor::bytes_as_half2<0x4342>(word), __float2half2_rn(bias));
  }

  uint32_t scale_;
  uint32_t words_[kWords];
};

template <class K, class V>
class Maker {
 public:
  using Owner = Block<K, V>;
  using Places = typename Owner::Places;

  __device__ explicit Maker(const Owner& block)
      : block_(block),
        warp_(threadIdx.x / 32 - Roles::first_maker),
        token_(16 * warp_ + threadIdx.x % 16),
        half_(threadIdx.x % 32 / 16) {}

  // All granules that come, of whatever item: to know of items took more registers than there are.
  __device__ void walk() {
    auto& kept = block_.kept();
    for (;;) {
      ptx::wait(&kept.k_full[ring_.slot], ring_.parity);
      const tensor::Granule granule = kept.granules[ring_.slot];
      if (granule == tensor::Granule::over) {
        return;
      }
      make_k();
      make_v(granule == tensor::Granule::open);
      ring_.next(Places::slots);
      other_ ^= 1;
    }
  }

 private:
  __device__ uint8_t* begin_tile() const {
    ptx::wait(&block_.kept().tile_empty[tiles_.slot], tiles_.parity ^ 1);
    return block_.tile(tiles_.slot);
  }

  // `empty`: of the slot that was read.
  __device__ void end_tile(uint64_t* empty) {
    ptx::fence_async();
    __syncwarp();
    ptx::arrive_as_warp(&block_.kept().tile_full[tiles_.slot]);
    ptx::arrive_as_warp(empty);
    tiles_.next(Places::tiles);
  }

  // Unit `unit` of this lane's block 2 two + half.
  __device__ void put(uint8_t* tile, uint32_t two, uint32_t unit, const uint4& value) const {
    *reinterpret_cast<uint4*>(tile + two * Places::tile_panel_bytes +
                              wgmma::unit_place(token_, 4 * half_ + unit)) = value;
  }

  // Calls make(two, block) for this lane's blocks of a row.
  template <class Side, uint32_t kTwo = 0, class Make>
  __device__ void for_each_block(const uint8_t* row,
                                 const typename QuantBlock<Side>::Words& words,
                                 Make&& make) const {
    if constexpr (kTwo < Places::panels) {
      typename QuantBlock<Side>::Words next;
      if constexpr (kTwo + 1 < Places::panels) {
        next.load(row, kTwo + 1, half_);
      }
      make(kTwo, QuantBlock<Side>::template of<kTwo>(words, half_));
      for_each_block<Side, kTwo + 1>(row, next, make);
    }
  }

  template <class Side, class Make>
  __device__ void for_each_block(const uint8_t* row, Make&& make) const {
    typename QuantBlock<Side>::Words words;
    words.load(row, 0, half_);
    for_each_block<Side>(row, words, make);
  }

  __device__ void make_k() {
    auto& kept = block_.kept();
    uint8_t* const tile = begin_tile();
    for_each_block<K>(block_.k_slot(ring_.slot) + token_ * QuantBlock<K>::stride,
                      [&](uint32_t two, const QuantBlock<K>& block) {
                        kept.scales[other_][2 * two + half_][scale_place(token_)] = block.scale();
#pragma unroll
                        for (uint32_t i = 0; i < 4; ++i) {
                          put(tile, two, i, block.numbers(i));
                        }
                      });
    end_tile(&kept.k_empty[ring_.slot]);
  }

  // Of a token that some pair does not see, what is no number must not meet its weight of zero: it is
  // left out here, and added where it is seen (attend.cuh). Rows that were not asked for are zeros.
  __device__ void make_v(bool open) {
    auto& kept = block_.kept();
    ptx::wait(&kept.v_full[ring_.slot], ring_.parity);
    uint8_t* const tile = begin_tile();
    const uint8_t* const row = block_.v_slot(ring_.slot) + token_ * QuantBlock<V>::stride;
    bool large = false;
    bool odd = false;  // a scale is no number
    for_each_block<V>(row, [&](uint32_t two, const QuantBlock<V>& block) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        put(tile, two, i, block.values(i));
      }
      large = large || block.is_large();
      odd = odd || (block.scale_bits() & 0x7C00u) == 0x7C00u;
    });
    if (__any_sync(~0u, large ? 1 : 0) != 0) {
#pragma unroll 1
      for (uint32_t unit = 0; unit < 4 * Places::panels; ++unit) {
        put(tile,
            unit / 4,
            unit % 4,
            QuantBlock<V>::any_values(row, 64 * (unit / 4) + 32 * half_ + 8 * (unit % 4)));
      }
    }
    if (!open) {
      const bool wanted = (kept.v_wanted[ring_.slot] >> token_ & 1) != 0;
      const uint32_t odd_lanes = __ballot_sync(~0u, odd && wanted ? 1 : 0);
      const uint32_t odd_tokens = (odd_lanes | odd_lanes >> 16) & 0xFFFFu;
      if (threadIdx.x % 32 == 0) {
        kept.odd[other_][warp_] = static_cast<uint16_t>(odd_tokens);
      }
      if (!wanted || (odd_tokens >> threadIdx.x % 16 & 1) != 0) {
        for (uint32_t two = 0; two < Places::panels; ++two) {
          for (uint32_t i = 0; i < 4; ++i) {
            put(tile, two, i, make_uint4(0, 0, 0, 0));
          }
        }
      }
    }
    end_tile(&kept.v_empty[ring_.slot]);
  }

  const Owner block_;
  const uint32_t warp_;   // of the role
  const uint32_t token_;  // of the granule
  const uint32_t half_;
  uint32_t other_ = 0;  // of Kept's numbers of every other granule
  tensor::Ring ring_;   // of slots
  tensor::Ring tiles_;
};

}  // namespace kvspan::cuda::wide
