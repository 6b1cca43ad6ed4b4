// SPDX-License-Identifier: Apache-2.0
// Times and what they cost: the spread of repetitions, CPU seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace kvspan::bench {

using Clock = std::chrono::steady_clock;

[[nodiscard]] inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Spread {
  double min = 0.0;
  double median = 0.0;
  double max = 0.0;
  std::uint32_t runs = 0;
};

[[nodiscard]] Spread spread_of(std::vector<double> values);

// CPU seconds of the whole process and of the calling thread so far.
struct CpuTime {
  double process = 0.0;
  double thread = 0.0;
};

[[nodiscard]] CpuTime cpu_time();

}  // namespace kvspan::bench
