// SPDX-License-Identifier: Apache-2.0
// `kvspan sim`: core on a simulated device, a scenario a seed, judged by checkers of its own. Says
// the seed of what went wrong, and makes it small.
#include "kvspan/sim/run.hpp"
#include "kvspan/sim/scenario.hpp"
#include "kvspan/sim/shrink.hpp"

#include "command.hpp"
#include "exit_code.hpp"
#include "json_file.hpp"
#include "report.hpp"
#include "standard_streams.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace kvspan::host {

namespace {

struct SimOptions {
  std::uint64_t seeds = 1000;
  std::uint64_t first = 1;
  std::uint32_t jobs = 0;
  bool shrink = false;
  bool show = false;
  std::string json;
};

struct FailedSeed {
  std::uint64_t seed = 0;
  sim::Outcome outcome;
};

// Failures that are kept; a defect of core shows in many seeds alike.
constexpr std::size_t kFailuresKept = 20;

struct SimResult {
  sim::Tally tally;
  std::uint64_t failed = 0;
  std::vector<FailedSeed> failures;  // of the lowest seeds, ascending
};

// Seeds are independent: every job takes the next.
SimResult run_seeds(const SimOptions& options, std::uint32_t jobs) {
  SimResult result;
  std::mutex mutex;
  std::atomic<std::uint64_t> next{0};
  const auto work = [&] {
    sim::Tally tally;
    for (std::uint64_t index = next++; index < options.seeds; index = next++) {
      const std::uint64_t seed = options.first + index;
      sim::Outcome outcome = sim::run(sim::scenario_of(seed));
      tally.add(outcome.tally);
      if (!outcome.passed()) {
        const std::lock_guard lock(mutex);
        ++result.failed;
        result.failures.push_back({seed, std::move(outcome)});
        std::sort(result.failures.begin(),
                  result.failures.end(),
                  [](const FailedSeed& a, const FailedSeed& b) { return a.seed < b.seed; });
        result.failures.resize(std::min(result.failures.size(), kFailuresKept));
      }
    }
    const std::lock_guard lock(mutex);
    result.tally.add(tally);
  };
  std::vector<std::thread> threads;
  for (std::uint32_t job = 1; job < jobs; ++job) {
    threads.emplace_back(work);
  }
  work();
  for (std::thread& thread : threads) {
    thread.join();
  }
  return result;
}

nlohmann::ordered_json tally_json(const sim::Tally& tally) {
  nlohmann::ordered_json out;
  out["steps"] = tally.steps;
  out["submits"] = tally.submits;
  out["checked_rows"] = tally.checked_rows;
  out["streamed_pages"] = tally.streamed_pages;
  out["sessions"] = tally.sessions;
  out["refused_opens"] = tally.refused_opens;
  out["placements"] = tally.placements;
  out["decisions"] = tally.decisions;
  out["retired_pages"] = tally.retired_pages;
  out["failed_calls"] = tally.failures;
  out["recoveries"] = tally.recoveries;
  out["cancellations"] = tally.cancellations;
  return out;
}

std::string reproduce(std::uint64_t seed) {
  return fmt::format("kvspan sim --first {} --seeds 1 --shrink", seed);
}

nlohmann::ordered_json result_json(const SimOptions& options, const SimResult& result) {
  nlohmann::ordered_json out;
  out["first"] = options.first;
  out["seeds"] = options.seeds;
  out["failed"] = result.failed;
  out["done"] = tally_json(result.tally);
  out["failures"] = nlohmann::ordered_json::array();
  for (const FailedSeed& failure : result.failures) {
    out["failures"].push_back({{"seed", failure.seed},
                               {"checker", failure.outcome.checker},
                               {"what", failure.outcome.what},
                               {"operation", failure.outcome.op},
                               {"reproduce", reproduce(failure.seed)}});
  }
  return out;
}

std::string result_text(const SimOptions& options, const SimResult& result) {
  const sim::Tally& tally = result.tally;
  std::string out;
  for (const FailedSeed& failure : result.failures) {
    out += fmt::format("seed {}, operation {}, {}: {}\n  {}\n",
                       failure.seed,
                       failure.outcome.op,
                       failure.outcome.checker,
                       failure.outcome.what,
                       reproduce(failure.seed));
  }
  out += fmt::format(
      "{} seeds from {}: {} failed; {} sessions, {} steps, {} submits, {} rows checked, {} pages "
      "streamed, {} failures answered, {} cancellations answered\n",
      options.seeds,
      options.first,
      result.failed,
      tally.sessions,
      tally.steps,
      tally.submits,
      tally.checked_rows,
      tally.streamed_pages,
      tally.failures,
      tally.cancellations);
  return out;
}

std::string shrunk_text(std::uint64_t seed) {
  const sim::Shrunk small = sim::shrink(
      sim::scenario_of(seed), [](const sim::Scenario& scenario) { return sim::run(scenario); });
  return fmt::format("\nafter {} runs, {} at operation {}: {}\n{}",
                     small.runs,
                     small.outcome.checker,
                     small.outcome.op,
                     small.outcome.what,
                     sim::text(small.scenario));
}

Result<void> run_sim(const SimOptions& options) {
  auto json_file = JsonFile::open_if_named(options.json);
  if (!json_file) {
    return tl::unexpected(std::move(json_file).error());
  }
  std::optional<JsonFile>& json = *json_file;
  const std::uint32_t jobs =
      options.jobs != 0 ? options.jobs : std::max(1U, std::thread::hardware_concurrency());
  const SimResult result = run_seeds(options, jobs);
  std::string said = options.show ? sim::text(sim::scenario_of(options.first)) : std::string();
  said += result_text(options, result);
  if (options.shrink && !result.failures.empty()) {
    said += shrunk_text(result.failures.front().seed);
  }
  if (json && json->is_stdout()) {
    tell(said);
  } else if (auto wrote = write_stdout(said); !wrote) {
    return wrote;
  }
  if (json) {
    if (auto wrote = json->write(result_json(options, result)); !wrote) {
      return wrote;
    }
  }
  if (result.failed != 0) {
    return tl::unexpected(error_of(Errc::internal,
                                   fmt::format("seed {} found a defect; `{}` makes it small",
                                               result.failures.front().seed,
                                               reproduce(result.failures.front().seed)),
                                   "sim"));
  }
  return {};
}

}  // namespace

RunCommand add_sim(CLI::App& app, const GlobalOptions& global) {
  (void)global;
  CLI::App* const command = app.add_subcommand(
      "sim",
      "Streaming on a simulated device: each seed is a device, a workload, failures and "
      "cancellations in virtual time; exit status 1 names the first seed that found a defect");
  auto options = std::make_shared<SimOptions>();
  SimOptions& o = *options;
  command->add_option("--seeds", o.seeds, "How many")
      ->capture_default_str()
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000'000}));
  command->add_option("--first", o.first, "The first of them")->capture_default_str();
  command->add_option("--jobs", o.jobs, "Threads; 0 = as many as the machine has")
      ->capture_default_str()
      ->check(CLI::Range(0U, 1024U));
  command->add_flag("--shrink", o.shrink, "Make the first failing seed small and print it");
  command->add_flag("--show", o.show, "Print the scenario of the first seed");
  command->add_option("--json", o.json, "Write everything as JSON to this file, - for stdout");
  return [options] { return status_of(run_sim(*options)); };
}

}  // namespace kvspan::host
