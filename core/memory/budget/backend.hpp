// SPDX-License-Identifier: Apache-2.0
// What the backend takes for itself beside a plan, where a device can be asked: it depends on the
// plan, and the plan on what is left. Private to core/memory.
#pragma once

#include "kvspan/core/memory/budget.hpp"

namespace kvspan {

// plan() of a request that has backend_bytes.
[[nodiscard]] Result<Plan> plan_beside_backend(PlanRequest request);

}  // namespace kvspan
