// SPDX-License-Identifier: Apache-2.0
// Typed K and V blocks on the device: the arithmetic of kvspan/sdk/reference/quant.h and half.h,
// step by step, with the same bits. Every operation is rounded once: the intrinsics named _rn keep
// the compiler from fusing. Not here: where rows lie. Device code only.
#pragma once

#include "kvspan/types.h"

#include <cfloat>
#include <cstdint>
#include <cuda_fp16.h>

namespace kvspan::cuda {

inline constexpr uint32_t kBlockElements = 32;

struct BlockShape {
  uint32_t elements;
  uint32_t bytes;
};

__host__ __device__ constexpr BlockShape block_shape(kvspan_type_t type) {
  switch (type) {
    case KVSPAN_TYPE_F32:
      return {1, 4};
    case KVSPAN_TYPE_Q4_0:
      return {kBlockElements, 18};
    case KVSPAN_TYPE_Q4_1:
      return {kBlockElements, 20};
    case KVSPAN_TYPE_Q5_0:
      return {kBlockElements, 22};
    case KVSPAN_TYPE_Q5_1:
      return {kBlockElements, 24};
    case KVSPAN_TYPE_Q8_0:
      return {kBlockElements, 34};
    default:
      return {1, 2};
  }
}

// ---- 16-bit floats: see half.h ----

__device__ inline uint16_t f16_from_f32(float value) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<uint16_t>(sign | 0x7E00u);
  }
  if (magnitude >= 0x477FF000u) {
    return static_cast<uint16_t>(sign | 0x7C00u);
  }
  if (magnitude >= 0x38800000u) {
    const uint32_t rebiased = magnitude - 0x38000000u;
    return static_cast<uint16_t>(sign | ((rebiased + 0xFFFu + ((rebiased >> 13) & 1u)) >> 13));
  }
  if (magnitude <= 0x33000000u) {
    return static_cast<uint16_t>(sign);
  }
  const uint32_t shift = 126u - (magnitude >> 23);
  const uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
  const uint32_t kept = significand >> shift;
  const uint32_t rest = significand & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1u);
  const uint32_t up = (rest > half || (rest == half && (kept & 1u) != 0)) ? 1u : 0u;
  return static_cast<uint16_t>(sign | (kept + up));
}

