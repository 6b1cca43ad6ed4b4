// SPDX-License-Identifier: Apache-2.0
// Scores to weights: scale, soft cap, ALiBi, mask, running maximum, exponentials, sums.
// Included once per instruction set by kernel.cpp. Not here: products (product_inl.hpp).
#if defined(KVSPAN_CPU_ATTENTION_SOFTMAX_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSPAN_CPU_ATTENTION_SOFTMAX_INL
#undef KVSPAN_CPU_ATTENTION_SOFTMAX_INL
#else
#define KVSPAN_CPU_ATTENTION_SOFTMAX_INL
#endif

#include "attention/kernel.hpp"
#include "attention/load_inl.hpp"

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <limits>

HWY_BEFORE_NAMESPACE();

namespace kvspan::cpu::HWY_NAMESPACE {
namespace {

// NOLINTBEGIN(misc-definitions-in-headers): no header but a part of one unit, read once a target.

namespace hn = hwy::HWY_NAMESPACE;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr size_t kGranuleVectors = kGranuleTokens / kLanes;

// exp(x) for x <= 0. exp(0) is exactly 1, below -87 it is 0 (1.6e-38, the last that needs no
// subnormals), NaN stays NaN. Error below 1 unit in the last place.
// Source: reduction and polynomial of Highway's contrib/math (Exp), whose final mask loses NaN.
HWY_INLINE Vector exp_of_negative(Vector x) {
  const Floats floats;
  const hn::Rebind<int32_t, Floats> words;
  const auto q = hn::NearestInt(hn::Mul(x, hn::Set(floats, 1.44269504088896341f)));
  const auto whole = hn::ConvertTo(floats, q);
  Vector r = hn::MulAdd(whole, hn::Set(floats, -0.693145751953125f), x);
  r = hn::MulAdd(whole, hn::Set(floats, -1.428606765330187045e-6f), r);
  const Vector square = hn::Mul(r, r);
  const Vector p01 =
      hn::MulAdd(hn::Set(floats, 0.166666671633720397949219f), r, hn::Set(floats, 0.5f));
  const Vector p23 = hn::MulAdd(hn::Set(floats, 0.00833336077630519866943359f),
                                r,
                                hn::Set(floats, 0.0416664853692054748535156f));
  const Vector p45 = hn::MulAdd(hn::Set(floats, 0.000198527617612853646278381f),
                                r,
                                hn::Set(floats, 0.00139304355252534151077271f));
  Vector y = hn::MulAdd(hn::MulAdd(p45, square, p23), square, p01);
  y = hn::Add(hn::MulAdd(y, square, r), hn::Set(floats, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(q, hn::Set(words, 127)));
  y = hn::Mul(y, hn::BitCast(floats, exponent));
  return hn::IfThenElse(hn::Lt(x, hn::Set(floats, -87.0f)), hn::Zero(floats), y);
}

HWY_INLINE float exp_of_negative(float x) {
  return hn::GetLane(exp_of_negative(hn::Set(Floats(), x)));
}

// What turns dots of one row and head into scores.
struct Scoring {
  float scale;
  float soft_cap;          // 0 = none
  float slope;             // used with distances
  const float* distances;  // [token] token - position, or nullptr without ALiBi
};

HWY_INLINE Vector scored(const Scoring& scoring, const float* dots, size_t at) {
  const Floats floats;
  Vector s = hn::Mul(hn::Load(floats, dots + at), hn::Set(floats, scoring.scale));
  if (scoring.soft_cap != 0.0f) {
    const Vector cap = hn::Set(floats, scoring.soft_cap);
    s = hn::Mul(cap, hn::Tanh(floats, hn::Div(s, cap)));
  }
  if (scoring.distances != nullptr) {
    s = hn::MulAdd(hn::Set(floats, scoring.slope), hn::Load(floats, scoring.distances + at), s);
  }
  return s;
}

// Bit `at + lane` of `visible` as a mask.
HWY_INLINE hn::Mask<Floats> mask_of(uint32_t visible, size_t at) {
  const Floats floats;
  const hn::Rebind<uint32_t, Floats> words;
  const auto bit = hn::Shl(hn::Set(words, 1u), hn::Iota(words, static_cast<uint32_t>(at)));
  return hn::RebindMask(floats, hn::TestBit(hn::Set(words, visible), bit));
}

struct Granule {
  float m;    // the new maximum
  float sum;  // of the weights; 0 = nothing that weighs: the state stays as it was
};

// Whether a score is NaN; only asked when none is above -inf.
HWY_INLINE bool any_nan(const Vector* s) {
  const Floats floats;
  bool any = false;
  for (size_t i = 0; i < kGranuleVectors; ++i) {
    any = any || !hn::AllTrue(floats, hn::Eq(s[i], s[i]));
  }
  return any;
}

// dots [32] become weights. `visible` is not 0. m and sum are NaN where a visible score is.
HWY_INLINE Granule weigh(const Scoring& scoring, uint32_t visible, float old_m, float* dots) {
  const Floats floats;
  Vector s[kGranuleVectors];
  HWY_UNROLL(8)
  for (size_t i = 0; i < kGranuleVectors; ++i) {
    s[i] = scored(scoring, dots, i * kLanes);
  }
  if (visible != UINT32_MAX) {
    const Vector hidden = hn::Set(floats, kMinusInfinity);
    HWY_UNROLL(8)
    for (size_t i = 0; i < kGranuleVectors; ++i) {
      s[i] = hn::IfThenElse(mask_of(visible, i * kLanes), s[i], hidden);
    }
  }
  Vector largest = s[0];
  HWY_UNROLL(8)
  for (size_t i = 1; i < kGranuleVectors; ++i) {
    largest = hn::Max(largest, s[i]);
  }
  const float granule_m = hn::GetLane(hn::MaxOfLanes(floats, largest));
  const float m = granule_m > old_m ? granule_m : old_m;
  if (m == kMinusInfinity && !any_nan(s)) {
    return {m, 0.0f};
  }
  const Vector base = hn::Set(floats, m);
  Vector sum = hn::Zero(floats);
  HWY_UNROLL(8)
  for (size_t i = 0; i < kGranuleVectors; ++i) {
    const Vector weight = exp_of_negative(hn::Sub(s[i], base));
    hn::Store(weight, floats, dots + i * kLanes);
    sum = i == 0 ? weight : hn::Add(sum, weight);
  }
  const float total = hn::GetLane(hn::SumOfLanes(floats, sum));
  return {total == total ? m : total, total};
}

// NOLINTEND(misc-definitions-in-headers)

}  // namespace
}  // namespace kvspan::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
