// SPDX-License-Identifier: Apache-2.0
// Copies up and down through the backend's copy table: each direction alone, then both at once.
#pragma once

#include "kvspan/bench/spread.hpp"
#include "kvspan/core/backend/backend.hpp"
#include "kvspan/core/error.hpp"

#include <cstdint>

namespace kvspan::bench {

struct BothWays {
  std::uint64_t bytes = 0;  // each way
  Spread up_alone;          // seconds
  Spread down_alone;
  Spread up;  // beside down
  Spread down;
};

// `groups` copies of `group_bytes` each way, all submitted before one is waited for, seven times; a
// direction's time ends with its last copy. Errors: memory, the copies'; internal where other bytes
// arrived than went.
[[nodiscard]] Result<BothWays> both_ways(const Backend& backend,
                                         std::uint64_t group_bytes,
                                         std::uint64_t groups);

}  // namespace kvspan::bench
