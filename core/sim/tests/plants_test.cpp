// SPDX-License-Identifier: Apache-2.0
// Every planted bug is found by the seed that is recorded for it, and a failing scenario becomes
// small. plant_search finds seeds anew when scenarios change.
#include "plants.hpp"

#include "kvspan/sim/run.hpp"
#include "kvspan/sim/shrink.hpp"

#include "searched.hpp"

#include <gtest/gtest.h>

#include <set>

namespace kvspan::sim {
namespace {

Outcome run_planted(const Plant& plant, const Scenario& scenario) {
  const auto filter = plant.make();
  return run(scenario, filter.get());
}

TEST(Plants, EachIsFoundByItsSeed) {
  std::set<std::string> names;
  for (const Plant& plant : plants()) {
    EXPECT_TRUE(names.insert(plant.name).second) << plant.name << " is there twice";
    const Outcome outcome = run_planted(plant, scenario_of(plant.seed));
    EXPECT_FALSE(outcome.passed())
        << plant.name << " (" << plant.bug << ") is not found by seed " << plant.seed
        << "; plant_search " << plant.name << " looks for another";
    EXPECT_NE(outcome.checker, "scenario");
    EXPECT_LE(plant.seed, kSearchedSeeds) << plant.name << " is not found by a search";
  }
  EXPECT_GE(names.size(), 12U);
}

// The same seeds without a bug: what is found is the bug.
TEST(Plants, TheirSeedsAreGreenWithout) {
  for (const Plant& plant : plants()) {
    const Outcome outcome = run(scenario_of(plant.seed));
    EXPECT_TRUE(outcome.passed()) << plant.seed << ": " << outcome.what;
  }
}

TEST(Plants, AFailingScenarioBecomesSmall) {
  for (const Plant& plant : plants()) {
    const Scenario scenario = scenario_of(plant.seed);
    const Shrunk small =
        shrink(scenario, [&](const Scenario& of) { return run_planted(plant, of); });
    SCOPED_TRACE(plant.name + ", " + std::to_string(small.runs) + " runs\n" + text(small.scenario));
    EXPECT_FALSE(small.outcome.passed());
    EXPECT_LE(small.scenario.ops.size(), 8U);
    EXPECT_LT(small.scenario.ops.size(), scenario.ops.size());
    // The same small scenario fails again, the same way.
    const Outcome again = run_planted(plant, small.scenario);
    EXPECT_EQ(again.checker, small.outcome.checker);
    EXPECT_EQ(again.what, small.outcome.what);
    if (KVSPAN_TEST_SANITIZED != 0) {
      break;
    }
  }
}

TEST(Plants, AGreenScenarioStaysAsItIs) {
  const Shrunk same = shrink(scenario_of(1), [](const Scenario& of) { return run(of); });
  EXPECT_TRUE(same.outcome.passed());
  EXPECT_EQ(text(same.scenario), text(scenario_of(1)));
  EXPECT_EQ(same.runs, 1U);
}

}  // namespace
}  // namespace kvspan::sim
