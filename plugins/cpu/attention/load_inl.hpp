// SPDX-License-Identifier: Apache-2.0
// Typed rows to f32 rows, and 32 rows to columns. Included once per instruction set by kernel.cpp.
// Values equal the C reference's decode (kvspan/sdk/reference/quant.h) bit for bit.
#if defined(KVSPAN_CPU_ATTENTION_LOAD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSPAN_CPU_ATTENTION_LOAD_INL
#undef KVSPAN_CPU_ATTENTION_LOAD_INL
#else
#define KVSPAN_CPU_ATTENTION_LOAD_INL
#endif

#include "attention/kernel.hpp"
#include "kvspan/sdk/reference/quant.h"

#include <hwy/highway.h>

#include <cstring>

HWY_BEFORE_NAMESPACE();

namespace kvspan::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// 16 lanes where the machine has them: every padded row is a multiple.
using Floats = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Floats>;
constexpr size_t kLanes = hn::MaxLanes(Floats());

HWY_INLINE Vector f32_of_halves(const uint16_t* source) {
  const Floats floats;
#if HWY_TARGET <= HWY_AVX2  // these have the F16C instructions
  const hn::Rebind<hwy::float16_t, Floats> halves;
  return hn::PromoteTo(floats, hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(source)));
#else
  // Exponent and fraction moved into place and scaled by 2^112 are exact, subnormals included;
  // Inf and NaN then still need the largest exponent. A NaN becomes quiet, as in the reference.
  const hn::Rebind<uint16_t, Floats> shorts;
  const hn::Rebind<uint32_t, Floats> words;
  const auto half = hn::PromoteTo(words, hn::LoadU(shorts, source));
  const auto magnitude = hn::And(half, hn::Set(words, 0x7FFFu));
  const auto sign = hn::ShiftLeft<16>(hn::Sub(half, magnitude));
  const auto moved = hn::BitCast(floats, hn::ShiftLeft<13>(magnitude));
  const auto scaled = hn::Mul(moved, hn::Set(floats, 0x1p112f));
  const auto special = hn::Gt(magnitude, hn::Set(words, 0x7BFFu));
  const auto nan = hn::Gt(magnitude, hn::Set(words, 0x7C00u));
  auto bits = hn::BitCast(words, scaled);
  bits = hn::Or(bits, hn::IfThenElseZero(special, hn::Set(words, 0x7F800000u)));
  bits = hn::Or(bits, hn::IfThenElseZero(nan, hn::Set(words, 0x400000u)));
  return hn::BitCast(floats, hn::Or(bits, sign));
#endif
}

HWY_INLINE Vector f32_of_brains(const uint16_t* source) {
  const Floats floats;
  const hn::Rebind<uint16_t, Floats> shorts;
  const hn::Rebind<uint32_t, Floats> words;
  return hn::BitCast(floats, hn::ShiftLeft<16>(hn::PromoteTo(words, hn::LoadU(shorts, source))));
}

// A row of two-byte floats. A row's address may be odd, so the tail goes through a copy.
template <class Convert>
HWY_INLINE void load_shorts(const uint8_t* source, uint32_t elements, float* out, Convert convert) {
  const Floats floats;
  uint32_t at = 0;
  for (; at + kLanes <= elements; at += kLanes) {
    hn::Store(convert(reinterpret_cast<const uint16_t*>(source + 2u * at)), floats, out + at);
  }
  if (at < elements) {
    HWY_ALIGN uint16_t tail[kLanes] = {};
    std::memcpy(tail, source + 2u * at, 2u * (elements - at));
    hn::Store(convert(tail), floats, out + at);
  }
}

// numbers [32] * d, or * d + m.
HWY_INLINE void store_numbers(const int8_t* numbers, float d, float m, float* out) {
  const Floats floats;
  const hn::Rebind<int8_t, Floats> bytes;
  const hn::Rebind<int32_t, Floats> words;
  const Vector scale = hn::Set(floats, d);
  const Vector offset = hn::Set(floats, m);
  for (size_t at = 0; at < 32; at += kLanes) {
    const auto number =
        hn::ConvertTo(floats, hn::PromoteTo(words, hn::LoadU(bytes, numbers + at)));
    hn::Store(hn::Add(hn::Mul(number, scale), offset), floats, out + at);
  }
}

