// SPDX-License-Identifier: Apache-2.0
// Phases of a layout, by name: what each does with the bytes, what demands add, what is left idle.
// Private to core/memory.
#pragma once

#include "memory/budget/basis.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvspan {

// The plan's own components of a phase, in order; behind demands, what the phase leaves idle.
inline constexpr std::array kOwnComponents = {
    "resident pages", "ring", "tails", "split states", "accumulators", "workspace"};
inline constexpr const char* kIdle = "idle";

// Bytes beyond `scratch_bytes` of scratch that the demands of phases need. Phases that attend keep
// their scratch, others use it. The room of one phase that attends has nothing for the other.
[[nodiscard]] std::uint64_t lent_bytes(const std::vector<Demand>& demands,
                                       std::uint64_t scratch_bytes,
                                       std::optional<Phase> alone);

// What each phase does with a layout's bytes: fills Plan::phases.
void set_phases(const Basis& basis, const Candidate& rows, Plan& out);

// The phase that needs most, the first of equals. `out.phases` is filled.
[[nodiscard]] const PhaseBudget& largest_phase(const Plan& plan);

}  // namespace kvspan
