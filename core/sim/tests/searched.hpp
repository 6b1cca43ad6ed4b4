// SPDX-License-Identifier: Apache-2.0
// How far a search for a bug goes. For tests only.
#pragma once

#include <cstdint>

namespace kvspan::sim {

// Every bug that the tests know is found by one of the first seeds, up to this one.
inline constexpr std::uint64_t kSearchedSeeds = 2000;

}  // namespace kvspan::sim
