// SPDX-License-Identifier: Apache-2.0
// Layers that differ, as people write them: "52:window=1024,k=f16".
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/layout/geometry.hpp"

#include <string_view>
#include <vector>

namespace kvspan::host {

// "[COUNT:]key=value,..." is COUNT equal layers, 1 without a count; what is not said is as in
// `defaults`. Keys: k and v (types), q-heads, kv-heads, head-size, head-size-v (head-size where
// only that is said), window (tokens, 0 = all), and latent without a value: V lies in K's row.
// Errors: invalid_argument, quoting the text and naming what is understood.
[[nodiscard]] Result<std::vector<LayerGeometry>> parse_layers(std::string_view text,
                                                              const LayerGeometry& defaults);

}  // namespace kvspan::host
