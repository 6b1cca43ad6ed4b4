// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: rotates pairs of elements of a query or key head by an angle that
// grows with the position. Pair i of `dimensions` / 2 turns by position * base^(-2 i / dimensions).
// Not here: any scaling of positions or frequencies (YaRN, linear, Llama 3): files that ask for it
// are refused.
// Source: Su et al., RoFormer, arXiv:2104.09864, section 3.2.2.
// Read next: transformer.cpp, the only user.
#pragma once

#include "kvspan/core/error.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvspan::model {

// Which elements make pair i: 2 i and 2 i + 1 (LLaMA's GGUF files), or i and i + dimensions / 2
// (Qwen's).
enum class RopeStyle { interleaved, halves };

struct RopeShape {
  RopeStyle style = RopeStyle::interleaved;
  std::uint32_t dimensions = 0;  // the first so many elements of a head are rotated; even
  double base = 10000.0;
};

// Sines and cosines for a chunk of consecutive positions.
// Thread rule: fill() by the owner, rotate() then from any thread. No allocation after create().
class RopeTable {
 public:
  // Errors: host_memory.
  [[nodiscard]] static Result<RopeTable> create(const RopeShape& shape, std::size_t rows_max);

  // Bytes that create() will allocate. [any-thread]
  [[nodiscard]] static std::size_t table_bytes(const RopeShape& shape,
                                               std::size_t rows_max) noexcept;

  // Makes row r stand for position first_position + r, for r < rows <= rows_max.
  void fill(std::uint64_t first_position, std::size_t rows) noexcept;

  // Rotates one head of at least `dimensions` elements in place by row r's angles.
  void rotate(std::size_t row, float* head) const noexcept;

 private:
  RopeTable() = default;

  RopeShape shape_;
  std::vector<double> frequencies_;  // [pair], radians per position
  std::vector<float> cosines_;       // [row, pair]
  std::vector<float> sines_;         // [row, pair]
};

}  // namespace kvspan::model
