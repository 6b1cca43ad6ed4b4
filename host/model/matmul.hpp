// SPDX-License-Identifier: Apache-2.0
// Matrix products of activations with weights, y = x w^T, in f32, on a thread team and on the
// fastest instruction set of this machine. The arithmetic is Eigen's, serial; the threads are ours.
// Not a general BLAS: row-major, contiguous, no accumulation into y.
// Read next: matmul_kernels.hpp for what makes results independent of threads and batches.
#pragma once

#include "kvspan/core/error.hpp"

#include "model/matmul_kernels.hpp"
#include "model/thread_team.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace kvspan::model {

// Instruction sets that the product is compiled for, slowest first.
enum class MatmulIsa { v2, avx2, avx512 };

[[nodiscard]] std::string_view matmul_isa_name(MatmulIsa isa) noexcept;

// True when this processor and its operating system run `isa`. [any-thread]
[[nodiscard]] bool matmul_isa_available(MatmulIsa isa) noexcept;

// The fastest available one. [any-thread]
[[nodiscard]] MatmulIsa matmul_isa_best() noexcept;

// One product: y[row, out] = sum over in of x[row, in] * w[out, in]. All row-major and contiguous;
// y overlaps neither x nor w; outs >= 2, ins >= 1, rows >= 1.
struct Product {
  const float* x = nullptr;  // [rows, ins]
  const float* w = nullptr;  // [outs, ins]
  float* y = nullptr;        // [rows, outs]
  std::size_t rows = 0;
  std::size_t outs = 0;
  std::size_t ins = 0;
};

// The largest call that a Matmul will see.
struct MatmulLimits {
  std::size_t ins_sum = 0;   // the sum of `ins` over the products of one call
  std::size_t outs_sum = 0;  // the sum of `outs` over the products of one call
};

// Runs products. Owns a little scratch for row counts that are no multiple of kMatmulRowStep.
// Invariants: the bits of a row of y depend on that row of x, on w and on the instruction set, and
// neither on the number of threads nor on the other rows of the call. (Cause: matmul_kernels.hpp.
// Tests: Matmul.*)
// Thread rule: one call at a time. The only allocations after create() are Eigen's packing buffers,
// made and freed within a call.
class Matmul {
 public:
  // Errors: unsupported (`isa` does not run here: use matmul_isa_best()), host_memory.
  [[nodiscard]] static Result<Matmul> create(MatmulIsa isa, const MatmulLimits& limits);

  // Bytes of scratch that create() will allocate for `limits`. [any-thread]
  [[nodiscard]] static std::size_t scratch_bytes(const MatmulLimits& limits) noexcept;

  [[nodiscard]] MatmulIsa isa() const noexcept { return isa_; }

  // Computes all of `products`, which must not depend on each other, in one run of the team.
  // Pre: the limits given to create() hold.
  // Errors: host_memory (no memory for packing buffers; the products' y are then unspecified).
  [[nodiscard]] Result<void> run(ThreadTeam& team, std::span<const Product> products);

 private:
  struct Part;

  Matmul(MatmulIsa isa, MatmulKernel kernel, const MatmulLimits& limits);
  [[nodiscard]] bool run_part(const Product& product, const Part& part) const;

  MatmulIsa isa_;
  MatmulKernel kernel_;
  std::unique_ptr<float[]> x_tail_;  // [product][kMatmulRowStep, ins]
  std::unique_ptr<float[]> y_tail_;  // [product][kMatmulRowStep, outs]
};

}  // namespace kvspan::model
