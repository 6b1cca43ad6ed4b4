// SPDX-License-Identifier: Apache-2.0
// The C reference compiled as C11 for a CPU with fused multiply-add, contraction on: what a
// careless plugin author's flags do. The tests compare its bits with those of the ordinary build.
// Not a test itself. Read next: reference_fused.h.
#include "reference_fused.h"

#include "kvspan/sdk/reference/quant.h"

float kvspan_test_fused_sum(float x, float y, float z) {
  const float product = x * y;
  return product + z;
}

float kvspan_test_fused_separate(float x, float y, float z) {
  return kvspan_ref_product(x, y) + z;
}

uint64_t kvspan_test_fused_encode_row(kvspan_type_t type,
                                      const float* x,
                                      uint64_t elements,
                                      void* out) {
  return kvspan_ref_encode_row(type, x, elements, out);
}

uint64_t kvspan_test_fused_decode_row(kvspan_type_t type,
                                      const void* in,
                                      uint64_t elements,
                                      float* out) {
  return kvspan_ref_decode_row(type, in, elements, out);
}

int kvspan_test_fused_advance(
    const kvspan_ref_advance_t* args, uint64_t first, uint64_t end, float* ml, float* u) {
  return kvspan_ref_advance(args, first, end, ml, u);
}
