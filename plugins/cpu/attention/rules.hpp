// SPDX-License-Identifier: Apache-2.0
// What attention this plugin offers: a list of rules, and the query that is computed from it.
// Read next: rules.cpp, kvspan/sdk/capability.hpp.
#pragma once

#include "kvspan/attention_shape.h"
#include "kvspan/sdk/capability.hpp"

#include <cstdint>

namespace kvspan::cpu {

sdk::RuleList attention_rules();

// The answer to a shape that sdk::check_shape accepts. False: an amount does not fit 64 bits.
[[nodiscard]] bool answer(const kvspan_attention_shape_t& shape, kvspan_attention_caps_t& caps);

// N by row class: constants, so that bits never depend on the machine's thread count.
// Decode: 8 splits x KV heads keep 16 threads busy with the usual 2 to 8 heads, and a split of 8K
// tokens is still 32 granules. Prefill: rows are the parallelism; 4 only bounds how long one sum
// runs.
inline constexpr uint32_t kDecodeSplits = 8;
inline constexpr uint32_t kPrefillSplits = 4;

}  // namespace kvspan::cpu
