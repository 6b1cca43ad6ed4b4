// SPDX-License-Identifier: Apache-2.0
// Read first: spread.hpp.
#include "kvspan/bench/spread.hpp"

#include <algorithm>
#include <sys/resource.h>

namespace kvspan::bench {

namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

double seconds_of(const rusage& usage) {
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  Spread spread;
  if (values.empty()) {
    return spread;
  }
  std::sort(values.begin(), values.end());
  spread.min = values.front();
  spread.median = values[values.size() / 2];
  spread.max = values.back();
  spread.runs = static_cast<std::uint32_t>(values.size());
  return spread;
}

CpuTime cpu_time() {
  rusage process{};
  rusage thread{};
  (void)getrusage(RUSAGE_SELF, &process);
  (void)getrusage(RUSAGE_THREAD, &thread);
  return {seconds_of(process), seconds_of(thread)};
}

}  // namespace kvspan::bench
