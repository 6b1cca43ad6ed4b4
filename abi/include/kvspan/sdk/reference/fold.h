// SPDX-License-Identifier: Apache-2.0
// The state {m, l, u} of one (row, head) of a split, its fold into an accumulator, and the finish.
// This defines what the states mean; a plugin may compute with other roundings but not other rules.
// Not here: how a state grows over tokens (advance.h). Read next: attention.h, fold and finish.
//
// m = the largest scaled, capped, biased score in natural units, f32;
// l = sum of exp(s - m), u[d_v] = sum of exp(s - m) * v over the tokens seen so far, f32.
// Neutral = (-inf, 0, 0) = nothing seen. It is skipped, never added: not even a -0 changes.
// Sums are taken in f64, where products of f32 are exact, and rounded to f32 once: so the bits do
// not depend on fused multiply-add. A NaN that a row really sees stays NaN in m, l and u.
#ifndef KVSPAN_SDK_REFERENCE_FOLD_H
#define KVSPAN_SDK_REFERENCE_FOLD_H

#include "kvspan/sdk/reference/rounding.h"

#include <math.h>
#include <stdint.h>

/// The larger of x and y; NaN where either is. Any thread.
static inline float kvspan_ref_max(float x, float y) {
  return x > y || x != x ? x : y;
}

/// Whether a state with this m is neutral. Any thread. 1 = yes.
static inline int kvspan_ref_state_is_neutral(float m) {
  return m == -HUGE_VALF ? 1 : 0;
}

/// Makes ml [2] = {m, l} and u [head_size_v] neutral. Any thread.
static inline void kvspan_ref_state_clear(float* ml, float* u, uint32_t head_size_v) {
  ml[0] = -HUGE_VALF;
  ml[1] = 0.0f;
  for (uint32_t d = 0; d < head_size_v; ++d) {
    u[d] = 0.0f;
  }
}

/// Makes ml [2], u [head_size_v] the state of a finished result: out [head_size_v] with its LSE.
/// m = lse, l = 1, u = out; neutral where lse is -inf, whatever out holds. Any thread.
/// For results of other devices that are merged with ours. out may be u.
static inline void kvspan_ref_state_of_result(
    const float* out, float lse, uint32_t head_size_v, float* ml, float* u) {
  if (kvspan_ref_state_is_neutral(lse)) {
    kvspan_ref_state_clear(ml, u, head_size_v);
    return;
  }
  ml[0] = lse;
  ml[1] = 1.0f;
  for (uint32_t d = 0; d < head_size_v; ++d) {
    u[d] = out[d];
  }
}

/// Folds source {source_ml [2], source_u [head_size_v]} into the accumulator {ml [2],
/// u [head_size_v]}: M = max(m, m_i), l = l * exp(m - M) + l_i * exp(m_i - M), u alike, m = M.
/// A neutral source leaves the accumulator, a neutral accumulator becomes the source, bit for bit.
/// Any thread; a left fold in ascending split order, so callers keep that order. No overlap.
static inline void kvspan_ref_state_fold(
    float* ml, float* u, const float* source_ml, const float* source_u, uint32_t head_size_v) {
  if (kvspan_ref_state_is_neutral(source_ml[0])) {
    return;
  }
  if (kvspan_ref_state_is_neutral(ml[0])) {
    ml[0] = source_ml[0];
    ml[1] = source_ml[1];
    for (uint32_t d = 0; d < head_size_v; ++d) {
      u[d] = source_u[d];
    }
    return;
  }
  const float m = kvspan_ref_max(ml[0], source_ml[0]);
  const double ours = expf(ml[0] - m);
  const double theirs = expf(source_ml[0] - m);
  ml[0] = m;
  ml[1] = (float)((double)ml[1] * ours + (double)source_ml[1] * theirs);
  for (uint32_t d = 0; d < head_size_v; ++d) {
    u[d] = (float)((double)u[d] * ours + (double)source_u[d] * theirs);
  }
}

/// Writes out [head_size_v] = u / l of the accumulator {ml [2], u [head_size_v]} and returns the
/// LSE, m + ln(l). Any thread; out may be u.
/// `sink`, or NULL, is one logit that joins the softmax without a value: l grows by exp(sink - m).
/// Neutral: out = 0 and -inf, with a sink too: a row that sees nothing has no output to weigh.
static inline float kvspan_ref_state_finish(
    const float* ml, const float* u, uint32_t head_size_v, const float* sink, float* out) {
  if (kvspan_ref_state_is_neutral(ml[0])) {
    for (uint32_t d = 0; d < head_size_v; ++d) {
      out[d] = 0.0f;
    }
    return -HUGE_VALF;
  }
  if (!sink) {
    for (uint32_t d = 0; d < head_size_v; ++d) {
      out[d] = u[d] / ml[1];
    }
    // m itself where l is 1: m + 0 would turn -0 into +0.
    return ml[1] == 1.0f ? ml[0] : (float)((double)ml[0] + log((double)ml[1]));
  }
  const float m = kvspan_ref_max(ml[0], *sink);
  const double ours = expf(ml[0] - m);
  const double l = (double)ml[1] * ours + (double)expf(*sink - m);
  for (uint32_t d = 0; d < head_size_v; ++d) {
    out[d] = (float)((double)u[d] * ours / l);
  }
  return (float)((double)m + log(l));
}

#endif
