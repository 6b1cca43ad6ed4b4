// SPDX-License-Identifier: Apache-2.0
// Typed rows to f32 rows, and 32 rows to columns. Included once per instruction set by kernel.cpp.
// Values equal the C reference's decode (kvspan/sdk/reference/quant.h) bit for bit.
#if defined(KVSPAN_CPU_ATTENTION_LOAD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSPAN_CPU_ATTENTION_LOAD_INL
#undef KVSPAN_CPU_ATTENTION_LOAD_INL
#else
#define KVSPAN_CPU_ATTENTION_LOAD_INL
#endif

#include "kvspan/sdk/reference/quant.h"

#include "attention/kernel.hpp"

#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();

namespace kvspan::cpu::HWY_NAMESPACE {
namespace {

// NOLINTBEGIN(misc-definitions-in-headers): no header but a part of one unit, read once a target.

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

using Bytes = hn::CappedTag<int8_t, 16>;
using Numbers = hn::Vec<Bytes>;

enum class Offset { absent, present };

// 16 numbers * d, or * d + m where there is an offset: adding a 0 would turn -0 into 0.
template <Offset kOffset>
HWY_INLINE void store_sixteen(Numbers numbers, Vector d, Vector m, float* out) {
  const Floats floats;
  const hn::Rebind<int32_t, Floats> words;
  const auto store = [&](auto bytes, size_t at) HWY_ATTR {
    Vector value = hn::Mul(hn::ConvertTo(floats, hn::PromoteTo(words, bytes)), d);
    if constexpr (kOffset == Offset::present) {
      value = hn::Add(value, m);
    }
    hn::Store(value, floats, out + at);
  };
  if constexpr (kLanes == 16) {
    store(numbers, 0);
  } else {
    const hn::Rebind<int8_t, Floats> few;
    HWY_ALIGN int8_t buffer[16];
    hn::Store(numbers, Bytes(), buffer);
    for (size_t at = 0; at < 16; at += kLanes) {
      store(hn::LoadU(few, buffer + at), at);
    }
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

// The fifth bits of 16 numbers, each as 16 or 0: bit j of `bits` is number j.
HWY_INLINE Numbers fifth_bits(uint32_t bits) {
  HWY_ALIGN uint64_t eights[2];
  for (uint32_t part = 0; part < 2; ++part) {
    // The byte copied to eight bytes, bit i of copy i kept; then 0x7F carries "not 0" into bit 7.
    const uint64_t copies = ((bits >> (8u * part)) & 0xFFu) * 0x0101010101010101ull;
    const uint64_t kept = copies & 0x8040201008040201ull;
    eights[part] = ((kept + 0x7F7F7F7F7F7F7F7Full) & 0x8080808080808080ull) >> 3;
  }
  return hn::BitCast(Bytes(), hn::Load(hn::CappedTag<uint64_t, 2>(), eights));
}

// Where the parts of a block of a nibble type lie, and what they mean.
struct Nibbles {
  size_t m_at;     // offset m; 0 = none
  size_t high_at;  // fifth bits; 0 = none
  size_t low_at;   // nibbles
  int8_t zero;     // number that means 0, with no offset
};

constexpr Nibbles nibbles_of(kvspan_type_t type) {
  switch (type) {
    case KVSPAN_TYPE_Q4_0:
      return {0, 0, 2, 8};
    case KVSPAN_TYPE_Q4_1:
      return {2, 0, 4, 0};
    case KVSPAN_TYPE_Q5_0:
      return {0, 2, 6, 16};
    default:
      return {2, 4, 8, 0};
  }
}

// One block of a quantised type to out [32].
template <kvspan_type_t kType>
HWY_INLINE void load_block(const uint8_t* block, float* out) {
  const Floats floats;
  const Bytes bytes;
  const Vector d = hn::Set(floats, half_at(block));
  if constexpr (kType == KVSPAN_TYPE_Q8_0) {
    const auto* const numbers = reinterpret_cast<const int8_t*>(block + 2);
    store_sixteen<Offset::absent>(hn::LoadU(bytes, numbers), d, d, out);
    store_sixteen<Offset::absent>(hn::LoadU(bytes, numbers + 16), d, d, out + 16);
  } else {
    constexpr Nibbles kParts = nibbles_of(kType);
    constexpr Offset kOffset = kParts.m_at != 0 ? Offset::present : Offset::absent;
    const hn::CappedTag<uint8_t, 16> unsigned_bytes;
    const auto packed = hn::LoadU(unsigned_bytes, block + kParts.low_at);
    Numbers low = hn::BitCast(bytes, hn::And(packed, hn::Set(unsigned_bytes, uint8_t{15})));
    Numbers high = hn::BitCast(bytes, hn::ShiftRight<4>(packed));
    if constexpr (kParts.high_at != 0) {
      const uint32_t bits = kvspan_ref_load_u32(block + kParts.high_at);
      low = hn::Or(low, fifth_bits(bits));
      high = hn::Or(high, fifth_bits(bits >> 16));
    }
    Vector m = d;
    if constexpr (kOffset == Offset::present) {
      m = hn::Set(floats, half_at(block + kParts.m_at));
    } else {
      low = hn::Sub(low, hn::Set(bytes, kParts.zero));
      high = hn::Sub(high, hn::Set(bytes, kParts.zero));
    }
    store_sixteen<kOffset>(low, d, m, out);
    store_sixteen<kOffset>(high, d, m, out + 16);
  }
}

// One row of `elements` to out [padded]; what lies behind the elements in out is not meaningful.
template <kvspan_type_t kType>
HWY_INLINE void load_row(const uint8_t* row, uint32_t elements, float* out) {
  if constexpr (kType == KVSPAN_TYPE_F32) {
    std::memcpy(out, row, 4u * size_t{elements});
  } else if constexpr (kType == KVSPAN_TYPE_F16) {
    load_shorts(row, elements, out, f32_of_halves);
  } else if constexpr (kType == KVSPAN_TYPE_BF16) {
    load_shorts(row, elements, out, f32_of_brains);
  } else {
    const uint32_t block_bytes = kvspan_ref_block(kType).bytes;
    for (uint32_t at = 0; at < elements; at += 32, row += block_bytes) {
      load_block<kType>(row, out + at);
    }
  }
}

// Rows of tokens of a plane, one KV head.
struct RowRun {
  const PlaneView* plane;
  uint64_t first;  // token of the plane
  uint32_t count;  // tokens
  uint32_t kv_head;
  uint32_t elements;  // of a row
};

// Asks for the row that is read a granule later. Never faults, wherever it points.
HWY_INLINE void prefetch_row(const uint8_t* row, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(row + at);
  }
}

// To out [token - first, padded elements].
template <kvspan_type_t kType>
HWY_NOINLINE void load_run(RowRun run, float* out) {
  const PlaneView& plane = *run.plane;
  const uint64_t stride = padded(run.elements);
  const uint64_t row_bytes = kvspan_ref_row_bytes(kType, run.elements);
  const uint8_t* const head = plane.base + run.kv_head * plane.head_stride;
  while (run.count > 0) {
    uint64_t page = 0;
    uint64_t within = run.first;
    uint64_t rows = run.count;
    if (plane.page_tokens != 0) {
      page = run.first / plane.page_tokens;
      within = run.first % plane.page_tokens;
      rows = plane.page_tokens - within < rows ? plane.page_tokens - within : rows;
      page = plane.page_list != nullptr ? plane.page_list[page] : page;
    }
    const uint8_t* row = head + page * plane.page_stride + within * plane.row_stride;
    for (uint64_t i = 0; i < rows; ++i, row += plane.row_stride, out += stride) {
      prefetch_row(row + kGranuleTokens * plane.row_stride, row_bytes);
      load_row<kType>(row, run.elements, out);
    }
    run.first += rows;
    run.count -= static_cast<uint32_t>(rows);
  }
}

// Calls body(a constant of the type) for a type that the reference knows.
template <class Body>
HWY_INLINE void for_type(kvspan_type_t type, const Body& body) {
  switch (type) {
    case KVSPAN_TYPE_F32:
      return body(std::integral_constant<kvspan_type_t, KVSPAN_TYPE_F32>());
    case KVSPAN_TYPE_F16:
      return body(std::integral_constant<kvspan_type_t, KVSPAN_TYPE_F16>());
    case KVSPAN_TYPE_BF16:
      return body(std::integral_constant<kvspan_type_t, KVSPAN_TYPE_BF16>());
    case KVSPAN_TYPE_Q8_0:
      return body(std::integral_constant<kvspan_type_t, KVSPAN_TYPE_Q8_0>());
    case KVSPAN_TYPE_Q5_1:
      return body(std::integral_constant<kvspan_type_t, KVSPAN_TYPE_Q5_1>());
    case KVSPAN_TYPE_Q5_0:
      return body(std::integral_constant<kvspan_type_t, KVSPAN_TYPE_Q5_0>());
    case KVSPAN_TYPE_Q4_1:
      return body(std::integral_constant<kvspan_type_t, KVSPAN_TYPE_Q4_1>());
    case KVSPAN_TYPE_Q4_0:
      return body(std::integral_constant<kvspan_type_t, KVSPAN_TYPE_Q4_0>());
    default:
      return;
  }
}

HWY_INLINE void load_rows(kvspan_type_t type, const RowRun& run, float* out) {
  for_type(type, [&](auto known) HWY_ATTR { load_run<decltype(known)::value>(run, out); });
}

HWY_INLINE void load_row(kvspan_type_t type, const uint8_t* row, uint32_t elements, float* out) {
  for_type(type,
           [&](auto known) HWY_ATTR { load_row<decltype(known)::value>(row, elements, out); });
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

// NOLINTEND(misc-definitions-in-headers)

}  // namespace
}  // namespace kvspan::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
