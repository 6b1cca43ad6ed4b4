// SPDX-License-Identifier: Apache-2.0
// Typed K and V rows in GGML byte layout: geometry, encode, decode. Encode has the bits of GGML's
// row quantisers for model files (the ones named *_ref), as they are written: each operation is
// rounded to f32 once, no fused multiply-add. A plugin may be faster but must store these bytes.
// Not here: whole pages and strides (span.h), types that a plugin registers itself.
// Read next: half.h for the scales, span.h for where rows lie.
//
// A block is 32 elements x[0..31], little endian. Element j is in the low nibble of qs[j], j + 16
// in the high one (j = 0..15); bit j of qh is the fifth bit of element j. d and m are f16.
//   type  bytes  layout                scale d         stored number q               value
//   q8_0  34     d, q[32] i8           amax / 127      T(round(x * id))              q * d
//   q4_0  18     d, qs[16]             big / -8        min(15, T(x * id + 8.5))      (q - 8) * d
//   q4_1  20     d, m, qs[16]          (hi - lo) / 15  min(15, T((x-lo)*id + 0.5))   q * d + m
//   q5_0  22     d, qh u32, qs[16]     big / -16       min(31, T(x * id + 16.5))     (q - 16) * d
//   q5_1  24     d, m, qh u32, qs[16]  (hi - lo) / 31  T((x-lo)*id + 0.5)            q * d + m
// amax = greatest |x|; big = the signed x of greatest |x|, the first of equals; lo, hi = least and
// greatest x; m = lo. id = 1 / d of the f32 d, before d is rounded to f16, or 0 where d is 0.
// T(v) is kvspan_ref_low_byte(v); round() takes halves away from zero.
//
// What follows from that, and is part of the format:
//   - Zeros store d = -0 (0x8000) in q4_0 and q5_0, since 0 / -8 is -0, and numbers 8 or 16.
//   - Where 1 / d overflows (|d| <= 2^-128) all products are Inf or NaN and all numbers 0.
//   - NaN never enters big, lo or hi (comparisons are false); its own number is 0.
//   - q8_0 keeps amax by `amax > |x| ? amax : |x|`: a NaN replaces it and the next element replaces
//     the NaN. So only what follows the last NaN counts, a larger element before it wraps to the
//     low byte of its number, and a NaN in x[31] makes d NaN and all numbers 0.
//   - Inf makes d Inf and id 0: a finite x gets the number of zero, an infinite one 0.
//   - NaN alone leaves lo = FLT_MAX, hi = -FLT_MAX in q4_1 and q5_1: d = -Inf, m = Inf, numbers 0.
// Source: GGML's block layouts and reference quantisers (ggml-common.h, ggml-quants.c).
#ifndef KVSPAN_SDK_REFERENCE_QUANT_H
#define KVSPAN_SDK_REFERENCE_QUANT_H

#include "kvspan/sdk/reference/half.h"
#include "kvspan/sdk/reference/rounding.h"
#include "kvspan/types.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/// Elements of a quantised block, in every quantised type here.
#define KVSPAN_REF_BLOCK_ELEMENTS 32u

/// Shape of a type's smallest unit: `elements` of a row take `bytes`. Both 0 = the type is unknown
/// here.
typedef struct kvspan_ref_block_t {
  uint32_t elements;
  uint32_t bytes;
} kvspan_ref_block_t;

/// The block of `type`. Any thread. {0, 0} for an id that this reference does not know: refuse it
/// by name.
static inline kvspan_ref_block_t kvspan_ref_block(kvspan_type_t type) {
  kvspan_ref_block_t block = {KVSPAN_REF_BLOCK_ELEMENTS, 0u};
  switch (type) {
    case KVSPAN_TYPE_F32:
      block.elements = 1u;
      block.bytes = 4u;
      break;
    case KVSPAN_TYPE_F16:
    case KVSPAN_TYPE_BF16:
      block.elements = 1u;
      block.bytes = 2u;
      break;
    case KVSPAN_TYPE_Q4_0:
      block.bytes = 18u;
      break;
    case KVSPAN_TYPE_Q4_1:
      block.bytes = 20u;
      break;
    case KVSPAN_TYPE_Q5_0:
      block.bytes = 22u;
      break;
    case KVSPAN_TYPE_Q5_1:
      block.bytes = 24u;
      break;
    case KVSPAN_TYPE_Q8_0:
      block.bytes = 34u;
      break;
    default:
      block.elements = 0u;
      break;
  }
  return block;
}

