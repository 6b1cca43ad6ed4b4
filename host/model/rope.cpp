// SPDX-License-Identifier: Apache-2.0
// Rotary embedding by table. Angles are formed in double: at position 131,071 a float angle would
// be off by up to 0.004 radians, enough to see in the logits.
// Read next: rope.hpp for the formula and its source.
#include "model/rope.hpp"

#include "model/fail.hpp"

#include <cmath>
#include <new>

namespace kvspan::model {

std::size_t RopeTable::table_bytes(const RopeShape& shape, std::size_t rows_max) noexcept {
  const std::size_t pairs = shape.dimensions / 2;
  return pairs * (sizeof(double) + rows_max * 2 * sizeof(float));
}

Result<RopeTable> RopeTable::create(const RopeShape& shape, std::size_t rows_max) {
  try {
    RopeTable table;
    const std::size_t pairs = shape.dimensions / 2;
    table.shape_ = shape;
    table.frequencies_.resize(pairs);
    table.cosines_.resize(rows_max * pairs);
    table.sines_.resize(rows_max * pairs);
    for (std::size_t i = 0; i < pairs; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / shape.dimensions;
      table.frequencies_[i] = std::pow(shape.base, exponent);
    }
    return table;
  } catch (const std::bad_alloc&) {
    return fail(Errc::host_memory,
                "no memory for {} bytes of rotation tables: use smaller chunks",
                table_bytes(shape, rows_max));
  }
}

void RopeTable::fill(std::uint64_t first_position, std::size_t rows) noexcept {
  const std::size_t pairs = frequencies_.size();
  for (std::size_t row = 0; row < rows; ++row) {
    const auto position = static_cast<double>(first_position + row);
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = position * frequencies_[i];
      cosines_[row * pairs + i] = static_cast<float>(std::cos(angle));
      sines_[row * pairs + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void RopeTable::rotate(std::size_t row, float* head) const noexcept {
  const std::size_t pairs = frequencies_.size();
  const float* const cosines = cosines_.data() + row * pairs;
  const float* const sines = sines_.data() + row * pairs;
  const bool interleaved = shape_.style == RopeStyle::interleaved;
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::size_t first = interleaved ? 2 * i : i;
    const std::size_t second = interleaved ? 2 * i + 1 : i + pairs;
    const float a = head[first];
    const float b = head[second];
    head[first] = a * cosines[i] - b * sines[i];
    head[second] = a * sines[i] + b * cosines[i];
  }
}

}  // namespace kvspan::model
