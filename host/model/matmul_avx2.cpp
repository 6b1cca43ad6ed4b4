// SPDX-License-Identifier: Apache-2.0
// The matrix product for AVX2 with fused multiply-add; its compiler flags are set in
// CMakeLists.txt. Nothing else may go in here: see matmul_kernels.hpp.
#define KVSPAN_MATMUL_NAME matmul_tile_avx2
#include "model/matmul_kernel.inl"
