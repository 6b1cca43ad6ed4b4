// SPDX-License-Identifier: Apache-2.0
// The element-wise parts of a transformer, one row at a time: RMS norm, SwiGLU, sums.
// Each works on a row alone, so that any division of rows over threads gives the same bits.
// Read next: transformer.cpp.
#pragma once

#include <cstddef>

namespace kvspan::model {

// out[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i]; x and out may be the same row. x, weight,
// out: [size].
// Source: Zhang and Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467, eq. 4.
void rms_norm_row(
    const float* x, const float* weight, float epsilon, std::size_t size, float* out) noexcept;

// gate[i] = silu(gate[i]) * up[i], silu(z) = z / (1 + exp(-z)). gate, up: [size].
// Source: Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202, eq. 6.
void swiglu_row(float* gate, const float* up, std::size_t size) noexcept;

// x[i] += y[i]. x, y: [size].
void add_row(float* x, const float* y, std::size_t size) noexcept;

}  // namespace kvspan::model
