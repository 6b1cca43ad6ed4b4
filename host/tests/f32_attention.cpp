// SPDX-License-Identifier: Apache-2.0
// Plain attention: all scores of a row, their softmax, then the weighted sum of values.
// Read next: f32_attention.hpp.
#include "tests/f32_attention.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvspan::model::testing {

namespace {

// In eight lanes, so that a compiler may use vectors without changing the sum.
float dot(const float* a, const float* b, std::size_t size) {
  constexpr std::size_t kLanes = 8;
  std::array<float, kLanes> lanes = {};
  std::size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += a[i + lane] * b[i + lane];
    }
  }
  float sum = 0.0f;
  for (const float lane : lanes) {
    sum += lane;
  }
  for (; i < size; ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

}  // namespace

void F32Attention::attend_head(const History& history,
                               const AttentionRows& rows,
                               std::size_t row,
                               std::size_t head) const {
  const std::size_t size_k = geometry_.head_size_k;
  const std::size_t size_v = geometry_.head_size_v;
  const std::size_t shared = head / (geometry_.q_heads / geometry_.kv_heads);
  const std::size_t tokens = static_cast<std::size_t>(rows.first_position) + row + 1;
  const float* const q = rows.q + (row * geometry_.q_heads + head) * size_k;
  float* const out = rows.out + (row * geometry_.q_heads + head) * size_v;
  std::vector<float> scores(tokens);
  float most = -HUGE_VALF;
  for (std::size_t j = 0; j < tokens; ++j) {
    const float* const k = history.k.data() + (j * geometry_.kv_heads + shared) * size_k;
    scores[j] = geometry_.scale * dot(q, k, size_k);
    most = std::max(most, scores[j]);
  }
  float sum = 0.0f;
  std::fill_n(out, size_v, 0.0f);
  for (std::size_t j = 0; j < tokens; ++j) {
    const float weight = std::exp(scores[j] - most);
    const float* const v = history.v.data() + (j * geometry_.kv_heads + shared) * size_v;
    sum += weight;
    for (std::size_t i = 0; i < size_v; ++i) {
      out[i] += weight * v[i];
    }
  }
  for (std::size_t i = 0; i < size_v; ++i) {
    out[i] /= sum;
  }
}

Result<void> F32Attention::attend(std::uint32_t layer, const AttentionRows& rows) {
  History& history = layers_[layer];
  const std::size_t k_row = std::size_t{geometry_.kv_heads} * geometry_.head_size_k;
  const std::size_t v_row = std::size_t{geometry_.kv_heads} * geometry_.head_size_v;
  if (history.k.size() != rows.first_position * k_row) {
    return tl::unexpected<Error>(
        Error{Errc::invalid_argument, "rows do not follow the history", 0, 0, 0, "f32"});
  }
  history.k.insert(history.k.end(), rows.k, rows.k + rows.rows * k_row);
  history.v.insert(history.v.end(), rows.v, rows.v + rows.rows * v_row);
  const std::size_t members = team_ == nullptr ? 1 : team_->members();
  const std::size_t items = std::size_t{rows.rows} * geometry_.q_heads;
  const auto work = [&](std::size_t member) {
    for (std::size_t item = member; item < items; item += members) {
      attend_head(history, rows, item / geometry_.q_heads, item % geometry_.q_heads);
    }
  };
  if (team_ == nullptr) {
    work(0);
  } else {
    team_->run(work);
  }
  return {};
}

}  // namespace kvspan::model::testing
