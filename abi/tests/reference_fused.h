// SPDX-License-Identifier: Apache-2.0
// What reference_fused.c exports to the tests. Call it only where the CPU has AVX2 and FMA.
#ifndef KVSPAN_TESTS_REFERENCE_FUSED_H
#define KVSPAN_TESTS_REFERENCE_FUSED_H

#include "kvspan/sdk/reference/advance.h"
#include "kvspan/types.h"

#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

/// x * y + z as the compiler likes: one rounding when it fuses.
float kvspan_test_fused_sum(float x, float y, float z);
/// x * y rounded, + z rounded, by the reference's product.
float kvspan_test_fused_separate(float x, float y, float z);
/// kvspan_ref_encode_row: x [elements] to a row of `type`.
uint64_t kvspan_test_fused_encode_row(kvspan_type_t type,
                                      const float* x,
                                      uint64_t elements,
                                      void* out);
/// kvspan_ref_decode_row: a row of `type` to out [elements].
uint64_t kvspan_test_fused_decode_row(kvspan_type_t type,
                                      const void* in,
                                      uint64_t elements,
                                      float* out);
/// kvspan_ref_advance of one (row, head).
int kvspan_test_fused_advance(
    const kvspan_ref_advance_t* args, uint64_t first, uint64_t end, float* ml, float* u);

#if defined(__cplusplus)
}
#endif

#endif
