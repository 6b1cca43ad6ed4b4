// SPDX-License-Identifier: Apache-2.0
// The layouts that an arena can have: everything resident, the least that streams, and the most
// that fits. Private to core/memory.
#pragma once

#include "memory/budget/basis.hpp"

namespace kvspan {

// Every page of the context resident: no ring, no tails.
[[nodiscard]] Plan resident_layout(const Basis& basis, const Candidate& rows);

// The least that streams: two ring slots, tails, nothing resident.
[[nodiscard]] Plan streaming_minimum(const Basis& basis, const Candidate& rows);

// What the request's arena makes of it; the minimum fits. The ring first, the rest resident.
[[nodiscard]] Plan streaming_layout(const Basis& basis, const Candidate& rows);

// Another placement in a layout that streams, whatever it takes then.
void set_placement(const Basis& basis,
                   const Candidate& rows,
                   const Placement& placement,
                   Plan& out);

// Of the request's arena: regions end on their alignment, and what it has behind its last multiple
// is no room. What others hold lies outside the regions. The arena holds at least those.
[[nodiscard]] std::uint64_t usable_arena_bytes(const Basis& basis);

}  // namespace kvspan
