// SPDX-License-Identifier: Apache-2.0
// What attention this plugin offers: a list of rules, and the query that is computed from it.
// Read next: rules.cpp, kvspan/sdk/capability.hpp.
#pragma once

#include "kvspan/attention_shape.h"
#include "kvspan/sdk/capability.hpp"

#include "attention/kernel.hpp"

#include <cstdint>

namespace kvspan::cuda {

sdk::RuleList attention_rules(const Card& card);

// The answer to a shape that sdk::check_shape accepts. False: an amount does not fit 64 bits.
[[nodiscard]] bool answer(const Card& card,
                          const kvspan_attention_shape_t& shape,
                          kvspan_attention_caps_t& caps);

// Which kernel answers a shape: in f32 (class E0, and E1 where the card's tensor cores do not take
// it), on tensor cores (E1), or there by the one for wide rows (E1). A function of the card, types,
// classes and head sizes only, so that no number of rows changes the bits.
enum class Kernel : uint32_t { f32, tensor, wide };

[[nodiscard]] Kernel kernel_of(const Card& card, const kvspan_attention_shape_t& shape);

// N by row class; a function of the card and the shape's KV heads, so that bits never depend on
// free memory or load. Decode: about as many splits as there are multiprocessors for each to have
// one of some KV head; fewer than 4 make one sum too long. Prefill: rows are the parallelism; 8
// only bounds how long one sum runs.
inline constexpr uint32_t kDecodeSplitsMin = 4;
inline constexpr uint32_t kDecodeSplitsMax = 66;
inline constexpr uint32_t kPrefillSplits = 8;

constexpr uint32_t decode_splits(const Card& card, uint32_t kv_heads) {
  const uint32_t fair = card.multiprocessors / kv_heads;
  return fair < kDecodeSplitsMin   ? kDecodeSplitsMin
         : fair > kDecodeSplitsMax ? kDecodeSplitsMax
                                   : fair;
}

// Splits of an entry that go side by side in run, each with a state in the workspace; 1: one after
// another, with an accumulator there; 0: without. Decode: all, and one more, since a window begins
// in the middle of one. Prefill on tensor cores: all where the rows alone would leave
// multiprocessors without a block; the registers hold one state, the accumulator lies in memory.
constexpr uint64_t run_splits_max(const Card& card,
                                  const kvspan_attention_shape_t& shape,
                                  Kernel kernel) {
  if (shape.row_class == KVSPAN_ROWS_DECODE) {
    return uint64_t{decode_splits(card, shape.kv_heads)} + 1;
  }
  const uint64_t pairs = uint64_t{shape.rows_max} * (shape.q_heads / shape.kv_heads);
  const uint64_t blocks =
      tiles_of(pairs, 1, kernel == Kernel::wide ? kWidePairs : kTensorPairsMax) * shape.kv_heads;
  return kernel == Kernel::f32 ? 0 : blocks < card.multiprocessors ? kPrefillSplits + 1 : 1;
}

}  // namespace kvspan::cuda
