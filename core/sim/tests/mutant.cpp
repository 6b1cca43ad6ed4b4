// SPDX-License-Identifier: Apache-2.0
// A core with one bug in it: mutant SEED succeeds when that seed finds it and is one of those that
// a search looks at; mutant search [SEEDS] says which seeds find it.
#include "kvspan/sim/run.hpp"

#include "searched.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace kvspan::sim {
namespace {

Outcome look(std::uint64_t seed) {
  const Outcome outcome = run(scenario_of(seed));
  if (!outcome.passed()) {
    std::printf("seed %llu, operation %zu, %s: %s\n",
                static_cast<unsigned long long>(seed),
                outcome.op,
                outcome.checker.c_str(),
                outcome.what.c_str());
  }
  return outcome;
}

}  // namespace
}  // namespace kvspan::sim

int main(int count, char** arguments) {
  const std::string first = count > 1 ? arguments[1] : "1";
  if (first == "search") {
    const std::uint64_t seeds =
        count > 2 ? std::strtoull(arguments[2], nullptr, 10) : kvspan::sim::kSearchedSeeds;
    std::uint64_t found = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      found += kvspan::sim::look(seed).passed() ? 0U : 1U;
    }
    std::printf("found by %llu of %llu seeds\n",
                static_cast<unsigned long long>(found),
                static_cast<unsigned long long>(seeds));
    return found != 0 ? 0 : 1;
  }
  const std::uint64_t seed = std::strtoull(first.c_str(), nullptr, 10);
  const bool found = !kvspan::sim::look(seed).passed();
  if (!found) {
    std::printf(
        "seed %s finds nothing: the mutant does not apply any more, or another seed finds it "
        "(mutant search)\n",
        first.c_str());
  }
  const bool searched = seed <= kvspan::sim::kSearchedSeeds;
  if (!searched) {
    std::printf(
        "seed %s lies behind the %llu that a search looks at: scenarios must reach the bug "
        "more often\n",
        first.c_str(),
        static_cast<unsigned long long>(kvspan::sim::kSearchedSeeds));
  }
  return found && searched ? 0 : 1;
}
