// SPDX-License-Identifier: Apache-2.0
// The two matrix products of a granule: scores = q * k, and u = u * kept + weights * v.
// Included once per instruction set by kernel.cpp.
//
// Every output is one accumulator that takes its terms in ascending order by MulAdd, whatever block
// it is computed in: so bits do not depend on how many pairs ride along. Blocks only keep registers
// busy.
#if defined(KVSPAN_CPU_ATTENTION_PRODUCT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSPAN_CPU_ATTENTION_PRODUCT_INL
#undef KVSPAN_CPU_ATTENTION_PRODUCT_INL
#else
#define KVSPAN_CPU_ATTENTION_PRODUCT_INL
#endif

#include "attention/kernel.hpp"
#include "attention/load_inl.hpp"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace kvspan::cpu::HWY_NAMESPACE {
namespace {

// NOLINTBEGIN(misc-definitions-in-headers): no header but a part of one unit, read once a target.

namespace hn = hwy::HWY_NAMESPACE;

// Pairs and vectors of a block: accumulators + operands fit 32 registers of AVX-512, 16 elsewhere.
#if HWY_TARGET <= HWY_AVX3
constexpr size_t kBlockPairs = 8;
#else
constexpr size_t kBlockPairs = 6;
#endif
constexpr size_t kBlockVectors = 2;

// Rows of the left side and where the output goes; strides in elements.
struct Left {
  const float* rows;
  size_t stride;
};

// scores [P pairs, V vectors of tokens] over head_size elements. columns, scores: at their first
// token.
template <size_t P, size_t V>
HWY_INLINE void score_block(Left q, const float* columns, size_t head_size, float* scores) {
  const Floats floats;
  Vector sums[P][V];
  HWY_UNROLL(16)
  for (size_t p = 0; p < P; ++p) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) {
      sums[p][v] = hn::Zero(floats);
    }
  }
  for (size_t d = 0; d < head_size; ++d) {
    Vector column[V];
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) {
      column[v] = hn::Load(floats, columns + d * kGranuleTokens + v * kLanes);
    }
    HWY_UNROLL(16)
    for (size_t p = 0; p < P; ++p) {
      const Vector element = hn::Set(floats, q.rows[p * q.stride + d]);
      HWY_UNROLL(4)
      for (size_t v = 0; v < V; ++v) {
        sums[p][v] = hn::MulAdd(element, column[v], sums[p][v]);
      }
    }
  }
  HWY_UNROLL(16)
  for (size_t p = 0; p < P; ++p) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) {
      hn::Store(sums[p][v], floats, scores + p * kGranuleTokens + v * kLanes);
    }
  }
}

template <size_t P>
HWY_INLINE void score_pairs(Left q, const float* columns, size_t head_size, float* scores) {
  for (size_t token = 0; token < kGranuleTokens; token += kBlockVectors * kLanes) {
    score_block<P, kBlockVectors>(q, columns + token, head_size, scores + token);
  }
}

// scores [pair, token] = q [pair, d] * columns [d, token].
HWY_NOINLINE void score(
    Left q, size_t pairs, const float* columns, size_t head_size, float* scores) {
  size_t p = 0;
  const auto at = [&](size_t pair) { return Left{q.rows + pair * q.stride, q.stride}; };
  for (; p + kBlockPairs <= pairs; p += kBlockPairs) {
    score_pairs<kBlockPairs>(at(p), columns, head_size, scores + p * kGranuleTokens);
  }
  for (; p + 3 <= pairs; p += 3) {
    score_pairs<3>(at(p), columns, head_size, scores + p * kGranuleTokens);
  }
  for (; p < pairs; ++p) {
    score_pairs<1>(at(p), columns, head_size, scores + p * kGranuleTokens);
  }
}

// u [P pairs, V vectors] = u * kept + weights [P, token] * values [token, V vectors], all tokens.
template <size_t P, size_t V>
HWY_INLINE void value_block(
    const float* weights, Left values, const float* kept, float* u, size_t u_stride) {
  const Floats floats;
  Vector sums[P][V];
  HWY_UNROLL(16)
  for (size_t p = 0; p < P; ++p) {
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) {
      sums[p][v] = hn::Zero(floats);
    }
  }
  for (size_t token = 0; token < kGranuleTokens; ++token) {
    Vector value[V];
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) {
      value[v] = hn::Load(floats, values.rows + token * values.stride + v * kLanes);
    }
    HWY_UNROLL(16)
    for (size_t p = 0; p < P; ++p) {
      const Vector weight = hn::Set(floats, weights[p * kGranuleTokens + token]);
      HWY_UNROLL(4)
      for (size_t v = 0; v < V; ++v) {
        sums[p][v] = hn::MulAdd(weight, value[v], sums[p][v]);
      }
    }
  }
  HWY_UNROLL(16)
  for (size_t p = 0; p < P; ++p) {
    const Vector factor = hn::Set(floats, kept[p]);
    HWY_UNROLL(4)
    for (size_t v = 0; v < V; ++v) {
      float* const out = u + p * u_stride + v * kLanes;
      hn::Store(hn::MulAdd(hn::Load(floats, out), factor, sums[p][v]), floats, out);
    }
  }
}

template <size_t P>
HWY_INLINE void value_pairs(
    const float* weights, Left values, const float* kept, float* u, size_t u_stride) {
  size_t d = 0;
  for (; d + kBlockVectors * kLanes <= u_stride; d += kBlockVectors * kLanes) {
    value_block<P, kBlockVectors>(
        weights, Left{values.rows + d, values.stride}, kept, u + d, u_stride);
  }
  for (; d < u_stride; d += kLanes) {
    value_block<P, 1>(weights, Left{values.rows + d, values.stride}, kept, u + d, u_stride);
  }
}

// One pair that sees only the tokens whose bit is set; others are not multiplied, whatever they
// hold. The terms and their order are those of value_block, so with all bits set the bits are the
// same.
HWY_INLINE void value_masked(
    const float* weights, Left values, uint32_t visible, float kept, float* u, size_t u_stride) {
  const Floats floats;
  const Vector factor = hn::Set(floats, kept);
  for (size_t d = 0; d < u_stride; d += kLanes) {
    Vector sum = hn::Zero(floats);
    for (uint32_t rest = visible; rest != 0; rest &= rest - 1) {
      const size_t token = static_cast<size_t>(__builtin_ctz(rest));
      sum = hn::MulAdd(hn::Set(floats, weights[token]),
                       hn::Load(floats, values.rows + token * values.stride + d),
                       sum);
    }
    hn::Store(hn::MulAdd(hn::Load(floats, u + d), factor, sum), floats, u + d);
  }
}

// NOLINTEND(misc-definitions-in-headers)

}  // namespace
}  // namespace kvspan::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