__device__ inline float f32_from_f16(uint16_t bits) {
  const uint32_t sign = (static_cast<uint32_t>(bits) & 0x8000u) << 16;
  const uint32_t exponent = (static_cast<uint32_t>(bits) >> 10) & 0x1Fu;
  const uint32_t fraction = static_cast<uint32_t>(bits) & 0x3FFu;
  if (exponent == 0x1Fu) {
    const uint32_t quiet = fraction != 0 ? 0x400000u : 0u;
    return __uint_as_float(sign | 0x7F800000u | quiet | (fraction << 13));
  }
  if (exponent == 0u) {
    const uint32_t magnitude =
        __float_as_uint(__fmul_rn(static_cast<float>(fraction), 5.9604644775390625e-8f));
    return __uint_as_float(sign | magnitude);
  }
  return __uint_as_float(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

__device__ inline uint16_t bf16_from_f32(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

__device__ inline float f32_from_bf16(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// ---- bytes: rows lie on multiples of 2 (4 for F32), blocks follow each other in steps of 2 ----

__device__ inline uint16_t load_u16(const uint8_t* in) {
  return *reinterpret_cast<const uint16_t*>(in);
}

__device__ inline uint32_t load_u32(const uint8_t* in) {
  return load_u16(in) | static_cast<uint32_t>(load_u16(in + 2)) << 16;
}

__device__ inline void store_u16(uint8_t* out, uint16_t value) {
  *reinterpret_cast<uint16_t*>(out) = value;
}

__device__ inline void store_u32(uint8_t* out, uint32_t value) {
  store_u16(out, static_cast<uint16_t>(value & 0xFFFFu));
  store_u16(out + 2, static_cast<uint16_t>(value >> 16));
}

__device__ inline float load_element(kvspan_type_t type, const uint8_t* in) {
  switch (type) {
    case KVSPAN_TYPE_F32:
      return *reinterpret_cast<const float*>(in);
    case KVSPAN_TYPE_F16:
      return f32_from_f16(load_u16(in));
    default:
      return f32_from_bf16(load_u16(in));
  }
}

__device__ inline void store_element(kvspan_type_t type, float value, uint8_t* out) {
  switch (type) {
    case KVSPAN_TYPE_F32:
      *reinterpret_cast<float*>(out) = value;
      break;
    case KVSPAN_TYPE_F16:
      store_u16(out, f16_from_f32(value));
      break;
    default:
      store_u16(out, bf16_from_f32(value));
      break;
  }
}

// ---- encode: see quant.h for every oddity ----

__device__ inline uint8_t low_byte(float value) {
  if (!(value >= -2147483648.0f && value < 2147483648.0f)) {
    return 0;
  }
  return static_cast<uint8_t>(static_cast<uint32_t>(static_cast<int32_t>(value)) & 0xFFu);
}

__device__ inline float reciprocal(float d) {
  return d != 0.0f ? __fdiv_rn(1.0f, d) : 0.0f;
}

__device__ inline uint8_t number_of(float scaled, float bias, uint32_t most) {
  const uint8_t number = low_byte(__fadd_rn(scaled, bias));
  return number < 128u && number > most ? static_cast<uint8_t>(most) : number;
}

__device__ inline void pack_nibbles(const uint8_t* numbers, uint8_t* qs) {
  for (uint32_t j = 0; j < 16; j += 2) {
    const uint32_t low = numbers[j] | static_cast<uint32_t>(numbers[j + 16]) << 4;
    const uint32_t high = numbers[j + 1] | static_cast<uint32_t>(numbers[j + 17]) << 4;
    store_u16(qs + j, static_cast<uint16_t>((low & 0xFFu) | (high & 0xFFu) << 8));
  }
}

__device__ inline void pack_fives(uint8_t* numbers, uint8_t* qh_then_qs) {
  uint32_t high = 0;
  for (uint32_t j = 0; j < kBlockElements; ++j) {
    high |= ((static_cast<uint32_t>(numbers[j]) >> 4) & 1u) << j;
    numbers[j] = static_cast<uint8_t>(numbers[j] & 0x0Fu);
  }
  store_u32(qh_then_qs, high);
  pack_nibbles(numbers, qh_then_qs + 4);
}

__device__ inline void encode_q8_0(const float* x, uint8_t* out) {
  float amax = 0.0f;
  for (uint32_t j = 0; j < kBlockElements; ++j) {
    amax = amax > fabsf(x[j]) ? amax : fabsf(x[j]);
  }
  const float d = __fdiv_rn(amax, 127.0f);
  const float id = reciprocal(d);
  store_u16(out, f16_from_f32(d));
  for (uint32_t j = 0; j < kBlockElements; j += 2) {
    const uint32_t low = low_byte(roundf(__fmul_rn(x[j], id)));
    const uint32_t high = low_byte(roundf(__fmul_rn(x[j + 1], id)));
    store_u16(out + 2 + j, static_cast<uint16_t>(low | high << 8));
  }
}

// q4_0 and q5_0: `levels` is 8 or 16.
__device__ inline void encode_symmetric(const float* x, uint8_t* out, uint32_t levels) {
  float magnitude = 0.0f;
  float big = 0.0f;
  for (uint32_t j = 0; j < kBlockElements; ++j) {
    if (magnitude < fabsf(x[j])) {
      magnitude = fabsf(x[j]);
      big = x[j];
    }
  }
  const auto half = static_cast<float>(levels);
  const float d = __fdiv_rn(big, -half);
  const float id = reciprocal(d);
  uint8_t numbers[kBlockElements];
  for (uint32_t j = 0; j < kBlockElements; ++j) {
    numbers[j] = number_of(__fmul_rn(x[j], id), half + 0.5f, 2u * levels - 1u);
  }
  store_u16(out, f16_from_f32(d));
  if (levels == 8u) {
    pack_nibbles(numbers, out + 2);
  } else {
    pack_fives(numbers, out + 2);
  }
}

// q4_1 and q5_1: `most` is 15 or 31.
__device__ inline void encode_offset(const float* x, uint8_t* out, uint32_t most) {
  float low = FLT_MAX;
  float high = -FLT_MAX;
  for (uint32_t j = 0; j < kBlockElements; ++j) {
    low = x[j] < low ? x[j] : low;
    high = x[j] > high ? x[j] : high;
  }
  const float d = __fdiv_rn(__fsub_rn(high, low), static_cast<float>(most));
  const float id = reciprocal(d);
  const uint32_t limit = most == 15u ? most : 255u;
  uint8_t numbers[kBlockElements];
  for (uint32_t j = 0; j < kBlockElements; ++j) {
    numbers[j] = number_of(__fmul_rn(__fsub_rn(x[j], low), id), 0.5f, limit);
  }
  store_u16(out, f16_from_f32(d));
  store_u16(out + 2, f16_from_f32(low));
  if (most == 15u) {
    pack_nibbles(numbers, out + 4);
  } else {
    pack_fives(numbers, out + 4);
  }
}

// One block of a quantised type from x[32].
__device__ inline void encode_block(kvspan_type_t type, const float* x, uint8_t* out) {
  switch (type) {
    case KVSPAN_TYPE_Q8_0:
      encode_q8_0(x, out);
      break;
    case KVSPAN_TYPE_Q4_0:
      encode_symmetric(x, out, 8);
      break;
    case KVSPAN_TYPE_Q5_0:
      encode_symmetric(x, out, 16);
      break;
    case KVSPAN_TYPE_Q4_1:
      encode_offset(x, out, 15);
      break;
    default:
      encode_offset(x, out, 31);
      break;
  }
}

// ---- decode ----

// Element j of a block of a quantised type is number * d, or number * d + m.
struct Decoded {
  float number;
  float d;
  float m;
  bool has_m;
};

__device__ inline Decoded decode_parts(kvspan_type_t type, const uint8_t* block, uint32_t j) {
  const float d = f32_from_f16(load_u16(block));
  if (type == KVSPAN_TYPE_Q8_0) {
    return {static_cast<float>(static_cast<int8_t>(block[2 + j])), d, 0.0f, false};
  }
  const bool offset = type == KVSPAN_TYPE_Q4_1 || type == KVSPAN_TYPE_Q5_1;
  const bool five = type == KVSPAN_TYPE_Q5_0 || type == KVSPAN_TYPE_Q5_1;
  const uint8_t* at = block + (offset ? 4 : 2);
  const uint32_t fifth = five ? (load_u32(at) >> j & 1u) << 4 : 0u;
  at += five ? 4 : 0;
  const uint32_t number = (j < 16 ? at[j] & 0x0Fu : at[j - 16] >> 4) | fifth;
  if (offset) {
    return {static_cast<float>(number), d, f32_from_f16(load_u16(block + 2)), true};
  }
  return {static_cast<float>(static_cast<int32_t>(number) - (five ? 16 : 8)), d, 0.0f, false};
}

// For arithmetic: element 32 * chunk + lane of a row of kType, any NaN for NaN. The product is
// exact in f32, so fusing changes nothing.
template <kvspan_type_t kType>
__device__ inline float element_of(const uint8_t* row, uint32_t chunk, uint32_t lane) {
  const uint32_t element = kBlockElements * chunk + lane;
  if constexpr (kType == KVSPAN_TYPE_F32) {
    return reinterpret_cast<const float*>(row)[element];
  } else if constexpr (kType == KVSPAN_TYPE_F16) {
    return __half2float(reinterpret_cast<const __half*>(row)[element]);
  } else if constexpr (kType == KVSPAN_TYPE_BF16) {
    return f32_from_bf16(reinterpret_cast<const uint16_t*>(row)[element]);
  } else {
    constexpr bool kOffset = kType == KVSPAN_TYPE_Q4_1 || kType == KVSPAN_TYPE_Q5_1;
    constexpr bool kFive = kType == KVSPAN_TYPE_Q5_0 || kType == KVSPAN_TYPE_Q5_1;
    const uint8_t* const block = row + block_shape(kType).bytes * chunk;
    const float d = __half2float(*reinterpret_cast<const __half*>(block));
    if constexpr (kType == KVSPAN_TYPE_Q8_0) {
      return static_cast<float>(static_cast<int8_t>(block[2 + lane])) * d;
    } else {
      const uint8_t* const high = block + (kOffset ? 4 : 2);
      const uint32_t nibbles = high[(kFive ? 4 : 0) + lane % 16];
      uint32_t number = lane < 16 ? nibbles & 0x0Fu : nibbles >> 4;
      if constexpr (kFive) {
        number |= (load_u32(high) >> lane & 1u) << 4;
      }
      if constexpr (kOffset) {
        const float m = __half2float(*reinterpret_cast<const __half*>(block + 2));
        return static_cast<float>(number) * d + m;
      } else {
        return static_cast<float>(static_cast<int32_t>(number) - (kFive ? 16 : 8)) * d;
      }
    }
  }
}

// For storage: the reference's bits, NaN included. The reference runs on x86-64, where a NaN
// operand comes through, the first of two, and a NaN out of nothing (0 * Inf, Inf - Inf) has its
// sign set; this device makes one NaN for all of that.
__device__ inline float decode_element_bits(kvspan_type_t type, const uint8_t* block, uint32_t j) {
  const Decoded parts = decode_parts(type, block, j);
  const float made = __uint_as_float(0xFFC00000u);
  float value = __fmul_rn(parts.number, parts.d);
  value = isnan(parts.d) ? parts.d : isnan(value) ? made : value;
  if (!parts.has_m || isnan(value)) {
    return value;
  }
  const float sum = __fadd_rn(value, parts.m);
  return isnan(parts.m) ? parts.m : isnan(sum) ? made : sum;
}

}  // namespace kvspan::cuda
