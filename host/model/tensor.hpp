// SPDX-License-Identifier: Apache-2.0
// Weights as f32 matrices, unpacked once at load from the types a GGUF file may hold.
// Not the KV cache's codec: quantised K and V belong to the plugins. Speed does not matter here,
// clarity does.
// Read next: weights.hpp for which tensors a model has.
#pragma once

#include "kvspan/core/error.hpp"

#include "model/gguf.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvspan::model {

// The f32 value of an IEEE 754 binary16 or of a bfloat16, exact, NaN and infinity included.
// [any-thread]
[[nodiscard]] float half_to_float(std::uint16_t bits) noexcept;
[[nodiscard]] float bfloat16_to_float(std::uint16_t bits) noexcept;

// An owned row-major f32 matrix; a vector is a matrix of one row. Moves; does not copy.
class Matrix {
 public:
  Matrix() = default;

  // A matrix whose elements are not set yet.
  // Errors: host_memory (message and `required` say how many bytes).
  [[nodiscard]] static Result<Matrix> create(std::size_t rows, std::size_t columns);

  [[nodiscard]] bool empty() const noexcept { return data_ == nullptr; }

  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }

  [[nodiscard]] std::size_t columns() const noexcept { return columns_; }

  // [row, column]; nullptr when empty.
  [[nodiscard]] float* data() noexcept { return data_.get(); }

  [[nodiscard]] const float* data() const noexcept { return data_.get(); }

  [[nodiscard]] const float* row(std::size_t index) const noexcept {
    return data_.get() + index * columns_;
  }

 private:
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
  std::unique_ptr<float[]> data_;
};

// Unpacks `tensor`, whose dimensions must be {columns, rows} (or {columns} when rows is 1).
// Errors: bad_file (other dimensions; the message says which), host_memory.
[[nodiscard]] Result<Matrix> unpack_tensor(const GgufTensor& tensor,
                                           std::size_t rows,
                                           std::size_t columns);

}  // namespace kvspan::model
