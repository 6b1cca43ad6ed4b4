// SPDX-License-Identifier: Apache-2.0
// A session's plan as stages of its arena, and which resident pages another plan has elsewhere.
// Pure. Private to core/session. Read next: turns.hpp.
#pragma once

#include "kvspan/core/memory/requirement.hpp"

#include "state.hpp"

#include <cstddef>
#include <cstdint>

namespace kvspan {

inline constexpr std::uint64_t kStageDomain = 1;

// Of the resident pages that both phases have; they begin the arena.
[[nodiscard]] std::uint64_t kept_bytes(const Plan& plan, std::uint32_t sequences);

// The first place of a layer that does not hold then what it holds now. Pages of a part follow each
// other, so that its first one speaks for all.
[[nodiscard]] std::uint64_t first_moved(const Plan& now,
                                        const Plan& next,
                                        std::uint32_t sequences,
                                        std::uint32_t sequence,
                                        std::size_t layer);

// A stage a phase, its number one more than the phase's; without rooms they are the same. What both
// have is kept in region `kept_region`.
[[nodiscard]] StageRequest stages_of(const Plan& plan,
                                     std::uint32_t sequences,
                                     std::uint64_t kept_region);

}  // namespace kvspan
