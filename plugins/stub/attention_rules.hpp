// SPDX-License-Identifier: Apache-2.0
// What attention the stub offers: a list of rules, and the answer to a question, computed from the
// list so that the two cannot differ. Read next: attention_rules.cpp.
#pragma once

#include "kvspan/attention_shape.h"
#include "kvspan/sdk/capability.hpp"

#include <cstddef>
#include <cstdint>

namespace kvspan::stub {

/// What an answer depends on beside the shape; options of the plugin.
struct AttentionDials {
  std::uint32_t granule;      ///< tokens
  std::uint32_t split_count;  ///< N of the decode class
};

/// Offsets of states and workspaces, and the parts of a workspace, are multiples of this.
inline constexpr std::uint32_t kStateAlignment = 64;

/// `bytes` rounded up to kStateAlignment.
constexpr std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + (kStateAlignment - 1)) / kStateAlignment * kStateAlignment;
}

/// The rules, one behind the other.
sdk::RuleList attention_rules();

/// The whole answer to a shape that makes sense (sdk::check_shape).
kvspan_attention_caps_t answer(const kvspan_attention_shape_t& shape, const AttentionDials& dials);

}  // namespace kvspan::stub
