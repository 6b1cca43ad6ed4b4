// SPDX-License-Identifier: Apache-2.0
// V as the first operand of u += V P: 16 elements by 16 tokens a step. Thread (g, q) holds rows g
// and g + 8 of tokens 2 q, 2 q + 1, 2 q + 8 and 2 q + 9. Which element a row stands for is free as
// long as u is read alike (dim_of): of quantised rows a warp takes whole blocks, and two
// neighbouring bytes give a thread its four rows of two tiles. The operands of quantised rows are whole
// numbers, exactly; their scales are multiplied into the weights, of which there are fewer. Tokens
// outside `keep` give zeros. Device code only.
#pragma once

#include "attention/tensor/k_operand.cuh"

namespace kvspan::cuda::tensor {

inline constexpr uint32_t kVWarps = 8;  // that share the head size

// 16-bit masks of tokens `first` and `first + 1`.
__device__ inline uint32_t mask_of_two(uint64_t keep, uint32_t first) {
  const auto bits = static_cast<uint32_t>(keep >> first);
  return ((bits & 1) != 0 ? 0x0000FFFFu : 0) | ((bits & 2) != 0 ? 0xFFFF0000u : 0);
}

// A warp's V operands of a granule: 64 tokens, its eighth of the head size.
template <class Side>
class VOperand;

template <kvspan_type_t kType, uint32_t kElements, uint32_t kShared>
  requires(!is_half(kType))
class VOperand<Fixed<kType, kElements, kShared>> {
 public:
  static constexpr uint32_t tiles_max = kElements / 128;  // of 16 elements, of a warp
  static constexpr uint32_t block_bytes = block_shape(kType).bytes;
  static constexpr uint32_t stride = slot_stride(kType, kElements);
  static_assert(kType == KVSPAN_TYPE_Q8_0 || kType == KVSPAN_TYPE_Q4_0);
  static_assert(kElements == 128 || kElements == 256);

  // Scales are fetched by a lane each, of tokens 2 lane and 2 lane + 1; every other lane begins with
  // the second, since even rows meet in half of the banks.
  __device__ VOperand(const Problem&, const uint8_t* slot, uint8_t*, uint32_t warp)
      : block_(slot + warp * tiles_max / 2 * block_bytes), warp_(warp) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t swap = lane / (stride / 4 % 8 == 4 ? 4 : 8) % 2;
    const uint8_t* const row = block_ + 2 * lane * stride;
    const uint32_t first = *reinterpret_cast<const uint16_t*>(row + swap * stride);
    const uint32_t second = *reinterpret_cast<const uint16_t*>(row + (swap ^ 1) * stride);
    own_scales_ = __byte_perm(first, second, swap == 0 ? 0x5410 : 0x1054);
  }

  __device__ static uint32_t tiles(const Problem&, uint32_t) { return tiles_max; }

  // The element of V that row `row` of tile `tile` of warp `warp` stands for.
  __device__ static uint32_t dim_of(const Problem&, uint32_t warp, uint32_t tile, uint32_t row) {
    const uint32_t global = warp * tiles_max + tile;
    return 32 * (global / 2) + global % 2 + 2 * (row % 8) + 16 * (row / 8);
  }

  // Tokens of the granule whose products could leave f16, or whose scale is no number.
  __device__ uint64_t odd_tokens(uint64_t) const {
    // NaN is not below anything.
    const __half2 limit = ptx::half2_of(kLargestScaleBits | uint32_t{kLargestScaleBits} << 16);
    const bool even = __hble2(__habs2(ptx::half2_of(own_scales_)), limit);
    if (__all_sync(~0u, even ? 1 : 0) != 0) {
      return 0;
    }
    const uint64_t odd = uint64_t{odd_scales(own_scales_)} << 2 * (threadIdx.x % 32);
    return uint64_t{__reduce_or_sync(~0u, static_cast<uint32_t>(odd >> 32))} << 32 |
           __reduce_or_sync(~0u, static_cast<uint32_t>(odd));
  }

