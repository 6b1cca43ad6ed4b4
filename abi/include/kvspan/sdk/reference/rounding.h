// SPDX-License-Identifier: Apache-2.0
// Float steps whose bits must not depend on compiler flags: bit casts, a product rounded once, a
// defined float to integer cast. Everything else of the reference is built on these. Not here:
// formats (half.h, quant.h) and attention (fold.h, advance.h). Read next: quant.h, which shows why
// each of them is needed.
#ifndef KVSPAN_SDK_REFERENCE_ROUNDING_H
#define KVSPAN_SDK_REFERENCE_ROUNDING_H

#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__)
#error \
    "kvspan's reference defines bits, NaN and Inf included: compile this file without -ffast-math"
#endif

// Hides a float from the optimiser for one instruction's length, in a register. Why: g++ contracts
// x * y + z to a fused multiply-add across statements when the target has one (-ffp-contract=fast
// is its default in GNU mode), it ignores `#pragma STDC FP_CONTRACT OFF`, and it undoes a detour
// through double. The empty asm holds in g++ and clang under every -march and -ffp-contract;
// another compiler gets the standard pragma inside each function.
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__SSE2__))
#define KVSPAN_REF_OPAQUE(value) __asm__("" : "+x"(value))
#define KVSPAN_REF_CONTRACT_OFF
#elif defined(__GNUC__) && defined(__aarch64__)
#define KVSPAN_REF_OPAQUE(value) __asm__("" : "+w"(value))
#define KVSPAN_REF_CONTRACT_OFF
#elif defined(__GNUC__)
#define KVSPAN_REF_OPAQUE(value) __asm__("" : "+m"(value))
#define KVSPAN_REF_CONTRACT_OFF
#else
#define KVSPAN_REF_OPAQUE(value) ((void)0)
#define KVSPAN_REF_CONTRACT_OFF _Pragma("STDC FP_CONTRACT OFF")
#endif

/// The bits of `value`. Any thread; never fails.
static inline uint32_t kvspan_ref_bits_of(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// The float whose bits are `bits`. Any thread; never fails. A signalling NaN stays one.
static inline float kvspan_ref_float_of(uint32_t bits) {
  float value = 0.0f;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// x * y rounded to f32, whatever the caller adds to it. Any thread; never fails.
static inline float kvspan_ref_product(float x, float y) {
  KVSPAN_REF_CONTRACT_OFF
  float product = x * y;
  KVSPAN_REF_OPAQUE(product);
  return product;
}

/// x * y rounded to f64, whatever the caller adds to it. Any thread; never fails.
static inline double kvspan_ref_product_f64(double x, double y) {
  KVSPAN_REF_CONTRACT_OFF
  double product = x * y;
  KVSPAN_REF_OPAQUE(product);
  return product;
}

/// The low 8 bits of `value` truncated toward zero to a 32-bit integer; 0 for NaN, Inf and anything
/// outside
/// [-2^31, 2^31). Any thread; never fails.
///
/// C leaves (int8_t)value undefined where the integer part does not fit. This is what x86 makes of
/// it: CVTTSS2SI yields 0x80000000 when the value does not fit 32 bits, and the cast keeps the low
/// byte, so 300.0 gives 44, -1.5 gives 255 and NaN gives 0. Source: Intel SDM volume 2, CVTTSS2SI,
/// "integer indefinite".
static inline uint8_t kvspan_ref_low_byte(float value) {
  if (!(value >= -2147483648.0f && value < 2147483648.0f)) {
    return 0;
  }
  return (uint8_t)((uint32_t)(int32_t)value & 0xFFu);
}

#endif
