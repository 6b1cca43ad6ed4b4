// SPDX-License-Identifier: Apache-2.0
// The body of the three matrix product units: Eigen's serial product over a tile. Each unit sets
// KVSPAN_MATMUL_NAME (the exported function) and, on its command line, -DEigen=<a name of its own>:
// the namespace Eigen is renamed by the preprocessor, so that the linker cannot merge an inline
// function of one instruction set into another.
// Not a header: exactly one inclusion per unit.
// Read next: matmul_kernels.hpp for why rows and columns come in whole steps.
#include "model/matmul_kernels.hpp"

// Eigen would take its coefficient-by-coefficient path for small products, with another order of
// additions.
#define EIGEN_GEMM_TO_COEFFBASED_THRESHOLD 0
#define EIGEN_DONT_PARALLELIZE 1
#define EIGEN_NO_DEBUG 1
#include <Eigen/Core>

namespace kvspan::model {

bool KVSPAN_MATMUL_NAME(const MatmulTile& tile) noexcept try {
  using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using ColMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
  using Stride = Eigen::OuterStride<Eigen::Dynamic>;
  const auto rows = static_cast<Eigen::Index>(tile.rows);
  const auto outs = static_cast<Eigen::Index>(tile.outs);
  const auto ins = static_cast<Eigen::Index>(tile.ins);
  const auto x_stride = static_cast<Eigen::Index>(tile.x_stride);
  const auto y_stride = static_cast<Eigen::Index>(tile.y_stride);
  // Transposed, because Eigen's left factor is the one it packs in wide panels: y^T = w x^T, and a
  // row-major matrix read as column-major is its transpose.
  const Eigen::Map<const RowMajor> w(tile.w, outs, ins);
  const Eigen::Map<const ColMajor, 0, Stride> x(tile.x, ins, rows, Stride(x_stride));
  Eigen::Map<ColMajor, 0, Stride> y(tile.y, outs, rows, Stride(y_stride));
  y.noalias() = w * x;
  return true;
} catch (...) {  // std::bad_alloc is all that Eigen throws; naming it would need a std:: header
  return false;
}

}  // namespace kvspan::model
