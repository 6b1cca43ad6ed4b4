// SPDX-License-Identifier: Apache-2.0
// What the card and its link can do, measured with the vendor's own calls in this process: the
// denominators of every row.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

namespace kvspan::cuda_bench {

struct Limits {
  double link_up = 0.0;        // L: pinned host to device, 256 MiB copies, bytes/s
  double link_down = 0.0;      // device to host
  double read_start = 0.0;     // a of T_read(B) = a + B / rate, seconds
  double read_rate = 0.0;      // bytes/s
  double launch_wall = 0.0;    // empty kernel, launch to synchronised
  double launch_queued = 0.0;  // each of many empty kernels
  std::string card;
  int driver = 0;
  int runtime = 0;

  // The size-matched limit of reading `bytes` from device memory.
  [[nodiscard]] double read_seconds(std::uint64_t bytes) const {
    return read_start + static_cast<double>(bytes) / read_rate;
  }
};

// A few seconds. Throws Failure.
[[nodiscard]] Limits measure_limits();

[[nodiscard]] nlohmann::ordered_json to_json(const Limits& limits);

}  // namespace kvspan::cuda_bench
