// SPDX-License-Identifier: Apache-2.0
// One line of the report: what was measured, against which limit, with which bytes and which check
// of values. Not here: measuring.
#pragma once

#include "kvspan/bench/spread.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::cuda_bench {

using bench::Spread;
using bench::spread_of;

enum class Better : std::uint8_t { higher, lower };

struct Row {
  std::string id;    // "P7"
  std::string what;  // "A q8_0/q4_0 w1 32K"
  double value = 0.0;
  std::string unit;    // "of L", "of T_read", "x ggml"
  double floor = 0.0;  // 0: told, not judged
  double goal = 0.0;
  Better better = Better::higher;
  Spread seconds;
  std::uint64_t bytes = 0;  // counted, of one timed run
  std::string check;        // how values were checked; empty: they were not, and the row fails
  std::string failure;      // why there is no value
  std::vector<std::pair<std::string, double>> details;

  [[nodiscard]] const char* verdict() const;
};

[[nodiscard]] nlohmann::ordered_json to_json(const Row& row);

// A line of the short table.
[[nodiscard]] std::string line_of(const Row& row);

}  // namespace kvspan::cuda_bench
