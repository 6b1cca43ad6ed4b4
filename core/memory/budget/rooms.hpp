// SPDX-License-Identifier: Apache-2.0
// Phases that take turns: each has a layout of its own in the same bytes, and what both keep lies
// first. Private to core/memory. Read next: docs/adr/0020-phases-take-turns.md.
#pragma once

#include "memory/budget/basis.hpp"

namespace kvspan {

// One plan of the layouts that the phases would have alone; decode's is its own. The smaller one's
// slots take what it leaves.
[[nodiscard]] Plan with_rooms(const Basis& basis, const Plan& prefill, const Plan& decode);

// Cuts both rooms' resident parts in two, what both have and what one has, after a placement
// changed. Each room holds its parts and Basis::cut_bytes a sequence more.
void cut_rooms(std::uint32_t sequences, Plan& plan);

}  // namespace kvspan
