// SPDX-License-Identifier: Apache-2.0
// The matrix product for the baseline, x86-64-v2 (SSE4.2); its compiler flags are set in
// CMakeLists.txt. Nothing else may go in here: see matmul_kernels.hpp.
#define KVSPAN_MATMUL_NAME matmul_tile_v2
#include "model/matmul_kernel.inl"
