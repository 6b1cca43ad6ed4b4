// SPDX-License-Identifier: Apache-2.0
// Folding states and finishing a row: the arithmetic of kvspan/sdk/reference/fold.h, once, for
// every kernel that folds. In f32 with every rounding named, so that all of them give the same bits:
// in f64 the chain of one split's fold behind the other took half of a fold's time. Device code only.
#pragma once

#include <cmath>
#include <cstdint>

namespace kvspan::cuda {

// The larger of x and y; NaN where either is.
__device__ inline float larger_or_nan(float x, float y) {
  return x > y || x != x ? x : y;
}

__device__ inline bool is_neutral(float m) {
  return m == -INFINITY;
}

enum class FoldKind : uint32_t { keep, take, both };

// What a fold does to every number of a state.
struct Fold {
  FoldKind kind;
  float m;  // afterwards
  float ours;
  float theirs;
};

__device__ inline Fold fold_of(float m, float source_m) {
  if (is_neutral(source_m)) {
    return {FoldKind::keep, m, 1.0f, 0.0f};
  }
  if (is_neutral(m)) {
    return {FoldKind::take, source_m, 0.0f, 1.0f};
  }
  const float top = larger_or_nan(m, source_m);
  return {FoldKind::both, top, expf(m - top), expf(source_m - top)};
}

// Of two states that both count.
__device__ inline float merged(const Fold& fold, float mine, float source) {
  return __fmaf_rn(source, fold.theirs, __fmul_rn(mine, fold.ours));
}

// l or an element of u behind a fold.
__device__ inline float folded(const Fold& fold, float mine, float source) {
  switch (fold.kind) {
    case FoldKind::keep:
      return mine;
    case FoldKind::take:
      return source;
    default:
      return merged(fold, mine, source);
  }
}

enum class FinishKind : uint32_t { neutral, plain, sink };

// How u becomes an output.
struct Finish {
  FinishKind kind;
  float lse;
  float ours;
  float l;
  double total;
};

// `sink`, or nullptr, is the logit of the head.
__device__ inline Finish finish_of(float m, float l, const float* sink) {
  if (is_neutral(m)) {
    return {FinishKind::neutral, -INFINITY, 0.0f, 0.0f, 0.0};
  }
  if (sink == nullptr) {
    // m itself where l is 1: m + 0 would turn -0 into +0.
    const float lse = l == 1.0f ? m : static_cast<float>(m + log(static_cast<double>(l)));
    return {FinishKind::plain, lse, 1.0f, l, 0.0};
  }
  const float top = larger_or_nan(m, *sink);
  const float ours = expf(m - top);
  const double total = static_cast<double>(l) * ours + static_cast<double>(expf(*sink - top));
  return {FinishKind::sink, static_cast<float>(top + log(total)), ours, l, total};
}

__device__ inline float finished(const Finish& finish, float u) {
  switch (finish.kind) {
    case FinishKind::neutral:
      return 0.0f;
    case FinishKind::plain:
      return __fdiv_rn(u, finish.l);
    default:
      return static_cast<float>(static_cast<double>(u) * finish.ours / finish.total);
  }
}

}  // namespace kvspan::cuda
