// SPDX-License-Identifier: Apache-2.0
// `kvspan bench decode --arenas`: the same steps in arenas from the smallest to one that holds
// everything; more memory must never be slower, nor be predicted to be.
#pragma once

#include "kvspan/bench/decode_steps.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvspan::host {

struct SweepPoint {
  std::uint64_t arena_bytes = 0;
  std::uint32_t resident_pages = 0;  // of the first layer
  std::uint32_t ring_pages = 0;
  std::uint32_t group_pages = 0;
  double predicted_seconds = 0.0;  // Plan::predicted
  double over_before = 1.0;        // median over that of the arena before
  double predicted_over_before = 1.0;
  bench::StepTimes times;
  std::string check;
};

// `points` arenas, at least 2, evenly from the plan's minimum to the resident one, each with the
// best placement for what `asked.stream` says, attention as fast as the resident run's unless told.
// `told` after each. Errors: the session's; internal where a value or a count of bytes is wrong.
[[nodiscard]] Result<std::vector<SweepPoint>> sweep_arenas(
    const Backend& backend,
    const bench::RandomPages& pages,
    const bench::StepCase& asked,
    const bench::Steps& steps,
    std::uint32_t points,
    const std::function<void(const SweepPoint&)>& told);

// Lines for people; the heading comes first.
[[nodiscard]] std::string sweep_heading();
[[nodiscard]] std::string sweep_line(const SweepPoint& point);

[[nodiscard]] nlohmann::ordered_json sweep_json(const std::vector<SweepPoint>& points);

}  // namespace kvspan::host