/// Bytes of a row of `elements` elements of `type`. Any thread.
/// 0 where the row cannot be: unknown type, no elements, elements not a multiple of the block (80
/// in a type of 32 a block), or a size over 2^64. Next move: choose f32, f16 or bf16, or another
/// head size.
static inline uint64_t kvspan_ref_row_bytes(kvspan_type_t type, uint64_t elements) {
  const kvspan_ref_block_t block = kvspan_ref_block(type);
  if (block.elements == 0u || elements == 0u || elements % block.elements != 0u) {
    return 0;
  }
  const uint64_t blocks = elements / block.elements;
  return blocks > UINT64_MAX / block.bytes ? 0 : blocks * block.bytes;
}

// ---- bytes of a block, little endian, no alignment assumed; not for callers ----

static inline void kvspan_ref_store_u16(uint8_t* out, uint16_t value) {
  out[0] = (uint8_t)(value & 0xFFu);
  out[1] = (uint8_t)(value >> 8);
}

static inline uint16_t kvspan_ref_load_u16(const uint8_t* in) {
  return (uint16_t)((uint32_t)in[0] | ((uint32_t)in[1] << 8));
}

static inline void kvspan_ref_store_u32(uint8_t* out, uint32_t value) {
  kvspan_ref_store_u16(out, (uint16_t)(value & 0xFFFFu));
  kvspan_ref_store_u16(out + 2, (uint16_t)(value >> 16));
}

static inline uint32_t kvspan_ref_load_u32(const uint8_t* in) {
  return (uint32_t)kvspan_ref_load_u16(in) | ((uint32_t)kvspan_ref_load_u16(in + 2) << 16);
}

// ---- encode of one block x[32]; not for callers ----

static inline float kvspan_ref_reciprocal(float d) {
  return d != 0.0f ? 1.0f / d : 0.0f;
}

/// x * id + bias in two roundings, to a number of at most `most`. The number is an i8 before the
/// limit, so 128..255 count as negative, pass the limit and keep their byte.
static inline uint8_t kvspan_ref_number(float scaled, float bias, uint32_t most) {
  const uint8_t number = kvspan_ref_low_byte(scaled + bias);
  return number < 128u && number > most ? (uint8_t)most : number;
}

/// The signed element of greatest magnitude; 0 where none is greater than 0. NaN is passed over.
static inline float kvspan_ref_signed_max(const float* x) {
  float magnitude = 0.0f;
  float big = 0.0f;
  for (uint32_t j = 0; j < KVSPAN_REF_BLOCK_ELEMENTS; ++j) {
    if (magnitude < fabsf(x[j])) {
      magnitude = fabsf(x[j]);
      big = x[j];
    }
  }
  return big;
}

/// Packs numbers[32] as low and high nibbles to qs[16]; the high part takes the whole byte, as the
/// format's own arithmetic does, so a number above 15 would spill: callers of five-bit types mask
/// first.
static inline void kvspan_ref_pack_nibbles(const uint8_t* numbers, uint8_t* qs) {
  for (uint32_t j = 0; j < 16u; ++j) {
    qs[j] = (uint8_t)(((uint32_t)numbers[j] | ((uint32_t)numbers[j + 16u] << 4)) & 0xFFu);
  }
}

/// Packs numbers[32] of five bits to qh (u32) and qs[16], which follows it.
static inline void kvspan_ref_pack_fives(uint8_t* numbers, uint8_t* qh_then_qs) {
  uint32_t high = 0;
  for (uint32_t j = 0; j < KVSPAN_REF_BLOCK_ELEMENTS; ++j) {
    high |= (((uint32_t)numbers[j] >> 4) & 1u) << j;
    numbers[j] = (uint8_t)(numbers[j] & 0x0Fu);
  }
  kvspan_ref_store_u32(qh_then_qs, high);
  kvspan_ref_pack_nibbles(numbers, qh_then_qs + 4);
}

static inline void kvspan_ref_encode_q8_0(const float* x, uint8_t* out) {
  float amax = 0.0f;
  for (uint32_t j = 0; j < KVSPAN_REF_BLOCK_ELEMENTS; ++j) {
    amax = amax > fabsf(x[j]) ? amax : fabsf(x[j]);
  }
  const float d = amax / 127.0f;
  const float id = kvspan_ref_reciprocal(d);
  kvspan_ref_store_u16(out, kvspan_ref_f16_from_f32(d));
  for (uint32_t j = 0; j < KVSPAN_REF_BLOCK_ELEMENTS; ++j) {
    out[2u + j] = kvspan_ref_low_byte(roundf(kvspan_ref_product(x[j], id)));
  }
}

