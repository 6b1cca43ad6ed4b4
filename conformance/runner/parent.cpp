// SPDX-License-Identifier: Apache-2.0
// The order of things. Read next: parent.hpp.
#include "parent.hpp"

#include "kvspan/version.h"

#include "campaign.hpp"
#include "ending.hpp"
#include "interrupt.hpp"
#include "options.hpp"
#include "plan.hpp"
#include "plugin_file.hpp"
#include "probe.hpp"
#include "retained.hpp"
#include "run_reports.hpp"
#include "waivers.hpp"
#include "worker_arguments.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <utility>

namespace kvspan::runner {

namespace {

int told(const Ending& ending) {
  if (ending.exit_status == kExitPassed) {
    write_stdout(ending.text);
  } else {
    static_cast<void>(std::fprintf(stderr, "error: %s\n", clean_text(ending.text).c_str()));
  }
  return ending.exit_status;
}

// What is settled before anything runs.
struct Order {
  Options options;
  std::vector<SuiteCase> selected;
  std::vector<Waiver> waivers;
  sdk::Note note;
};

OrEnding<Order> read_order(const Suite& suite, int count, const char* const* arguments) {
  auto options = parse_options(count, arguments);
  if (!options) {
    return tl::unexpected(std::move(options.error()));
  }
  auto selected = selected_cases(suite.cases, *options);
  if (!selected) {
    return tl::unexpected(std::move(selected.error()));
  }
  if (options->list) {
    return tl::unexpected(Ending{kExitPassed, listed(*selected)});
  }
  auto waivers = read_waivers(options->waivers_file, suite.cases);
  if (!waivers) {
    return tl::unexpected(std::move(waivers.error()));
  }
  auto retained = read_retained(options->retained_file);
  if (!retained) {
    return tl::unexpected(std::move(retained.error()));
  }
  options->retained = std::move(*retained);
  auto file = read_plugin_file(options->plugin);
  if (!file) {
    return tl::unexpected(std::move(file.error()));
  }
  options->plugin = file->path;
  return Order{std::move(*options), std::move(*selected), std::move(*waivers), file->note};
}

ReportFacts facts_of(const Order& order, const Probe& probe, std::vector<std::string> words) {
  ReportFacts facts;
  facts.options = order.options;
  facts.command_line = std::move(words);
  facts.suite_version =
      fmt::format("{}.{}.{}", KVSPAN_ABI_MAJOR, KVSPAN_ABI_MINOR, KVSPAN_RELEASE_PATCH);
  facts.note = order.note;
  facts.probe = probe.body;
  facts.started = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  return facts;
}

// One round with one seed. The verdict of a round that could not begin has its sentence printed.
int run_round(const Suite& suite,
              const Order& order,
              const Probe& probe,
              const Plan& plan,
              ReportFacts& facts) {
  const auto begin = Clock::now();
  RunReports reports(facts, plan);
  if (const std::string problem = reports.open(); !problem.empty()) {
    return told({kExitMachine, "--out " + problem});
  }
  const CampaignOrder campaign{
      suite.worker,
      order.options,
      plan,
      order.waivers,
      facts.seed,
      [] { return interrupted(); },
      [&reports](std::size_t index, const CaseResult& result) { reports.add(index, result); }};
  const std::vector<CaseResult> results = run_campaign(campaign, probe.result);
  facts.duration = probe.result.duration + (Clock::now() - begin);
  Verdict verdict = judged(plan, results, order.options);
  if (interrupted() && verdict.exit_status == kExitPassed) {
    verdict.exit_status = kExitMachine;
    verdict.sentence = "INTERRUPTED: " + verdict.sentence;
  }
  if (verdict.exit_status == kExitPassed && order.options.strict && retains_something(probe.body)) {
    verdict.exit_status = kExitWarnings;
    verdict.sentence = "WARNINGS: " + verdict.sentence;
  }
  reports.finish(results, verdict);
  return verdict.exit_status;
}

// The same cases in this process, without reports: a crash stops in the debugger.
int run_in_process(const Suite& suite, const Order& order, const Plan& plan) {
  std::vector<std::string> ids;
  for (const auto& group : plan.groups) {
    for (const std::size_t index : group) {
      ids.push_back(plan.cases[index].suite_case.id);
    }
  }
  if (ids.empty()) {
    return told(
        {kExitUsage,
         fmt::format(
             "nothing is left to run: {}: {}", plan.cases[1].suite_case.id, plan.cases[1].reason)});
  }
  constexpr int kNoRecords = -1;
  return suite.worker_in_process(
      case_arguments(order.options, order.options.seed, ids, kNoRecords));
}

}  // namespace

int parent_main(const Suite& suite, int count, const char* const* arguments) {
  const auto order = read_order(suite, count, arguments);
  if (!order) {
    return told(order.error());
  }
  const Options& options = order->options;
  Probe probe =
      run_probe(suite.worker, probe_arguments(options, kRecordDescriptor), options.case_timeout);
  if (!probe.refused.empty()) {
    return told({kExitUsage, probe.refused});
  }
  if (options.in_process && !probe.answered) {
    probe = Probe{};  // here the plugin may crash: nothing is known, so nothing is left out
    probe.answered = true;
  }
  const auto plan = made_plan(order->selected, probe, options);
  if (!plan) {
    return told(plan.error());
  }
  if (options.in_process) {
    return run_in_process(suite, *order, *plan);
  }
  watch_for_interrupt();
  ReportFacts facts = facts_of(*order, probe, {arguments, arguments + count});
  int status = kExitPassed;
  for (std::uint32_t round = 0; round < options.rounds && status == kExitPassed; ++round) {
    facts.seed = options.seed + round;
    status = run_round(suite, *order, probe, *plan, facts);
  }
  return status;
}

}  // namespace kvspan::runner
