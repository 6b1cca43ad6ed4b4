// SPDX-License-Identifier: Apache-2.0
// Looks for the first seed that finds a planted bug, as `kvspan sim` does without one:
// plant_search [NAME|all] [SEEDS] [shrink]. Exit status 1: not found.
#include "kvspan/sim/run.hpp"
#include "kvspan/sim/shrink.hpp"

#include "plants.hpp"
#include "searched.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace kvspan::sim {
namespace {

bool search(const Plant& plant, std::uint64_t seeds, bool small) {
  const RunScenario run_planted = [&](const Scenario& scenario) {
    const auto filter = plant.make();
    return run(scenario, filter.get());
  };
  std::uint64_t found = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const Outcome outcome = run_planted(scenario_of(seed));
    if (outcome.passed()) {
      continue;
    }
    if (found++ == 0) {
      std::printf("%-24s seed %4llu %s: %s\n",
                  plant.name.c_str(),
                  static_cast<unsigned long long>(seed),
                  outcome.checker.c_str(),
                  outcome.what.c_str());
      if (small) {
        const Shrunk shrunk = shrink(scenario_of(seed), run_planted);
        std::printf("after %u runs: %s\n%s\n",
                    shrunk.runs,
                    shrunk.outcome.what.c_str(),
                    text(shrunk.scenario).c_str());
      }
    }
  }
  std::printf("%-24s found by %llu of %llu seeds\n",
              plant.name.c_str(),
              static_cast<unsigned long long>(found),
              static_cast<unsigned long long>(seeds));
  return found != 0;
}

}  // namespace
}  // namespace kvspan::sim

int main(int count, char** arguments) {
  const std::string name = count > 1 ? arguments[1] : "all";
  const std::uint64_t seeds =
      count > 2 ? std::strtoull(arguments[2], nullptr, 10) : kvspan::sim::kSearchedSeeds;
  const bool small = count > 3;
  bool all_found = true;
  for (const kvspan::sim::Plant& plant : kvspan::sim::plants()) {
    if (name == "all" || name == plant.name) {
      all_found = kvspan::sim::search(plant, seeds, small) && all_found;
    }
  }
  return all_found ? 0 : 1;
}
