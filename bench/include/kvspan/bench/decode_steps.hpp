// SPDX-License-Identifier: Apache-2.0
// Timed decode steps whose bytes are counted and whose outputs can be compared, bit for bit, with
// the same steps over a resident history.
#pragma once

#include "kvspan/bench/spread.hpp"
#include "kvspan/bench/step_engine.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::bench {

// Steps of one width: one to warm up, then those that are timed.
struct Steps {
  std::uint32_t rows = 1;
  int timed = 0;
};

struct StepTimes {
  std::uint32_t rows = 0;
  Spread seconds;
  std::uint64_t bytes = 0;  // streamed, a step
  std::uint64_t pages = 0;
  CpuTime cpu;                 // a streamed page
  std::vector<float> outputs;  // of the step that warmed up
};

struct DecodeTimes {
  Plan plan;
  std::uint64_t device_bytes_high_water = 0;
  std::vector<StepTimes> steps;
};

// Runs the steps in a session of their own. Its bytes are counted against the plan: anything else
// than exactly the pages that are not resident is Errc::internal. The session ends inside: a device
// is prepared for another only when nothing of it is in flight. Errors: the session's.
[[nodiscard]] Result<DecodeTimes> time_steps(const Backend& backend,
                                             const RandomPages& pages,
                                             const StepCase& asked,
                                             const std::vector<Steps>& steps);

// What the cost model says of a step (predict()), seconds: every page takes its share of
// `resident_seconds`, which the step takes with everything resident.
[[nodiscard]] double predicted_seconds(const Plan& plan,
                                       const StepCase& asked,
                                       const Link& link,
                                       double resident_seconds);

// The same steps with everything resident and no gaps.
[[nodiscard]] Result<DecodeTimes> time_resident(const Backend& backend,
                                                const RandomPages& pages,
                                                const StepCase& asked,
                                                const std::vector<Steps>& steps);

// What was compared, in words. Errors: internal where outputs differ, or are no means of values
// between -1 and 1.
[[nodiscard]] Result<std::string> compare_outputs(const std::vector<float>& streamed,
                                                  const std::vector<float>& resident);
[[nodiscard]] Result<std::string> compare(const StepTimes& streamed, const StepTimes& resident);

}  // namespace kvspan::bench