  __device__ void keep(uint64_t tokens) {
    own_scales_ &= mask_of_two(tokens, 2 * (threadIdx.x % 32));
  }

  // After keep(): every lane gets the scales of its tokens.
  __device__ void spread() {
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) {
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        scales_[step][i] = __shfl_sync(~0u, own_scales_, static_cast<int>(token_of(step, i) / 2));
      }
    }
  }

  // Weights of step `step` of one tile of pairs, each times its token's scale.
  __device__ void scale(uint32_t step, uint32_t& low, uint32_t& high) const {
    low = ptx::bits_of(__hmul2(ptx::half2_of(low), ptx::half2_of(scales_[step][0])));
    high = ptx::bits_of(__hmul2(ptx::half2_of(high), ptx::half2_of(scales_[step][1])));
  }

  // Step `step` of 16 tokens.
  __device__ void load(uint32_t step, uint32_t (&a)[tiles_max][4]) const {
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {  // the tokens' first pair, then that 8 behind
      const uint8_t* const first =
          block_ + token_of(step, i) * stride + 2 + 2 * (threadIdx.x % 32 / 4);
      const uint32_t low = two_of(first);
      if constexpr (kType == KVSPAN_TYPE_Q8_0) {
        const uint32_t high = two_of(first + 16);
#pragma unroll
        for (uint32_t t = 0; t < tiles_max; ++t) {
          a[t][2 * i] = signed_bytes(low, t);
          a[t][2 * i + 1] = signed_bytes(high, t);
        }
      } else {
#pragma unroll
        for (uint32_t t = 0; t < tiles_max; ++t) {
          const uint32_t x = tiles_max == 1 ? low >> 8 * (warp_ % 2) : low >> 8 * t;
          const __half2 lower = __hsub2(ptx::half2_of(ptx::masked_or(x, 0x000F000Fu, 0x64006400u)),
                                        __float2half2_rn(1032.0f));
          // 1024 + 16 n, exactly; a sixteenth of it less 72 is n - 8, exactly
          const __half2 upper = __hfma2(ptx::half2_of(ptx::masked_or(x, 0x00F000F0u, 0x64006400u)),
                                        __float2half2_rn(0.0625f),
                                        __float2half2_rn(-72.0f));
          a[t][2 * i] = ptx::bits_of(lower);
          a[t][2 * i + 1] = ptx::bits_of(upper);
        }
      }
    }
  }

 private:
  __device__ static uint32_t token_of(uint32_t step, uint32_t i) {
    return 16 * step + 2 * (threadIdx.x % 4) + 8 * i;
  }

  // Two bytes of a token, and of the next token.
  __device__ static uint32_t two_of(const uint8_t* at) {
    return __byte_perm(*reinterpret_cast<const uint16_t*>(at),
                       *reinterpret_cast<const uint16_t*>(at + stride),
                       0x5410);
  }

  __device__ uint32_t signed_bytes(uint32_t word, uint32_t tile) const {
    uint32_t raised = word ^ 0x80808080u;
    if constexpr (tiles_max == 1) {
      raised >>= 8 * (warp_ % 2);
    }
    const __half2 numbers = tile == 0 ? bytes_as_half2<0x4240>(raised)
                                      : bytes_as_half2<0x4341>(raised);
    return ptx::bits_of(__hsub2(numbers, __float2half2_rn(1152.0f)));
  }

  const uint8_t* block_;  // of token 0
  uint32_t warp_;
  uint32_t own_scales_;    // of two neighbouring tokens
  uint32_t scales_[4][2];  // of two neighbouring tokens each
};

// Rows of 16-bit elements, or made so: consecutive elements.
template <class Side>
class VOperand {
 public:
  static constexpr uint32_t tiles_max = (Side::size_max / 16 + kVWarps - 1) / kVWarps;

