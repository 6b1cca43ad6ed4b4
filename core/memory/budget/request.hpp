// SPDX-License-Identifier: Apache-2.0
// What is wrong with a plan request, and the chunk widths that it allows. Private to core/memory.
#pragma once

#include "memory/budget/basis.hpp"

#include <cstdint>
#include <vector>

namespace kvspan {

// The facts of a request that is right. Errors: plan()'s for what the request asks.
[[nodiscard]] Result<Basis> basis_of(const PlanRequest& request);

// Widths to try, from wide to narrow: powers of two up to the widest allowed, or the fixed one.
[[nodiscard]] std::vector<std::uint32_t> row_ladder(const PlanRequest& request);

}  // namespace kvspan
