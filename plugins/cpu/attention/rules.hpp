// SPDX-License-Identifier: Apache-2.0
// What attention this plugin offers: a list of rules, and the query that is computed from it.
// Read next: rules.cpp, kvspan/attention_shape.h.
#pragma once

#include "kvspan/attention_shape.h"

#include <cstdint>

namespace kvspan::cpu {

struct RuleList {
  const kvspan_attention_rule_t* data;
  uint32_t count;
};

RuleList attention_rules();

// The answer to a shape that sdk::check_shape accepts. False: an amount does not fit 64 bits.
[[nodiscard]] bool answer(const kvspan_attention_shape_t& shape, kvspan_attention_caps_t& caps);

// Bytes of one split's state as run() keeps it in its workspace: u, then {m, l}, each 64-byte
// aligned.
struct StateBytes {
  uint64_t u;
  uint64_t ml;

  [[nodiscard]] uint64_t total() const { return u + ml; }
};

// Of `rows` rows; the amounts of a shape fit 64 bits, and so do those of fewer rows.
StateBytes state_bytes(uint64_t rows, uint32_t q_heads, uint32_t head_size_v);

// N by row class: constants, so that bits never depend on the machine's thread count.
// Decode: 8 splits x KV heads keep 16 threads busy with the usual 2 to 8 heads, and a split of 8K
// tokens is still 32 granules. Prefill: rows are the parallelism; 4 only bounds how long one sum
// runs.
inline constexpr uint32_t kDecodeSplits = 8;
inline constexpr uint32_t kPrefillSplits = 4;

}  // namespace kvspan::cpu