// The same without an offset: adding 0 would turn -0 into 0.
HWY_INLINE void store_numbers(const int8_t* numbers, float d, float* out) {
  const Floats floats;
  const hn::Rebind<int8_t, Floats> bytes;
  const hn::Rebind<int32_t, Floats> words;
  const Vector scale = hn::Set(floats, d);
  for (size_t at = 0; at < 32; at += kLanes) {
    const auto number =
        hn::ConvertTo(floats, hn::PromoteTo(words, hn::LoadU(bytes, numbers + at)));
    hn::Store(hn::Mul(number, scale), floats, out + at);
  }
}

HWY_INLINE float half_at(const uint8_t* source) {
#if HWY_TARGET <= HWY_AVX2
  const hn::CappedTag<float, 4> floats;
  const hn::Rebind<uint16_t, hn::CappedTag<float, 4>> shorts;
  const hn::Rebind<hwy::float16_t, hn::CappedTag<float, 4>> halves;
  const auto bits = hn::Set(shorts, kvspan_ref_load_u16(source));
  return hn::GetLane(hn::PromoteTo(floats, hn::BitCast(halves, bits)));
#else
  return kvspan_ref_f32_from_f16(kvspan_ref_load_u16(source));
#endif
}

// Low and high nibbles of 16 bytes as numbers 0..15 to numbers [32].
HWY_INLINE void split_nibbles(const uint8_t* packed, int8_t* numbers) {
  const hn::CappedTag<uint8_t, 16> bytes;
  uint8_t* const out = reinterpret_cast<uint8_t*>(numbers);
  const auto both = hn::LoadU(bytes, packed);
  hn::Store(hn::And(both, hn::Set(bytes, uint8_t{15})), bytes, out);
  hn::Store(hn::ShiftRight<4>(both), bytes, out + 16);
}

// Adds 16 to the numbers whose bit is set: bit j of `bits` is number j.
HWY_INLINE void add_fifth_bits(uint32_t bits, int8_t* numbers) {
  for (uint32_t part = 0; part < 4; ++part) {
    // The byte copied to eight bytes, bit i of copy i kept; then 0x7F carries "not 0" into bit 7.
    const uint64_t copies = ((bits >> (8u * part)) & 0xFFu) * 0x0101010101010101ull;
    const uint64_t kept = copies & 0x8040201008040201ull;
    const uint64_t top_bits = (kept + 0x7F7F7F7F7F7F7F7Full) & 0x8080808080808080ull;
    const uint64_t fifth = top_bits >> 3;
    uint64_t eight = 0;
    std::memcpy(&eight, numbers + 8u * part, 8);
    eight |= fifth;
    std::memcpy(numbers + 8u * part, &eight, 8);
  }
}

HWY_INLINE void subtract(int8_t amount, int8_t* numbers) {
  const hn::CappedTag<int8_t, 16> bytes;
  const auto less = hn::Set(bytes, amount);
  hn::Store(hn::Sub(hn::Load(bytes, numbers), less), bytes, numbers);
  hn::Store(hn::Sub(hn::Load(bytes, numbers + 16), less), bytes, numbers + 16);
}

HWY_INLINE void load_block(kvspan_type_t type, const uint8_t* block, float* out) {
  HWY_ALIGN int8_t numbers[32];
  const float d = half_at(block);
  switch (type) {
    case KVSPAN_TYPE_Q8_0:
      store_numbers(reinterpret_cast<const int8_t*>(block + 2), d, out);
      break;
    case KVSPAN_TYPE_Q4_0:
      split_nibbles(block + 2, numbers);
      subtract(8, numbers);
      store_numbers(numbers, d, out);
      break;
    case KVSPAN_TYPE_Q4_1:
      split_nibbles(block + 4, numbers);
      store_numbers(numbers, d, half_at(block + 2), out);
      break;
    case KVSPAN_TYPE_Q5_0:
      split_nibbles(block + 6, numbers);
      add_fifth_bits(kvspan_ref_load_u32(block + 2), numbers);
      subtract(16, numbers);
      store_numbers(numbers, d, out);
      break;
    case KVSPAN_TYPE_Q5_1:
      split_nibbles(block + 8, numbers);
      add_fifth_bits(kvspan_ref_load_u32(block + 4), numbers);
      store_numbers(numbers, d, half_at(block + 2), out);
      break;
    default:
      break;
  }
}

