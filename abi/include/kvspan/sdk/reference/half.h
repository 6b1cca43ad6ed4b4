// SPDX-License-Identifier: Apache-2.0
// f16 (IEEE binary16) and bf16 to f32 and back, by integer arithmetic: no F16C, no _Float16, any
// rounding mode. Narrowing rounds to nearest, ties to even; subnormals are kept; overflow gives
// Inf; NaN stays a quiet NaN. Not here: rows (quant.h). Read next: quant.h.
#ifndef KVSPAN_SDK_REFERENCE_HALF_H
#define KVSPAN_SDK_REFERENCE_HALF_H

#include "kvspan/sdk/reference/rounding.h"

#include <stdint.h>

/// The f16 bits nearest to `value`. Any thread; never fails.
///
/// |value| >= 65520 gives Inf (65520 is the tie between 65504 and 2^16), |value| <= 2^-25 gives
/// zero of the same sign. Every NaN gives 0x7E00 with the sign kept, so its payload is lost: that
/// is what GGML's portable conversion stores. Hardware differs for payloads (F16C keeps the top
/// bits, CUDA gives 0x7FFF): a plugin that uses it must replace NaN afterwards.
static inline uint16_t kvspan_ref_f16_from_f32(float value) {
  const uint32_t bits = kvspan_ref_bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return (uint16_t)(sign | 0x7E00u);
  }
  if (magnitude >= 0x477FF000u) {  // 65520.0f
    return (uint16_t)(sign | 0x7C00u);
  }
  if (magnitude >=
      0x38800000u) {  // 2^-14, the least normal f16: rebias the exponent by 15 - 127, drop 13 bits
    const uint32_t rebiased = magnitude - 0x38000000u;
    return (uint16_t)(sign | ((rebiased + 0xFFFu + ((rebiased >> 13) & 1u)) >> 13));
  }
  if (magnitude <= 0x33000000u) {  // 2^-25, the tie between 0 and the least subnormal f16
    return (uint16_t)sign;
  }
  // In units of 2^-24: significand * 2^(exponent - 150 + 24). The shift is 14..24.
  const uint32_t shift = 126u - (magnitude >> 23);
  const uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
  const uint32_t kept = significand >> shift;
  const uint32_t rest = significand & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1u);
  const uint32_t up = (rest > half || (rest == half && (kept & 1u))) ? 1u : 0u;
  return (uint16_t)(sign | (kept + up));
}

/// The exact f32 value of f16 `bits`. Any thread; never fails. A NaN keeps sign and payload and
/// becomes quiet.
static inline float kvspan_ref_f32_from_f16(uint16_t bits) {
  const uint32_t sign = ((uint32_t)bits & 0x8000u) << 16;
  const uint32_t exponent = ((uint32_t)bits >> 10) & 0x1Fu;
  const uint32_t fraction = (uint32_t)bits & 0x3FFu;
  if (exponent == 0x1Fu) {
    const uint32_t quiet = fraction ? 0x400000u : 0u;
    return kvspan_ref_float_of(sign | 0x7F800000u | quiet | (fraction << 13));
  }
  if (exponent == 0u) {  // zero or subnormal: fraction * 2^-24, exact in f32 and normal there
    const uint32_t magnitude = kvspan_ref_bits_of((float)fraction * 5.9604644775390625e-8f);
    return kvspan_ref_float_of(sign | magnitude);
  }
  return kvspan_ref_float_of(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

/// The bf16 bits nearest to `value`. Any thread; never fails.
///
/// Overflow gives Inf; subnormals are kept (AVX512_BF16's VCVTNEPS2BF16 flushes them: a plugin that
/// uses it must not for them). A NaN keeps its sign and the top of its payload and becomes quiet
/// (bit 6), as GGML stores it.
static inline uint16_t kvspan_ref_bf16_from_f32(float value) {
  const uint32_t bits = kvspan_ref_bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return (uint16_t)((bits >> 16) | 0x40u);
  }
  return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/// The exact f32 value of bf16 `bits`. Any thread; never fails. NaN bits pass as they are.
static inline float kvspan_ref_f32_from_bf16(uint16_t bits) {
  return kvspan_ref_float_of((uint32_t)bits << 16);
}

#endif
