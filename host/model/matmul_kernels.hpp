// SPDX-License-Identifier: Apache-2.0
// The same matrix product compiled for three instruction sets, as plain functions: one translation
// unit each (matmul_v2.cpp, matmul_avx2.cpp, matmul_avx512.cpp), all of them matmul_kernel.inl with
// other compiler flags. Plain pointers only: a std:: template compiled here with AVX-512 could
// replace the baseline's copy at link time and stop an older processor. `model.isa_symbols` (a
// test) looks at the objects for such symbols.
// Read next: matmul.cpp chooses and calls them.
#pragma once

#include <cstddef>

namespace kvspan::model {

// One product of strided row-major matrices: y[row, out] = sum over in of x[row, in] * w[out, in].
// Strides in elements. Nothing may overlap y. rows is a positive multiple of kMatmulRowStep, outs >
// 1, ins > 0.
struct MatmulTile {
  const float* x;  // [rows, ins], stride x_stride
  const float* w;  // [outs, ins], stride ins
  float* y;        // [rows, outs], stride y_stride
  std::size_t rows;
  std::size_t outs;
  std::size_t ins;
  std::size_t x_stride;
  std::size_t y_stride;
};

// Eigen's product works on 4 rows of ours at a time and treats leftover rows by other code, which
// adds in another order. Whole steps only, and a row's bits do not depend on which rows travel with
// it.
// Source: Eigen 3.4.0, products/GeneralBlockPanelKernel.h, gebp_traits::nr.
inline constexpr std::size_t kMatmulRowStep = 4;

// Likewise for output columns: 12, 24 and 48 of them (3 vectors) at a time for the three
// instruction sets, so tiles begin at multiples of 48.
// Source: the same file, gebp_traits::mr.
inline constexpr std::size_t kMatmulOutStep = 48;

// Computes a tile; false when there is no memory for Eigen's packing buffers (a few MiB), and y is
// then unspecified.
using MatmulKernel = bool (*)(const MatmulTile& tile) noexcept;

bool matmul_tile_v2(const MatmulTile& tile) noexcept;
bool matmul_tile_avx2(const MatmulTile& tile) noexcept;
bool matmul_tile_avx512(const MatmulTile& tile) noexcept;

}  // namespace kvspan::model
