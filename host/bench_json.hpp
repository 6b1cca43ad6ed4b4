// SPDX-License-Identifier: Apache-2.0
// Parts of the JSON that the commands under `kvspan bench` write alike.
#pragma once

#include "kvspan/bench/spread.hpp"
#include "kvspan/core/layout/geometry.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>

namespace kvspan::host {

// Seconds.
[[nodiscard]] nlohmann::ordered_json spread_json(const bench::Spread& seconds);

[[nodiscard]] nlohmann::ordered_json geometry_json(const LayerGeometry& layer,
                                                   std::uint32_t layers,
                                                   std::uint32_t page_tokens);

}  // namespace kvspan::host
