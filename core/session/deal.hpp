// SPDX-License-Identifier: Apache-2.0
// A layer's resident tokens dealt out over its waves. Private to core/session.
#pragma once

#include "wave.hpp"

#include <cstdint>
#include <vector>

namespace kvspan {

// Whole splits, equally many for each wave but the last, ascending; the part of a split whose other
// tokens stream goes with the first wave, since a split's tokens are walked in order. `resident` is
// not empty, and tokens behind it stream; `waves` is at least 2. Returns [wave] pieces, ascending:
// pieces that would follow each other are one.
[[nodiscard]] std::vector<std::vector<Tokens>> deal(const Tokens& resident,
                                                    std::uint64_t split_tokens,
                                                    std::uint64_t waves);

}  // namespace kvspan