/// q4_0 and q5_0: `levels` is 8 or 16, half the count of numbers.
static inline void kvspan_ref_encode_symmetric(const float* x, uint8_t* out, uint8_t levels) {
  const float d = kvspan_ref_signed_max(x) / -(float)levels;
  const float id = kvspan_ref_reciprocal(d);
  const uint32_t most = 2u * levels - 1u;
  uint8_t numbers[KVSPAN_REF_BLOCK_ELEMENTS];
  for (uint32_t j = 0; j < KVSPAN_REF_BLOCK_ELEMENTS; ++j) {
    numbers[j] = kvspan_ref_number(kvspan_ref_product(x[j], id), (float)levels + 0.5f, most);
  }
  kvspan_ref_store_u16(out, kvspan_ref_f16_from_f32(d));
  if (levels == 8u) {
    kvspan_ref_pack_nibbles(numbers, out + 2);
  } else {
    kvspan_ref_pack_fives(numbers, out + 2);
  }
}

/// q4_1 and q5_1: `most` is 15 or 31, the greatest number.
static inline void kvspan_ref_encode_offset(const float* x, uint8_t* out, uint8_t most) {
  float low = FLT_MAX;
  float high = -FLT_MAX;
  for (uint32_t j = 0; j < KVSPAN_REF_BLOCK_ELEMENTS; ++j) {
    low = x[j] < low ? x[j] : low;
    high = x[j] > high ? x[j] : high;
  }
  const float d = (high - low) / (float)most;
  const float id = kvspan_ref_reciprocal(d);
  // q5_1 has no limit in the format; its five bits are masked when packed.
  const uint32_t limit = most == 15u ? most : 255u;
  uint8_t numbers[KVSPAN_REF_BLOCK_ELEMENTS];
  for (uint32_t j = 0; j < KVSPAN_REF_BLOCK_ELEMENTS; ++j) {
    numbers[j] = kvspan_ref_number(kvspan_ref_product(x[j] - low, id), 0.5f, limit);
  }
  kvspan_ref_store_u16(out, kvspan_ref_f16_from_f32(d));
  kvspan_ref_store_u16(out + 2, kvspan_ref_f16_from_f32(low));
  if (most == 15u) {
    kvspan_ref_pack_nibbles(numbers, out + 4);
  } else {
    kvspan_ref_pack_fives(numbers, out + 4);
  }
}

/// One block of `type` from x; `type` is one that kvspan_ref_block knows.
static inline void kvspan_ref_encode_block(kvspan_type_t type, const float* x, uint8_t* out) {
  switch (type) {
    case KVSPAN_TYPE_F32:
      kvspan_ref_store_u32(out, kvspan_ref_bits_of(x[0]));
      break;
    case KVSPAN_TYPE_F16:
      kvspan_ref_store_u16(out, kvspan_ref_f16_from_f32(x[0]));
      break;
    case KVSPAN_TYPE_BF16:
      kvspan_ref_store_u16(out, kvspan_ref_bf16_from_f32(x[0]));
      break;
    case KVSPAN_TYPE_Q8_0:
      kvspan_ref_encode_q8_0(x, out);
      break;
    case KVSPAN_TYPE_Q4_0:
      kvspan_ref_encode_symmetric(x, out, 8u);
      break;
    case KVSPAN_TYPE_Q5_0:
      kvspan_ref_encode_symmetric(x, out, 16u);
      break;
    case KVSPAN_TYPE_Q4_1:
      kvspan_ref_encode_offset(x, out, 15u);
      break;
    case KVSPAN_TYPE_Q5_1:
      kvspan_ref_encode_offset(x, out, 31u);
      break;
    default:
      break;
  }
}

// ---- decode of one block; not for callers ----
// A product q * d is exact in f32 (at most 8 bits times 11), so q * d + m is rounded once whether
// or not the compiler fuses it.

/// Number j of a nibble block, with its fifth bit from `high`.
static inline uint32_t kvspan_ref_unpack(const uint8_t* qs, uint32_t high, uint32_t j) {
  const uint32_t nibble = j < 16u ? qs[j] & 0x0Fu : (uint32_t)qs[j - 16u] >> 4;
  return nibble | (((high >> j) & 1u) << 4);
}

