// SPDX-License-Identifier: Apache-2.0
// Selection, skips and groups. Read next: plan.hpp.
#include "plan.hpp"

#include "worker_record.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

namespace kvspan::runner {

namespace {

using nlohmann::json;

bool any_matches(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&name](const std::string& pattern) {
    return matches(pattern, name);
  });
}

// Every pattern must match something by itself: one typo among several is still a typo.
std::string useless_pattern(const std::vector<SuiteCase>& all, const Options& options) {
  for (const std::string& pattern : options.cases) {
    if (std::none_of(all.begin(), all.end(), [&pattern](const SuiteCase& one) {
          return matches(pattern, one.id);
        })) {
      return fmt::format(
          "--case {} matches none of the {} cases; --list shows them", pattern, all.size());
    }
  }
  for (const std::string& pattern : options.rules) {
    if (std::none_of(all.begin(), all.end(), [&pattern](const SuiteCase& one) {
          return proves(one, pattern);
        })) {
      return fmt::format(
          "--rule {} matches no rule of the {} cases; --list shows them", pattern, all.size());
    }
  }
  for (const std::string& profile : options.profiles) {
    if (std::none_of(all.begin(), all.end(), [&profile](const SuiteCase& one) {
          return one.profile == profile;
        })) {
      return fmt::format("--profile {} has no case in this build of the suite", profile);
    }
  }
  return {};
}

bool is_selected(const SuiteCase& one, const Options& options) {
  const auto& profiles = options.profiles;
  const bool profile = profiles.empty() ||
                       std::find(profiles.begin(), profiles.end(), one.profile) != profiles.end();
  const bool rule =
      options.rules.empty() ||
      std::any_of(options.rules.begin(), options.rules.end(), [&one](const std::string& pattern) {
        return proves(one, pattern);
      });
  const bool id = options.cases.empty() || any_matches(options.cases, one.id);
  const bool tuple = options.tuples.empty() || one.takes_tuple;
  return profile && rule && id && tuple;
}

std::string spoken_selection(const Options& options) {
  std::string out;
  const auto add = [&out](const char* name, const std::vector<std::string>& values) {
    for (const std::string& value : values) {
      out += fmt::format("{}{} {}", out.empty() ? "" : " ", name, value);
    }
  };
  add("--profile", options.profiles);
  add("--rule", options.rules);
  add("--case", options.cases);
  add("--tuple", options.tuples);
  return out.empty() ? "the suite" : out;
}

// Whether a probed line of attention fits the tuple in all that it names. The probe asks a few head
// sizes only, so the size is the worker's to find.
bool tuple_fits(const std::string& tuple, const json& line) {
  std::istringstream parts(tuple);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    if (key != "hd" && text_field(line, key.c_str()) != part.substr(equals + 1)) {
      return false;
    }
  }
  const std::string level = text_field(line, "level");
  return !level.empty() && level != "unsupported";
}

// Empty, or the tuple that the plugin does not offer.
std::string absent_tuple(const Options& options, const json& probe) {
  const json lines = probe.value("attention", json::array());
  for (const std::string& tuple : options.tuples) {
    if (std::none_of(lines.begin(), lines.end(), [&tuple](const json& line) {
          return line.is_object() && tuple_fits(tuple, line);
        })) {
      return fmt::format(
          "--tuple {} selects nothing: the plugin offers no attention over these types", tuple);
    }
  }
  return {};
}

std::string absent_device(const Options& options, const json& probe) {
  const auto count = probe.find("devices");
  if (options.device == 0 || count == probe.end() || !count->is_number_unsigned() ||
      options.device < count->get<std::uint64_t>()) {
    return {};
  }
  return fmt::format("--device {} selects nothing: the plugin has {} devices here, counted from 0",
                     options.device,
                     count->get<std::uint64_t>());
}

void mark(PlannedCase& planned, const Probe& probe) {
  if (!probe.answered) {
    planned.reason = fmt::format("the plugin does not survive the probe: {}", probe.result.reason);
    return;
  }
  const std::string fact =
      planned.suite_case.unmet ? planned.suite_case.unmet(probe.body) : std::string();
  if (fact.empty()) {
    return;
  }
  // A plugin that does not open proves no lack: nothing is skipped then.
  planned.status = probe.opened() ? Status::skip : Status::not_run;
  planned.reason = probe.opened() ? fact : "the plugin does not open, see the probe";
}

