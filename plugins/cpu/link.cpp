// SPDX-License-Identifier: Apache-2.0
// Read first: link.hpp.
#include "link.hpp"

namespace kvspan::cpu {

Clock::duration LinkModel::time_of(uint64_t bytes) const {
  if (bytes == 0) {
    return Clock::duration::zero();
  }
  constexpr double kMostNs = 2.3e18;  // what a clock can hold beside now
  const double byte_ns =
      bytes_s == 0 ? 0.0 : static_cast<double>(bytes) / static_cast<double>(bytes_s) * 1e9;
  const double all_ns = static_cast<double>(copy_ns) + byte_ns;
  return std::chrono::nanoseconds(static_cast<int64_t>(all_ns < kMostNs ? all_ns : kMostNs));
}

}  // namespace kvspan::cpu