  __device__ VOperand(const Problem& problem, const uint8_t* slot, uint8_t* made, uint32_t warp) {
    const uint32_t size = Side::elements(problem.head_size_v);
    const kvspan_type_t type = Side::type(problem.v_in_k != 0 ? problem.k_type : problem.v_type);
    tiles_ = tiles(problem, warp);
    const uint32_t first = 16 * warp * each(size);
    stride_ = Side::stride(type, size);
    const uint8_t* rows = slot;
    if constexpr (Side::made_bytes != 0) {
      if (!is_half(type)) {
        make_rows(type, slot, stride_, first, 16 * tiles_, kTokens, made, nullptr, size);
        rows = made;
        stride_ = made_stride(size);
      }
    }
    const uint32_t lane = threadIdx.x % 32;
    // Rows of a matrix are tokens: 0 to 7, then 8 to 15; elements 0 to 7, then 8 to 15.
    address_ = ptx::shared_address(rows + (lane % 8 + lane / 16 * 8) * stride_) + 2 * first +
               lane / 8 % 2 * 16;
  }

  // Tiles of warp `warp`; the last warps may have fewer or none.
  __device__ static uint32_t tiles(const Problem& problem, uint32_t warp) {
    const uint32_t all = Side::elements(problem.head_size_v) / 16;
    const uint32_t share = each(Side::elements(problem.head_size_v));
    return warp * share >= all ? 0 : all - warp * share < share ? all - warp * share : share;
  }

  __device__ static uint32_t dim_of(const Problem& problem,
                                    uint32_t warp,
                                    uint32_t tile,
                                    uint32_t row) {
    return 16 * (warp * each(Side::elements(problem.head_size_v)) + tile) + row;
  }

  __device__ uint64_t odd_tokens(uint64_t wanted) {
    uint64_t odd = 0;
    for (uint32_t step = 0; step < 4; ++step) {
      uint32_t a[tiles_max][4];
      load(step, a);
#pragma unroll
      for (uint32_t t = 0; t < tiles_max; ++t) {
#pragma unroll
        for (uint32_t e = 0; e < 4; ++e) {
          const uint32_t special = Side::is_bf16 ? 0x7F80u : 0x7C00u;
          const uint32_t two = ((a[t][e] & special) == special ? 1u : 0u) |
                               ((a[t][e] >> 16 & special) == special ? 2u : 0u);
          odd |= t < tiles_ ? uint64_t{two} << (16 * step + 2 * (threadIdx.x % 4) + e / 2 * 8) : 0;
        }
      }
    }
    odd &= wanted;
    return uint64_t{__reduce_or_sync(~0u, static_cast<uint32_t>(odd >> 32))} << 32 |
           __reduce_or_sync(~0u, static_cast<uint32_t>(odd));
  }

  __device__ void keep(uint64_t tokens) { keep_ = tokens; }

  __device__ void spread() {}

  __device__ void scale(uint32_t, uint32_t&, uint32_t&) const {}

  __device__ void load(uint32_t step, uint32_t (&a)[tiles_max][4]) const {
#pragma unroll
    for (uint32_t t = 0; t < tiles_max; ++t) {
      if (t >= tiles_) {
        a[t][0] = a[t][1] = a[t][2] = a[t][3] = 0;
        continue;
      }
      ptx::load_transposed(a[t], address_ + 16 * step * stride_ + 32 * t);
    }
    if (keep_ == ~0ull) {
      return;
    }
    const uint32_t token = 16 * step + 2 * (threadIdx.x % 4);
#pragma unroll
    for (uint32_t t = 0; t < tiles_max; ++t) {
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) {
        a[t][e] &= mask_of_two(keep_, token + e / 2 * 8);
      }
    }
  }

 private:
  // Tiles of a warp.
  __device__ static uint32_t each(uint32_t size) { return (size / 16 + kVWarps - 1) / kVWarps; }

  uint32_t tiles_;
  uint32_t stride_;
  uint32_t address_;
  uint64_t keep_ = ~0ull;
};

}  // namespace kvspan::cuda::tensor