static inline void kvspan_ref_decode_symmetric(const uint8_t* in, float* out, uint32_t levels) {
  const float d = kvspan_ref_f32_from_f16(kvspan_ref_load_u16(in));
  const uint32_t high = levels == 16u ? kvspan_ref_load_u32(in + 2) : 0u;
  const uint8_t* qs = levels == 16u ? in + 6 : in + 2;
  for (uint32_t j = 0; j < KVSPAN_REF_BLOCK_ELEMENTS; ++j) {
    const int32_t number = (int32_t)kvspan_ref_unpack(qs, high, j) - (int32_t)levels;
    out[j] = (float)number * d;
  }
}

static inline void kvspan_ref_decode_offset(const uint8_t* in, float* out, uint32_t most) {
  const float d = kvspan_ref_f32_from_f16(kvspan_ref_load_u16(in));
  const float m = kvspan_ref_f32_from_f16(kvspan_ref_load_u16(in + 2));
  const uint32_t high = most == 31u ? kvspan_ref_load_u32(in + 4) : 0u;
  const uint8_t* qs = most == 31u ? in + 8 : in + 4;
  for (uint32_t j = 0; j < KVSPAN_REF_BLOCK_ELEMENTS; ++j) {
    out[j] = (float)kvspan_ref_unpack(qs, high, j) * d + m;
  }
}

static inline void kvspan_ref_decode_q8_0(const uint8_t* in, float* out) {
  const float d = kvspan_ref_f32_from_f16(kvspan_ref_load_u16(in));
  for (uint32_t j = 0; j < KVSPAN_REF_BLOCK_ELEMENTS; ++j) {
    const int32_t byte = in[2u + j];
    out[j] = (float)(byte < 128 ? byte : byte - 256) * d;
  }
}

/// One block of `type` to out; `type` is one that kvspan_ref_block knows.
static inline void kvspan_ref_decode_block(kvspan_type_t type, const uint8_t* in, float* out) {
  switch (type) {
    case KVSPAN_TYPE_F32:
      out[0] = kvspan_ref_float_of(kvspan_ref_load_u32(in));
      break;
    case KVSPAN_TYPE_F16:
      out[0] = kvspan_ref_f32_from_f16(kvspan_ref_load_u16(in));
      break;
    case KVSPAN_TYPE_BF16:
      out[0] = kvspan_ref_f32_from_bf16(kvspan_ref_load_u16(in));
      break;
    case KVSPAN_TYPE_Q8_0:
      kvspan_ref_decode_q8_0(in, out);
      break;
    case KVSPAN_TYPE_Q4_0:
      kvspan_ref_decode_symmetric(in, out, 8u);
      break;
    case KVSPAN_TYPE_Q5_0:
      kvspan_ref_decode_symmetric(in, out, 16u);
      break;
    case KVSPAN_TYPE_Q4_1:
      kvspan_ref_decode_offset(in, out, 15u);
      break;
    case KVSPAN_TYPE_Q5_1:
      kvspan_ref_decode_offset(in, out, 31u);
      break;
    default:
      break;
  }
}

// ---- rows ----

/// Encodes x [elements] to a row of `type` at `out` and returns the bytes written,
/// kvspan_ref_row_bytes. Any thread; `out` needs no alignment and must not overlap x. Bits: the
/// head of this file. 0 and nothing written where kvspan_ref_row_bytes is 0. Next move: as there.
static inline uint64_t kvspan_ref_encode_row(kvspan_type_t type,
                                             const float* x,
                                             uint64_t elements,
                                             void* out) {
  const uint64_t bytes = kvspan_ref_row_bytes(type, elements);
  const kvspan_ref_block_t block = kvspan_ref_block(type);
  for (uint64_t i = 0; bytes != 0 && i < elements / block.elements; ++i) {
    kvspan_ref_encode_block(type, x + i * block.elements, (uint8_t*)out + i * block.bytes);
  }
  return bytes;
}

/// Decodes a row of `type` at `in` to out [elements] and returns the bytes read,
/// kvspan_ref_row_bytes. Any thread; `in` needs no alignment and must not overlap out. Each value
/// is its formula with every operation rounded to f32: q * d + m is a product, then a sum. 0 and
/// nothing written where kvspan_ref_row_bytes is 0. Next move: as there.
static inline uint64_t kvspan_ref_decode_row(kvspan_type_t type,
                                             const void* in,
                                             uint64_t elements,
                                             float* out) {
  const uint64_t bytes = kvspan_ref_row_bytes(type, elements);
  const kvspan_ref_block_t block = kvspan_ref_block(type);
  for (uint64_t i = 0; bytes != 0 && i < elements / block.elements; ++i) {
    kvspan_ref_decode_block(type, (const uint8_t*)in + i * block.bytes, out + i * block.elements);
  }
  return bytes;
}

#endif