// With a budget the cheapest case of every profile comes first, then of every rule, then the rest.
std::vector<std::size_t> in_order(const Plan& plan, bool rules_first) {
  std::vector<std::size_t> order;
  for (std::size_t i = 1; i < plan.cases.size(); ++i) {
    if (plan.cases[i].to_run()) {
      order.push_back(i);
    }
  }
  if (!rules_first) {
    return order;
  }
  std::vector<std::size_t> by_cost = order;
  std::stable_sort(by_cost.begin(), by_cost.end(), [&plan](std::size_t a, std::size_t b) {
    return plan.cases[a].suite_case.cost_ms < plan.cases[b].suite_case.cost_ms;
  });
  std::set<std::string> proven;
  std::set<std::string> profiles;
  std::set<std::size_t> first;
  std::set<std::size_t> first_of_all;
  for (const std::size_t index : by_cost) {
    if (profiles.insert(plan.cases[index].suite_case.profile).second) {
      first_of_all.insert(index);
    }
    for (const std::string& rule : plan.cases[index].suite_case.rules) {
      if (proven.insert(rule).second) {
        first.insert(index);
      }
    }
  }
  std::stable_partition(
      order.begin(), order.end(), [&first](std::size_t index) { return first.count(index) != 0; });
  std::stable_partition(order.begin(), order.end(), [&first_of_all](std::size_t index) {
    return first_of_all.count(index) != 0;
  });
  return order;
}

// Those that run alone come first: at the end a spent budget would always be theirs.
void make_groups(Plan& plan, bool rules_first) {
  const std::vector<std::size_t> order = in_order(plan, rules_first);
  for (const std::size_t index : order) {
    if (plan.cases[index].suite_case.runs_alone) {
      plan.groups.push_back({index});
    }
  }
  plan.alone = plan.groups.size();
  std::string_view suite;
  for (const std::size_t index : order) {
    if (plan.cases[index].suite_case.runs_alone) {
      continue;
    }
    const std::string_view own = plan.cases[index].suite_case.suite();
    if (plan.groups.size() == plan.alone || own != suite) {
      plan.groups.emplace_back();
      suite = own;
    }
    plan.groups.back().push_back(index);
  }
}

}  // namespace

OrEnding<std::vector<SuiteCase>> selected_cases(const std::vector<SuiteCase>& all,
                                                const Options& options) {
  if (const std::string useless = useless_pattern(all, options); !useless.empty()) {
    return usage_error(useless);
  }
  std::vector<SuiteCase> kept;
  std::copy_if(all.begin(), all.end(), std::back_inserter(kept), [&options](const SuiteCase& one) {
    return is_selected(one, options);
  });
  if (kept.empty()) {
    return usage_error(fmt::format("{} together select none of the {} cases; --list shows them",
                                   spoken_selection(options),
                                   all.size()));
  }
  std::vector<SuiteCase> part;
  for (std::size_t i = options.shard.index - 1; i < kept.size(); i += options.shard.count) {
    part.push_back(std::move(kept[i]));
  }
  if (part.empty()) {
    return usage_error(fmt::format("--shard {}/{} is empty: {} selects {} cases only",
                                   options.shard.index,
                                   options.shard.count,
                                   spoken_selection(options),
                                   kept.size()));
  }
  return part;
}

OrEnding<Plan> made_plan(const std::vector<SuiteCase>& selected,
                         const Probe& probe,
                         const Options& options) {
  if (probe.opened()) {
    if (const std::string absent = absent_device(options, probe.body); !absent.empty()) {
      return usage_error(absent);
    }
    if (const std::string absent = absent_tuple(options, probe.body); !absent.empty()) {
      return usage_error(absent);
    }
  }
  Plan plan;
  plan.cases.push_back({probe_case(), Status::not_run, {}});
  for (const SuiteCase& one : selected) {
    plan.cases.push_back({one, Status::not_run, {}});
    mark(plan.cases.back(), probe);
  }
  make_groups(plan, options.budget.has_value());
  return plan;
}

}  // namespace kvspan::runner
