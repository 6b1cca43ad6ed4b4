// SPDX-License-Identifier: Apache-2.0
// The policy's placement in a plan, and the step time that it predicts. Private to core/memory.
#pragma once

#include "memory/budget/basis.hpp"

#include <cstdint>

namespace kvspan {

// Ring, groups and residents of `out`, which has the least of all three, in what it has and
// `spare_bytes` more. False, with nothing changed, where the request leaves no say to the policy.
[[nodiscard]] bool place(const Basis& basis, std::uint64_t spare_bytes, Plan& out);

// What ring and resident pages have together where the streaming minimum `least` leaves
// `spare_bytes`.
[[nodiscard]] std::uint64_t pool_bytes(const Basis& basis,
                                       std::uint64_t spare_bytes,
                                       const Plan& least);

// Of a decode step at the request's context; all 0 where the link is not known.
[[nodiscard]] StepTime predicted_step(const Basis& basis, const Plan& plan);

}  // namespace kvspan
