// SPDX-License-Identifier: Apache-2.0
// The one thing that the transformer does not do itself: attention over the history, with its KV
// cache. Whoever implements this owns the cache; the transformer hands it new K and V rows and
// takes the result.
// Read next: transformer.hpp, which calls it once per layer and chunk.
#pragma once

#include "kvspan/core/error.hpp"

#include <cstdint>

namespace kvspan::model {

// The rows of one layer and one chunk, in f32, contiguous, owned by the transformer and valid
// during the call only. Queries and keys are already normed and rotated. Row r is the token at
// position first_position + r.
struct AttentionRows {
  const float* q = nullptr;  // [row, q_head, head_size_k]
  const float* k = nullptr;  // [row, kv_head, head_size_k]
  const float* v = nullptr;  // [row, kv_head, head_size_v]
  float* out = nullptr;      // [row, q_head, head_size_v]
  std::uint64_t first_position = 0;
  std::uint32_t rows = 0;
};

// Thread rule: attend() is called by the thread that runs Evaluator::forward(), while no member of
// its team works.
class KvAttention {
 public:
  virtual ~KvAttention() = default;

  // Appends the rows' K and V to `layer`'s history and sets, for each row r and query head h,
  // out[r, h] = sum over j of softmax_j(scale * q[r, h] . k_j) v_j, over the whole history up to
  // and including row r. scale and the sharing of K/V heads are ModelGeometry's. Called for layers
  // 0, 1, ... in order, once each per chunk.
  // Errors: any; forward() stops and returns it unchanged, and the caller decides what its cache
  // holds then.
  [[nodiscard]] virtual Result<void> attend(std::uint32_t layer, const AttentionRows& rows) = 0;
};

}  // namespace kvspan::model
