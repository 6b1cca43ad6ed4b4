// SPDX-License-Identifier: Apache-2.0
// The sentences of a plan that does not fit, and the amounts beside them. Private to core/memory.
#pragma once

#include "memory/budget/basis.hpp"

namespace kvspan {

// The arena is below `least`, whose phases are filled: names the phase that needs most, its largest
// component and the shortfall.
[[nodiscard]] Error arena_too_small(const PlanRequest& request, const Plan& least);

// More would be pinned than the host can.
[[nodiscard]] Error allocation_too_large(const PlanRequest& request, const Plan& found);
[[nodiscard]] Error too_little_pinnable(const PlanRequest& request, const Plan& found);

}  // namespace kvspan
