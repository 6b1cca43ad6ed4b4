// SPDX-License-Identifier: Apache-2.0
// What the engine may rely on: how far windows let a sequence be cut, how many host pages a session
// holds at most, which windows roll, what a placement takes. By the contract's words, without
// core's functions. Private to core/sim.
#pragma once

#include "kvspan/core/session/session.hpp"

#include <cstdint>

namespace kvspan::sim {

// The fewest tokens, but for 0, that a sequence may be cut to after it had `tokens` tokens.
[[nodiscard]] std::uint64_t cut_limit(const SessionOptions& options, std::uint64_t tokens);

// Whether a layer's resident pages are enough for all that steps of up to `rows` rows see of its
// window: then it never streams, however far it slides.
[[nodiscard]] bool rolls(const SessionOptions& options,
                         const Plan& plan,
                         std::size_t layer,
                         std::uint32_t rows);

// Bytes of history pages that all sequences hold at most, in chunks of up to `rows` rows.
[[nodiscard]] std::uint64_t held_bytes_max(const SessionOptions& options,
                                           const Plan& plan,
                                           std::uint32_t rows);

// Bytes that a placement takes of resident places and slots, with the plan's tails.
[[nodiscard]] std::uint64_t placed_bytes_of(const SessionOptions& options,
                                            const Plan& plan,
                                            const Placement& placement);

}  // namespace kvspan::sim
