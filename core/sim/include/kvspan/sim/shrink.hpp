// SPDX-License-Identifier: Apache-2.0
// Makes a failing scenario small: operations are cut, numbers reduced, as long as the same checker
// finds something.
#pragma once

#include "kvspan/sim/run.hpp"
#include "kvspan/sim/scenario.hpp"

#include <cstdint>
#include <functional>

namespace kvspan::sim {

struct Shrunk {
  Scenario scenario;
  Outcome outcome;         // of the small scenario
  std::uint32_t runs = 0;  // that it took
};

using RunScenario = std::function<Outcome(const Scenario&)>;

// `failing` is a scenario in which `run` finds something; else it comes back as it is. The same
// scenario shrinks to the same one every time, in at most some thousand runs.
[[nodiscard]] Shrunk shrink(const Scenario& failing, const RunScenario& run);

}  // namespace kvspan::sim
