// SPDX-License-Identifier: Apache-2.0
// Attention in double precision on the values that the typed K and V bytes decode to, by the plain
// definition: no splits, no running maximum. And the bounds of the error classes. Written from the
// definition in attention.h alone; shares no code with the reference of the SDK or with a plugin.
#ifndef KVSPAN_CONFORMANCE_CASES_ORACLE_H
#define KVSPAN_CONFORMANCE_CASES_ORACLE_H

#include "scene.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvspan::conformance {

struct Expected {
  std::vector<double> out;  // [row, q_head, head_size_v]
  std::vector<double> lse;  // [row, q_head]
  double v_max = 0;         // largest |V| that any row sees
};

/// The scaled, capped, biased score of one row and query head with one token.
inline double score(
    const Scene& scene, const Sequence& sequence, uint32_t row, uint32_t head, uint64_t token) {
  const Geometry& geometry = scene.geometry;
  const Rows& rows = sequence.rows;
  const uint32_t kv_head = head / (geometry.q_heads / geometry.kv_heads);
  const float* q = rows.q.data() + (uint64_t{row} * geometry.q_heads + head) * geometry.head_size_k;
  const float* k = sequence.history->k.at(token, kv_head);
  double dot = 0;
  for (uint32_t e = 0; e < geometry.head_size_k; ++e) {
    dot += double{q[e]} * double{k[e]};
  }
  double s = double{scene.scale} * dot;
  if (scene.soft_cap > 0.0F) {
    s = double{scene.soft_cap} * std::tanh(s / double{scene.soft_cap});
  }
  if (!scene.slopes.empty()) {
    const int64_t position = rows.positions.empty()
                                 ? static_cast<int64_t>(rows.visible_end[row]) - 1
                                 : rows.positions[row];
    s += double{scene.slopes[head]} * static_cast<double>(static_cast<int64_t>(token) - position);
  }
  return s;
}

inline void expect_row(
    const Scene& scene, const Sequence& sequence, uint32_t row, uint32_t head, Expected& out) {
  const Geometry& geometry = scene.geometry;
  const uint32_t kv_head = head / (geometry.q_heads / geometry.kv_heads);
  std::vector<uint64_t> tokens;
  std::vector<double> scores;
  double most = -std::numeric_limits<double>::infinity();
  for (uint64_t t = 0; t < sequence.rows.token_total; ++t) {
    if (sequence.rows.sees(row, t)) {
      tokens.push_back(t);
      scores.push_back(score(scene, sequence, row, head, t));
      most = std::max(most, scores.back());
    }
  }
  const uint64_t at = uint64_t{row} * geometry.q_heads + head;
  double* target = out.out.data() + at * geometry.head_size_v;
  if (tokens.empty()) {
    out.lse[at] = -std::numeric_limits<double>::infinity();
    return;
  }
  if (!scene.sinks.empty()) {
    most = std::max(most, double{scene.sinks[head]});
  }
  double sum = scene.sinks.empty() ? 0.0 : std::exp(double{scene.sinks[head]} - most);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const double weight = std::exp(scores[i] - most);
    sum += weight;
    const float* v = sequence.history->v_at(tokens[i], kv_head);
    for (uint32_t e = 0; e < geometry.head_size_v; ++e) {
      target[e] += weight * double{v[e]};
      out.v_max = std::max(out.v_max, std::fabs(double{v[e]}));
    }
  }
  for (uint32_t e = 0; e < geometry.head_size_v; ++e) {
    target[e] /= sum;
  }
  out.lse[at] = most + std::log(sum);
}

inline Expected expect(const Scene& scene, const Sequence& sequence) {
  const uint64_t heads = uint64_t{sequence.rows.count} * scene.geometry.q_heads;
  Expected made;
  made.out.resize(heads * scene.geometry.head_size_v);
  made.lse.resize(heads);
  for (uint32_t row = 0; row < sequence.rows.count; ++row) {
    for (uint32_t head = 0; head < scene.geometry.q_heads; ++head) {
      expect_row(scene, sequence, row, head, made);
    }
  }
  return made;
}

/// NMSE and largest |error| / largest |V| of the class that the caps promise.
struct Bound {
  double nmse, most;
};

inline Bound bound_of(const kvspan_attention_caps_t& caps, const kvspan_attention_shape_t& shape) {
  if (caps.error_class == KVSPAN_ERROR_E0) {
    return {1e-11, 1e-5};
  }
  const bool bf16 = shape.k_type == KVSPAN_TYPE_BF16 || shape.v_type == KVSPAN_TYPE_BF16;
  if (caps.error_class == KVSPAN_ERROR_E1 && !bf16) {
    return {2e-7, 2e-3};
  }
  return {2e-5, 2e-2};
}

/// Half a unit in the last place of an output of that type, relative to the value.
inline double rounding_of(kvspan_type_t type) {
  return type == KVSPAN_TYPE_F32 ? 0.0 : (type == KVSPAN_TYPE_F16 ? 0x1p-11 : 0x1p-8);
}

/// Within the bound. The NMSE is asked of f32 outputs only; 16-bit ones get their rounding on top.
inline ::testing::AssertionResult close_to(const Output& got,
                                           const Expected& want,
                                           const Scene& scene) {
  const Bound bound = bound_of(scene.caps, scene.shape);
  const std::vector<float> values = values_of(got, scene.shape.out_type);
  const double rounding = rounding_of(scene.shape.out_type);
  double error2 = 0;
  double want2 = 0;
  for (std::size_t i = 0; i < want.out.size(); ++i) {
    const double error = std::fabs(double{values[i]} - want.out[i]);
    const double most = bound.most * want.v_max + rounding * std::fabs(want.out[i]) + 0x1p-25;
    if (!(error <= most)) {
      return ::testing::AssertionFailure() << "output " << i << " is " << values[i] << ", expected "
                                           << want.out[i] << " within " << most;
    }
    error2 += error * error;
    want2 += want.out[i] * want.out[i];
  }
  if (scene.shape.out_type == KVSPAN_TYPE_F32 && !(error2 <= bound.nmse * want2)) {
    return ::testing::AssertionFailure()
           << "NMSE is " << error2 / want2 << ", at most " << bound.nmse << " allowed";
  }
  if ((scene.shape.options & KVSPAN_OPTION_LSE) != 0) {
    const std::vector<float> lse = lse_of(got);
    for (std::size_t i = 0; i < want.lse.size(); ++i) {
      const double most = 10.0 * bound.most * std::max(1.0, std::fabs(want.lse[i]));
      const bool none = std::isinf(want.lse[i]);
      if (none ? double{lse[i]} != want.lse[i]
               : !(std::fabs(double{lse[i]} - want.lse[i]) <= most)) {
        return ::testing::AssertionFailure()
               << "LSE " << i << " is " << lse[i] << ", expected " << want.lse[i];
      }
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace kvspan::conformance

#endif
