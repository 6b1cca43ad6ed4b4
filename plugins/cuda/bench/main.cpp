// SPDX-License-Identifier: Apache-2.0
// kvspan-cuda-bench: the card's limits, then the rows of the report that were chosen, each with its
// bytes counted and its values checked in this process. Exit status: 0 all rows gave a value, 1
// one did not, 2 wrong options, 3 no card.
#include "rows.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace kvspan::cuda_bench {

namespace {

struct Options {
  std::string plugin;
  std::vector<std::string> rows;  // ids or beginnings of "ID what"
  std::string json;
  std::string commit = "unknown";
  double seconds_max = 480.0;
  bool list = false;
  bool dry = false;
};

std::vector<Task> all_tasks() {
  std::vector<Task> tasks;
  add_transport(tasks);
  add_exact(tasks);
  add_streaming(tasks);
  add_layers(tasks);
  add_mixed(tasks);
  add_gaps(tasks);
  add_prefill(tasks);
  add_chunks(tasks);
  add_predictions(tasks);
  return tasks;
}

// "P7" is every task with rows of that id; "P7 A resident 32K" is that one.
bool chosen(const Options& options, const Task& task) {
  for (const std::string& row : options.rows) {
    const std::size_t space = row.find(' ');
    const std::string id = row.substr(0, space);
    const bool has_id = (" " + task.ids + " ").find(" " + id + " ") != std::string::npos;
    if (has_id && (space == std::string::npos ||
                   (task.what + " ").rfind(row.substr(space + 1) + " ", 0) == 0)) {
      return true;
    }
  }
  return options.rows.empty();
}

std::vector<Row> run(const Bench& bench, const Task& task) {
  try {
    return task.run(bench);
  } catch (const std::exception& failed) {
    Row row;
    row.id = task.ids.substr(0, task.ids.find(' '));
    row.what = task.what;
    row.failure = failed.what();
    return {row};
  }
}

nlohmann::ordered_json report(const Options& options,
                              const Limits& limits,
                              const std::vector<Row>& rows) {
  nlohmann::ordered_json out;
  out["commit"] = options.commit;
  out["limits"] = to_json(limits);
  out["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    out["rows"].push_back(to_json(row));
  }
  return out;
}

// For trying the rows' own code where there is no card: the numbers mean nothing.
Limits made_up_limits() {
  Limits limits;
  limits.card = "no card, made-up limits";
  limits.link_up = limits.link_down = limits.read_rate = 1e9;
  return limits;
}

// After every row, so that a run that is cut short leaves what it had.
void write(const Options& options, const nlohmann::ordered_json& document) {
  if (!options.json.empty()) {
    std::ofstream(options.json) << document.dump(1) << '\n';
  }
}

int measure(const Options& options, const std::vector<Task>& tasks) {
  const Clock::time_point start = Clock::now();
  const Limits limits = options.dry ? made_up_limits() : measure_limits();
  fmt::print(
      "{}: L {:.2f} GB/s up, {:.2f} down; T_read(B) = {:.2f} us + B / {:.3f} TB/s; empty "
      "launch {:.1f} us, queued {:.2f} us ({:.1f} s)\n",
      limits.card,
      limits.link_up * 1e-9,
      limits.link_down * 1e-9,
      limits.read_start * 1e6,
      limits.read_rate * 1e-12,
      limits.launch_wall * 1e6,
      limits.launch_queued * 1e6,
      seconds_since(start));
  const Rig rig(options.plugin);
  PagePool pages;
  const Plug plug(rig);
  const Bench bench{rig, limits, pages, plug, options.dry};
  std::vector<Row> rows;
  bool failed = false;
  for (const Task& task : tasks) {
    if (!chosen(options, task)) {
      continue;
    }
    if (seconds_since(start) > options.seconds_max) {
      fmt::print("{} {}: not run, {} s are over\n", task.ids, task.what, options.seconds_max);
      failed = true;
      continue;
    }
    const Clock::time_point begin = Clock::now();
    for (const Row& row : run(bench, task)) {
      failed = failed || !row.failure.empty();
      fmt::print("{}\n", line_of(row));
      rows.push_back(row);
    }
    fmt::print("     {} took {:.1f} s\n", task.what, seconds_since(begin));
    std::fflush(stdout);
    write(options, report(options, limits, rows));
  }
  return failed ? 1 : 0;
}

int run_command_line(int count, char** arguments) {
  CLI::App app{"What kvspan's cuda backend makes of a card, against what the card can do"};
  Options options;
  app.add_option("--plugin", options.plugin, "kvspan-cuda.so")->required();
  app.add_option("--rows", options.rows, "Only these: \"P1,P7\", \"P7 A q8_0/q4_0 w1\"")
      ->delimiter(',');
  app.add_option("--json", options.json, "File for the whole report");
  app.add_option("--commit", options.commit, "Written into the report");
  app.add_option("--seconds", options.seconds_max, "Begin no row after this many");
  app.add_flag("--list", options.list, "Name the rows, run none");
  app.add_flag("--dry", options.dry, "Made-up limits: rows run on any backend, numbers are void");
  CLI11_PARSE(app, count, arguments);
  const std::vector<Task> tasks = all_tasks();
  if (options.list) {
    for (const Task& task : tasks) {
      fmt::print("{:<18} {}\n", task.ids, task.what);
    }
    return 0;
  }
  try {
    return measure(options, tasks);
  } catch (const std::exception& failed) {
    fmt::print(stderr, "error: {}\n", failed.what());
    return 3;
  }
}

}  // namespace

}  // namespace kvspan::cuda_bench

int main(int count, char** arguments) {
  return kvspan::cuda_bench::run_command_line(count, arguments);
}
