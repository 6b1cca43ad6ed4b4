// SPDX-License-Identifier: Apache-2.0
// Read first: rows.hpp.
#include "rows.hpp"

namespace kvspan::cuda_bench {

bench::DecodeTimes timed(const Bench& bench,
                         const bench::StepCase& asked,
                         const std::vector<bench::Steps>& steps) {
  return take(bench::time_steps(bench.rig.backend(), bench.pages.of("A"), asked, steps),
              "streaming");
}

bench::DecodeTimes timed_resident(const Bench& bench,
                                  const bench::StepCase& asked,
                                  const std::vector<bench::Steps>& steps) {
  return take(bench::time_resident(bench.rig.backend(), bench.pages.of("A"), asked, steps),
              "the resident run");
}

std::string same(const bench::StepTimes& streamed, const bench::StepTimes& resident) {
  return take(bench::compare(streamed, resident), "comparing");
}

}  // namespace kvspan::cuda_bench
