// SPDX-License-Identifier: Apache-2.0
// Plan requests with capabilities that were never asked of a device.
#pragma once

#include "kvspan/core/memory/budget.hpp"

#include <cstdint>

namespace kvspan::test {

inline kvspan_attention_caps_t caps_of(std::uint32_t granule,
                                       std::uint32_t splits,
                                       std::uint64_t workspace_bytes) {
  kvspan_attention_caps_t caps{};
  caps.level = KVSPAN_LEVEL_NATIVE;
  caps.span_granule = granule;
  caps.split_count = splits;
  caps.state_alignment = 64;
  caps.advance_workspace_bytes = workspace_bytes;
  return caps;
}

inline CapabilityLookup fixed_caps(const kvspan_attention_caps_t& caps) {
  return
      [caps](std::size_t, Phase, std::uint32_t) -> Result<kvspan_attention_caps_t> { return caps; };
}

// 16 layers of 24 query heads over 4 KV heads of 256 elements, q8_0 K, q4_0 V, 262,144 tokens.
inline PlanRequest long_context() {
  PlanRequest request;
  request.geometry.layers.assign(16, {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 256, 256, 4, 24});
  request.context_tokens = 262144;
  request.capabilities = fixed_caps(caps_of(32, 8, 0));
  return request;
}

}  // namespace kvspan::test
