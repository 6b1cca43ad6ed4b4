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

  // Block 2 kTwo + half of a row, half: 0 or 1.
  template <uint32_t kTwo>
  __device__ static QuantBlock load(const uint8_t* row, uint32_t half) {
    const uint8_t* const from = row + ((2 * kTwo + half) * bytes & ~(unit - 1));
    uint32_t words[units * unit / 4];
#pragma unroll
    for (uint32_t i = 0; i < units; ++i) {
      if constexpr (unit == 16) {
        const uint4 four = reinterpret_cast<const uint4*>(from)[i];
        words[4 * i] = four.x;
        words[4 * i + 1] = four.y;
        words[4 * i + 2] = four.z;
        words[4 * i + 3] = four.w;
      } else {
        const uint2 two = reinterpret_cast<const uint2*>(from)[i];
        words[2 * i] = two.x;
        words[2 * i + 1] = two.y;
      }
    }
    // A pair of blocks is 4 bytes longer than units are, and the second begins 2 behind a word.
    static_assert(2 * bytes % unit == 4);
    constexpr uint32_t first = kTwo % (unit / 4);
    static_assert(first + bytes / 4 < units * unit / 4);
    QuantBlock out;
    out.scale_ = half == 0 ? words[first] & 0xFFFFu : words[first] >> 16;
#pragma unroll
    for (uint32_t i = 0; i < kWords; ++i) {
      out.words_[i] =
          __byte_perm(words[first + i], words[first + i + 1], half == 0 ? 0x5432 : 0x7654);
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

  // The same times the scale, rounded; what f16 does not reach saturates, NaN and infinity stay.
  [[nodiscard]] __device__ uint4 values(uint32_t i) const {
    const uint4 whole = numbers(i);
    const uint32_t words[4] = {whole.x, whole.y, whole.z, whole.w};
    uint32_t out[4];
    if ((scale_ & 0x7FFFu) <= largest_scale) {
      const __half2 both = ptx::half2_of(scale_ | scale_ << 16);
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        out[k] = ptx::bits_of(__hmul2(ptx::half2_of(words[k]), both));
      }
    } else {
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        const float2 two = __half22float2(ptx::half2_of(words[k]));
        out[k] = ptx::bits_of(__floats2half2_rn(tensor::saturated(__fmul_rn(two.x, scale())),
                                                tensor::saturated(__fmul_rn(two.y, scale()))));
      }
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
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

  __device__ void walk() {
    tensor::for_each_stretch(block_.kept(), [&](const tensor::Stretch& stretch) {
      for (uint32_t i = 0; i < stretch.granules; ++i) {
        make_k();
        make_v(stretch.is_open(i));
        ring_.next(Places::slots);
        other_ ^= 1;
      }
    });
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
    if (threadIdx.x % 32 == 0) {
      ptx::arrive(&block_.kept().tile_full[tiles_.slot]);
      ptx::arrive(empty);
    }
    tiles_.next(Places::tiles);
  }

  // Unit `unit` of this lane's block 2 two + half.
  __device__ void put(uint8_t* tile, uint32_t two, uint32_t unit, const uint4& value) const {
    *reinterpret_cast<uint4*>(tile + two * Places::tile_panel_bytes +
                              wgmma::unit_place(token_, 4 * half_ + unit)) = value;
  }

  template <uint32_t kTwo = 0>
  __device__ void make_keys(const uint8_t* row, uint8_t* tile) const {
    if constexpr (kTwo < Places::panels) {
      const auto block = QuantBlock<K>::template load<kTwo>(row, half_);
      block_.kept().scales[other_][2 * kTwo + half_][token_] = block.scale();
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        put(tile, kTwo, i, block.numbers(i));
      }
      make_keys<kTwo + 1>(row, tile);
    }
  }

  __device__ void make_k() {
    auto& kept = block_.kept();
    ptx::wait(&kept.k_full[ring_.slot], ring_.parity);
    uint8_t* const tile = begin_tile();
    make_keys(block_.k_slot(ring_.slot) + token_ * QuantBlock<K>::stride, tile);
    end_tile(&kept.k_empty[ring_.slot]);
  }

  // Returns whether a scale is no number.
  template <uint32_t kTwo = 0>
  __device__ bool make_values(const uint8_t* row, uint8_t* tile) const {
    if constexpr (kTwo < Places::panels) {
      const auto block = QuantBlock<V>::template load<kTwo>(row, half_);
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        put(tile, kTwo, i, block.values(i));
      }
      const bool odd = (block.scale_bits() & 0x7C00u) == 0x7C00u;
      return make_values<kTwo + 1>(row, tile) || odd;
    }
    return false;
  }

  // Of a token that some pair does not see, what is no number must not meet its weight of zero: it is
  // left out here, and added where it is seen (attend.cuh). Rows that were not asked for are zeros.
  __device__ void make_v(bool open) {
    auto& kept = block_.kept();
    ptx::wait(&kept.v_full[ring_.slot], ring_.parity);
    uint8_t* const tile = begin_tile();
    const bool odd = make_values(block_.v_slot(ring_.slot) + token_ * QuantBlock<V>::stride, tile);
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
