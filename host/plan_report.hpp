// SPDX-License-Identifier: Apache-2.0
// A plan in words and as JSON, with the reasons for its placement. Not here: making one
// (commands/plan.cpp).
#pragma once

#include "kvspan/core/memory/budget.hpp"
#include "kvspan/core/memory/machine_memory.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace kvspan::host {

struct PlanReport {
  Plan plan;
  StreamOptions stream;
  RingNeed ring;                  // where a link is known and something streams
  bool minimum = false;           // no arena was named
  std::string arena_rule;         // how the arena came about; empty where it was given
  std::optional<Plan> overlap;    // what the overlap rule makes of the same arena
  std::optional<Headroom> spare;  // of this machine
};

[[nodiscard]] nlohmann::ordered_json plan_json(const PlanReport& report);
[[nodiscard]] std::string plan_text(const PlanReport& report);

}  // namespace kvspan::host
