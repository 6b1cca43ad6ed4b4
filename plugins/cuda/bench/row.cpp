// SPDX-License-Identifier: Apache-2.0
// Read first: row.hpp.
#include "row.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvspan::cuda_bench {

const char* Row::verdict() const {
  if (!failure.empty() || check.empty()) {
    return "FAILED";
  }
  if (floor == 0.0) {
    return "told";
  }
  const auto meets = [this](double limit) {
    return better == Better::higher ? value >= limit : value <= limit;
  };
  return goal != 0.0 && meets(goal) ? "goal" : meets(floor) ? "floor" : "BELOW";
}

nlohmann::ordered_json to_json(const Row& row) {
  nlohmann::ordered_json out;
  out["id"] = row.id;
  out["what"] = row.what;
  out["verdict"] = row.verdict();
  out["value"] = row.value;
  out["unit"] = row.unit;
  out["floor"] = row.floor;
  out["goal"] = row.goal;
  out["better"] = row.better == Better::higher ? "higher" : "lower";
  out["bytes"] = row.bytes;
  out["seconds"] = {{"min", row.seconds.min},
                    {"median", row.seconds.median},
                    {"max", row.seconds.max},
                    {"runs", row.seconds.runs}};
  out["check"] = row.check;
  if (!row.failure.empty()) {
    out["failure"] = row.failure;
  }
  for (const auto& [name, value] : row.details) {
    out["details"][name] = value;
  }
  return out;
}

std::string line_of(const Row& row) {
  const std::string head = fmt::format("{:<4} {:<34}", row.id, row.what);
  if (!row.failure.empty()) {
    return head + " FAILED " + row.failure;
  }
  std::string limits = row.floor == 0.0
                           ? std::string(19, ' ')
                           : fmt::format("floor {:<5.3g} goal {:<5.3g}", row.floor, row.goal);
  std::string line = fmt::format("{} {:>8.3f} {:<10} {} {:<6} {:>9.1f} us [{:.1f} {:.1f}]",
                                 head,
                                 row.value,
                                 row.unit,
                                 limits,
                                 row.verdict(),
                                 row.seconds.median * 1e6,
                                 row.seconds.min * 1e6,
                                 row.seconds.max * 1e6);
  return row.check.empty() ? line + " VALUES NOT CHECKED" : line;
}

}  // namespace kvspan::cuda_bench
