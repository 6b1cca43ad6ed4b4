// SPDX-License-Identifier: Apache-2.0
// Planted bugs: each does to core's calls what core would do if it had that bug. For tests only.
#pragma once

#include "kvspan/sim/call.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvspan::sim {

struct Plant {
  std::string name;
  std::string bug;     // in words: what core forgot
  std::uint64_t seed;  // the first that finds it
  std::function<std::unique_ptr<CallFilter>()> make;
};

// All of them, by name.
[[nodiscard]] const std::vector<Plant>& plants();

}  // namespace kvspan::sim
