// SPDX-License-Identifier: Apache-2.0
// Read first: bench_json.hpp.
#include "bench_json.hpp"

#include "kvspan/core/layout/kv_type.hpp"

#include <nlohmann/json.hpp>

#include <string>

namespace kvspan::host {

nlohmann::ordered_json spread_json(const bench::Spread& seconds) {
  return {{"min", seconds.min},
          {"median", seconds.median},
          {"max", seconds.max},
          {"runs", seconds.runs}};
}

nlohmann::ordered_json geometry_json(const LayerGeometry& layer,
                                     std::uint32_t layers,
                                     std::uint32_t page_tokens) {
  const auto type = [](kvspan_type_t id) {
    const auto known = kv_type(id);
    return known ? std::string(known->name) : std::to_string(id);
  };
  return {{"layers", layers},
          {"q_heads", layer.q_heads},
          {"kv_heads", layer.kv_heads},
          {"head_size_k", layer.head_size_k},
          {"head_size_v", layer.head_size_v},
          {"k_type", type(layer.k_type)},
          {"v_type", type(layer.v_type)},
          {"page_tokens", page_tokens}};
}

}  // namespace kvspan::host