// One row of `elements` to out [padded]; what lies behind the elements in out is not meaningful.
HWY_INLINE void load_row(kvspan_type_t type, const uint8_t* row, uint32_t elements, float* out) {
  switch (type) {
    case KVSPAN_TYPE_F32:
      std::memcpy(out, row, 4u * size_t{elements});
      break;
    case KVSPAN_TYPE_F16:
      load_shorts(row, elements, out, f32_of_halves);
      break;
    case KVSPAN_TYPE_BF16:
      load_shorts(row, elements, out, f32_of_brains);
      break;
    default: {
      const kvspan_ref_block_t block = kvspan_ref_block(type);
      for (uint32_t at = 0; at < elements; at += block.elements, row += block.bytes) {
        load_block(type, row, out + at);
      }
      break;
    }
  }
}

// Rows of tokens [first, end) of a plane, one KV head, to out [token - first, stride].
HWY_NOINLINE void load_rows(const PlaneView& plane,
                            kvspan_type_t type,
                            uint32_t kv_head,
                            uint64_t first,
                            uint32_t count,
                            uint32_t elements,
                            float* out) {
  const uint64_t stride = padded(elements);
  const uint8_t* const head = plane.base + kv_head * plane.head_stride;
  while (count > 0) {
    uint64_t page = 0;
    uint64_t within = first;
    uint64_t run = count;
    if (plane.page_tokens != 0) {
      page = first / plane.page_tokens;
      within = first % plane.page_tokens;
      run = plane.page_tokens - within < run ? plane.page_tokens - within : run;
      page = plane.page_list != nullptr ? plane.page_list[page] : page;
    }
    const uint8_t* row = head + page * plane.page_stride + within * plane.row_stride;
    for (uint64_t i = 0; i < run; ++i, row += plane.row_stride, out += stride) {
      load_row(type, row, elements, out);
    }
    first += run;
    count -= static_cast<uint32_t>(run);
  }
}

// rows [kGranuleTokens, padded(elements)] to columns [elements, kGranuleTokens].
HWY_NOINLINE void transpose(const float* rows, uint32_t elements, float* columns) {
  const hn::Full128<float> four;
  const hn::Full128<double> pairs;
  const size_t stride = padded(elements);
  for (size_t token = 0; token < kGranuleTokens; token += 4) {
    const float* const row = rows + token * stride;
    for (size_t d = 0; d < elements; d += 4) {
      const auto a = hn::Load(four, row + d);
      const auto b = hn::Load(four, row + stride + d);
      const auto c = hn::Load(four, row + 2 * stride + d);
      const auto e = hn::Load(four, row + 3 * stride + d);
      const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(four, a, b));
      const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(four, a, b));
      const auto ce_low = hn::BitCast(pairs, hn::InterleaveLower(four, c, e));
      const auto ce_high = hn::BitCast(pairs, hn::InterleaveUpper(four, c, e));
      float* const out = columns + d * kGranuleTokens + token;
      const auto put = [&](size_t i, auto value) HWY_ATTR {
        hn::Store(hn::BitCast(four, value), four, out + i * kGranuleTokens);
      };
      put(0, hn::InterleaveLower(pairs, ab_low, ce_low));
      put(1, hn::InterleaveUpper(pairs, ab_low, ce_low));
      put(2, hn::InterleaveLower(pairs, ab_high, ce_high));
      put(3, hn::InterleaveUpper(pairs, ab_high, ce_high));
    }
  }
}

}  // namespace
}  // namespace kvspan::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
