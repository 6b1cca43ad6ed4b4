// SPDX-License-Identifier: Apache-2.0
// Half granules that not every pair sees whole, and their tokens whose V is no number: such rows are
// left out of the products (make.cuh) and added for the pairs that see them. Device code only. Read
// next: attend.cuh.
#pragma once

#include "attention/tensor/block.cuh"
#include "attention/wide/block.cuh"
#include "attention/wide/sums.cuh"
#include "plane.cuh"
#include "typed_block.cuh"

namespace kvspan::cuda::wide {

// The half granule's tokens that a pair sees, a bit each.
template <class Owner>
__device__ uint32_t seen_of(const Owner& block,
                            uint32_t pair,
                            uint32_t half,
                            const tensor::Stretch& stretch,
                            uint32_t granule) {
  return static_cast<uint32_t>(
      tensor::visible_bits(block.opened(), pair, stretch.token(granule), stretch.stop) >> 32 * half);
}

// What is kept of a half granule that not every pair sees whole, behind its products.
struct Closed {
  uint32_t seen[2];
  uint32_t weights[2][4];
};

// The span of a token that some pair sees.
template <class Owner>
__device__ SpanView span_of(const Owner& block, uint64_t token) {
  const EntryView& entry = block.opened().entry;
  uint32_t at = 0;
  while (entry.spans[at].first_token + entry.spans[at].token_count <= token) {
    ++at;
  }
  SpanView span = entry.spans[at];
  reach_all(block.near(), span);
  return span;
}

// Tokens that were left out of the products, for the pairs that see them, from where they lie.
template <class K, class V>
__device__ void add_odd(const Block<K, V>& block,
                        const Closed& closed,
                        uint32_t odd_tokens,
                        uint64_t first,
                        Sums<K, V>& sums) {
  const Problem& problem = block.problem;
  for (uint32_t left = odd_tokens; left != 0; left &= left - 1) {
    const auto token = static_cast<uint32_t>(__ffs(static_cast<int>(left)) - 1);
    const SpanView span = span_of(block, first + token);
    const uint8_t* const row = row_of(
        problem.v_in_k != 0 ? span.k : span.v, first + token - span.first_token, block.opened().kv_head);
    float weight[2];
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      // Lane token % 8 / 2 of the quad has it.
      uint32_t bits = closed.weights[token / 16][token / 8 % 2 * 2 + r];
      bits = __shfl_sync(~0u, bits, static_cast<int>(threadIdx.x % 32 / 4 * 4 + token % 8 / 2));
      const float2 two = __half22float2(ptx::half2_of(bits));
      weight[r] = token % 2 == 0 ? two.x : two.y;
    }
    sums.for_each_two(block, [&](uint32_t r, uint32_t element, float& a, float& b) {
      if ((closed.seen[r] >> token & 1) != 0) {
        const kvspan_type_t type = V::type(KVSPAN_TYPE_F32);
        a = fmaf(weight[r], tensor::saturated(tensor::element_at(type, row, element)), a);
        b = fmaf(weight[r], tensor::saturated(tensor::element_at(type, row, element + 1)), b);
      }
    });
  }
}

}  // namespace kvspan::cuda::wide
