// SPDX-License-Identifier: Apache-2.0
// What is wrong with a plan request, and the chunk widths that it allows. Private to core/memory.
#pragma once

#include "memory/budget/basis.hpp"

#include <cstdint>
#include <vector>

namespace kvspan {

// The facts of a request that is right. Errors: plan()'s for what the request asks.
[[nodiscard]] Result<Basis> basis_of(const PlanRequest& request);

// What a layer's rows are offered. Errors: the lookup's, with layer, phase and rows before them.
[[nodiscard]] Result<kvspan_attention_caps_t> layer_capabilities(const PlanRequest& request,
                                                                 std::size_t layer,
                                                                 Phase phase,
                                                                 std::uint32_t rows);

// Widths to try, from wide to narrow: powers of two up to the widest allowed, or the fixed one.
[[nodiscard]] std::vector<std::uint32_t> row_ladder(const PlanRequest& request);

}  // namespace kvspan
