// SPDX-License-Identifier: Apache-2.0
// K as the first operand of scores = K Q: 16 tokens by 16 elements a step. Thread (g, q) holds
// tokens token_of(g, 0) and token_of(g, 1), of each four elements; which tokens is free, and so is
// which four elements a step gives it as long as the query's are given alike, which query_place says.
// Device code only.
#pragma once

#include "attention/tensor/ptx.cuh"
#include "attention/tensor/sides.cuh"

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace kvspan::cuda::tensor {

// Where element `element` of a query lies in its row of shared memory: of each 32 elements, which
// are two steps, a thread's eight lie side by side.
template <class Side>
__device__ inline uint32_t query_place(uint32_t element) {
  const uint32_t e = element % 32;
  if constexpr (Side::is_packed) {
    // Q8_0: a thread's eight bytes in a row; Q4_0: its four bytes, then their upper halves.
    return Side::type(0) == KVSPAN_TYPE_Q8_0
               ? element
               : element - e + e % 16 / 4 * 8 + e / 16 * 4 + e % 4;
  } else {
    const uint32_t in_step = e % 16;
    return element - e + in_step % 8 / 2 * 8 + e / 16 * 4 + in_step / 8 * 2 + in_step % 2;
  }
}

// Two bytes of `word` as two f16: 1024 + byte, exactly.
template <uint32_t kSelector>
__device__ inline __half2 bytes_as_half2(uint32_t word) {
  return ptx::half2_of(__byte_perm(word, 0x64646464u, kSelector));
}

// A warp's K operands of a granule: 16 tokens.
template <class Side>
class KOperand;

// Quantised rows: the operands are the blocks' whole numbers plus a bias, as bytes become f16 with one
// permutation, exactly; each block's products are summed by themselves, from minus the bias times the
// sum of the query's elements (Kept::q_bias), and scaled in f32. So K is not rounded at all.
template <kvspan_type_t kType, uint32_t kElements, uint32_t kShared>
  requires(!is_half(kType))
class KOperand<Fixed<kType, kElements, kShared>> {
 public:
  static constexpr bool scales_products = true;
  static constexpr uint32_t blocks = kElements / 32;
  static constexpr uint32_t block_bytes = block_shape(kType).bytes;
  static constexpr uint32_t stride = slot_stride(kType, kElements);
  static_assert(stride / 4 % 8 == 4 || stride / 4 % 4 == 2);
  static constexpr float bias = kType == KVSPAN_TYPE_Q8_0 ? 1152.0f : 1032.0f;
  static_assert(kType == KVSPAN_TYPE_Q8_0 || kType == KVSPAN_TYPE_Q4_0);

  // Eight rows read side by side meet no bank twice if the first words of neighbours are 4 apart.
  __device__ static uint32_t token_of(uint32_t g, uint32_t r) {
    return stride / 4 % 8 == 4 ? g + 8 * r : 2 * g + r;
  }

  // `tile`: the first of the 16 rows, in the slot.
  __device__ KOperand(const Problem&, const uint8_t* tile, uint8_t*) {
    const uint32_t g = threadIdx.x % 32 / 4;
    rows_[0] = tile + token_of(g, 0) * stride;
    rows_[1] = tile + token_of(g, 1) * stride;
  }

  // Calls visit(step, operands, scales) for each block of two steps of 16 elements; scales are those
  // of tokens g and g + 8.
  template <class Visit>
  __device__ void for_each_block(Visit&& visit) const {
    const uint32_t q = threadIdx.x % 4;
#pragma unroll
    for (uint32_t b = 0; b < blocks; ++b) {
      float scales[2];
      uint32_t a[2][4];
#pragma unroll
      for (uint32_t r = 0; r < 2; ++r) {
        const uint8_t* const block = rows_[r] + b * block_bytes;
        scales[r] = __half2float(*reinterpret_cast<const __half*>(block));
        if constexpr (kType == KVSPAN_TYPE_Q8_0) {
          const uint2 x = load_eight(block + 2 + 8 * q, b);
          put_bytes(x.x ^ 0x80808080u, a[0][r], a[0][2 + r]);  // signed: 128 more
          put_bytes(x.y ^ 0x80808080u, a[1][r], a[1][2 + r]);
        } else {
          const uint32_t x = load_four(block + 2 + 4 * q, b);
          put_bytes(x & 0x0F0F0F0Fu, a[0][r], a[0][2 + r]);
          put_bytes(x >> 4 & 0x0F0F0F0Fu, a[1][r], a[1][2 + r]);
        }
      }
      visit(2 * b, a, scales);
    }
  }

 private:
  // Bytes at `at` of block `b`: every other block begins 2 behind a multiple of 4.
  __device__ static uint32_t load_four(const uint8_t* at, uint32_t b) {
    if (b % 2 == 0) {
      const auto* const words = reinterpret_cast<const uint32_t*>(at - 2);
      return __byte_perm(words[0], words[1], 0x5432);
    }
    return *reinterpret_cast<const uint32_t*>(at);
  }

  // The same of eight bytes, in loads of 8 where the address allows it: rows begin at multiples of 8.
  __device__ static uint2 load_eight(const uint8_t* at, uint32_t b) {
    const uint32_t place = (b * block_bytes + 2) % 8;
    if (b % 2 == 0) {
      const auto* const words = reinterpret_cast<const uint32_t*>(at - 2);
      uint32_t w[3];
      if (place == 2) {
        const uint2 two = *reinterpret_cast<const uint2*>(words);
        w[0] = two.x;
        w[1] = two.y;
        w[2] = words[2];
      } else {
        const uint2 two = *reinterpret_cast<const uint2*>(words + 1);
        w[0] = words[0];
        w[1] = two.x;
        w[2] = two.y;
      }
      return make_uint2(__byte_perm(w[0], w[1], 0x5432), __byte_perm(w[1], w[2], 0x5432));
    }
    const auto* const words = reinterpret_cast<const uint32_t*>(at);
    return place == 0 ? *reinterpret_cast<const uint2*>(words) : make_uint2(words[0], words[1]);
  }

  // Four bytes as f16: 1024 more.
  __device__ static void put_bytes(uint32_t word, uint32_t& low, uint32_t& high) {
    low = __byte_perm(word, 0x64646464u, 0x4140);
    high = __byte_perm(word, 0x64646464u, 0x4342);
  }

  const uint8_t* rows_[2];
};

// Elements `elements` from `first` on of typed rows as f16 rows, by a warp; nothing else of the made
// rows is touched. `rest`, or nullptr: what rounding to f16 left.
__device__ inline void make_rows(kvspan_type_t type,
                                 const uint8_t* rows,
                                 uint32_t stride,
                                 uint32_t first,
                                 uint32_t elements,
                                 uint32_t tokens,
                                 uint8_t* made,
                                 uint8_t* rest,
                                 uint32_t size) {
  for (uint32_t i = threadIdx.x % 32; i < tokens * elements; i += 32) {
    const uint32_t token = i / elements;
    const uint32_t element = first + i % elements;
    const float value = saturated(element_at(type, rows + token * stride, element));
    const __half rounded = __float2half_rn(value);
    const uint32_t at = token * made_stride(size) + 2 * element;
    *reinterpret_cast<__half*>(made + at) = rounded;
    if (rest != nullptr) {
      const float left = value - __half2float(rounded);
      *reinterpret_cast<__half*>(rest + at) = __float2half_rn(isfinite(left) ? left : 0.0f);
    }
  }
  __syncwarp();
}

// Rows of 16-bit elements, or made so: then two numbers an element, so that K is not rounded.
template <class Side>
class KOperand {
 public:
  static constexpr bool scales_products = false;

  __device__ static uint32_t token_of(uint32_t g, uint32_t r) { return g + 8 * r; }

  // `made`: where make() has put these rows, if the side's rows are made.
  __device__ KOperand(const Problem& problem, const uint8_t* tile, const uint8_t* made) {
    const uint32_t size = Side::elements(problem.head_size_k);
    const kvspan_type_t type = Side::type(problem.k_type);
    steps_ = size / 16;
    uint32_t stride = Side::stride(type, size);
    const uint8_t* rows = tile;
    if constexpr (Side::made_bytes != 0) {
      if (!is_half(type)) {
        rows = made;
        stride = made_stride(size);
        rest_ = Side::made_bytes;
      }
    }
    const uint32_t lane = threadIdx.x % 32;
    address_ = ptx::shared_address(rows + (lane % 16) * stride) + lane / 16 * 16;
  }

  // One half of the elements of 16 rows, by a warp.
  __device__ static void make(const Problem& problem,
                              const uint8_t* tile,
                              uint8_t* made,
                              uint32_t half) {
    const uint32_t size = Side::elements(problem.head_size_k);
    const kvspan_type_t type = Side::type(problem.k_type);
    if (is_half(type)) {
      return;
    }
    const uint32_t lower = (size / 16 + 1) / 2 * 16;
    make_rows(type,
              tile,
              Side::stride(type, size),
              half * lower,
              half == 0 ? lower : size - lower,
              16,
              made,
              made + Side::made_bytes,
              size);
  }

  // Calls visit(step, operand) for each step of 16 elements; once more with the second numbers where
  // there are any.
  template <class Visit>
  __device__ void for_each_step(Visit&& visit) const {
#pragma unroll 4
    for (uint32_t step = 0; step < steps_; ++step) {
      uint32_t a[4];
      ptx::load_matrices(a, address_ + 32 * step);
      visit(step, a);
      if (Side::made_bytes != 0 && rest_ != 0) {
        ptx::load_matrices(a, address_ + rest_ + 32 * step);
        visit(step, a);
      }
    }
  }

 private:
  uint32_t steps_;
  uint32_t address_;
  uint32_t rest_ = 0;  // bytes from a number to the second
};

}  // namespace kvspan::cuda::tensor
