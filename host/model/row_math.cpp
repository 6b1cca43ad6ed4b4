// SPDX-License-Identifier: Apache-2.0
// Row arithmetic in plain loops. The sum of squares is kept in eight double lanes, a fixed order
// that a compiler may vectorise without changing it.
// Read next: row_math.hpp for the formulas.
#include "model/row_math.hpp"

#include <array>
#include <cmath>

namespace kvspan::model {

void rms_norm_row(
    const float* x, const float* weight, float epsilon, std::size_t size, float* out) noexcept {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> lanes = {};
  std::size_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(x[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (std::size_t lane = 0; i < size; ++i, ++lane) {
    const auto value = static_cast<double>(x[i]);
    lanes[lane] += value * value;
  }
  double sum = 0.0;
  for (const double lane : lanes) {
    sum += lane;
  }
  const double mean = sum / static_cast<double>(size);
  const auto factor = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(epsilon)));
  for (i = 0; i < size; ++i) {
    out[i] = x[i] * factor * weight[i];
  }
}

void swiglu_row(float* gate, const float* up, std::size_t size) noexcept {
  for (std::size_t i = 0; i < size; ++i) {
    gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
  }
}

void add_row(float* x, const float* y, std::size_t size) noexcept {
  for (std::size_t i = 0; i < size; ++i) {
    x[i] += y[i];
  }
}

}  // namespace kvspan::model
