// SPDX-License-Identifier: Apache-2.0
// The campaign's loop. Each of --jobs threads takes groups from one list and lives as long as its
// workers.
#include "campaign.hpp"

#include "group_run.hpp"
#include "probe.hpp"
#include "worker_arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace kvspan::runner {

namespace {

using Indices = std::vector<std::size_t>;

// After that many hangs the plugin has shown what it does, and a day has only so many time limits.
constexpr std::size_t kHangsMax = 8;

class Campaign {
 public:
  explicit Campaign(const CampaignOrder& order)
      : order_(order), results_(order.plan.cases.size()), begin_(Clock::now()) {}

  std::vector<CaseResult> run(const CaseResult& probe) {
    deliver(0, probe);
    for (std::size_t i = 1; i < results_.size(); ++i) {
      const PlannedCase& planned = order_.plan.cases[i];
      if (!planned.to_run()) {
        CaseResult result;
        result.status = planned.status;
        result.reason = planned.reason;
        deliver(i, std::move(result));
      }
    }
    for (; next_group_ < order_.plan.alone; ++next_group_) {
      run_group(order_.plan.groups[next_group_]);
    }
    const std::size_t jobs =
        std::min<std::size_t>(order_.options.jobs, order_.plan.groups.size() - next_group_);
    std::vector<std::thread> threads;
    for (std::size_t i = 1; i < jobs; ++i) {
      threads.emplace_back([this] { work(); });
    }
    work();
    for (std::thread& thread : threads) {
      thread.join();
    }
    return std::move(results_);
  }

 private:
  void work() {
    for (;;) {
      std::size_t group = 0;
      {
        const std::lock_guard lock(mutex_);
        if (next_group_ == order_.plan.groups.size()) {
          return;
        }
        group = next_group_++;
      }
      run_group(order_.plan.groups[group]);
    }
  }

  void deliver(std::size_t index, CaseResult result) {
    apply_waivers(order_.waivers, order_.plan.cases[index].suite_case, result);
    const std::lock_guard lock(mutex_);
    results_[index] = std::move(result);
    order_.on_result(index, results_[index]);
  }

  // What cases get that may not begin any more.
  struct Halt {
    std::string reason;  // empty as long as they may
    Status status = Status::not_run;
    bool out_of_budget = false;
  };

  Halt halted() {
    const std::lock_guard lock(mutex_);
    if (!blocked_.empty()) {
      return {blocked_, Status::blocked};
    }
    if (order_.interrupted()) {
      return {"the run was interrupted"};
    }
    if (hangs_ >= kHangsMax) {
      return {fmt::format("{} cases hung before it; choose with --case what to run", hangs_)};
    }
    if (order_.options.budget && Clock::now() - begin_ >= *order_.options.budget) {
      return {fmt::format("the budget of {} was spent", spoken(*order_.options.budget)),
              Status::not_run,
              true};
    }
    return {};
  }

  std::vector<std::string> ids_of(const Indices& indices) const {
    std::vector<std::string> ids;
    for (const std::size_t index : indices) {
      ids.push_back(order_.plan.cases[index].suite_case.id);
    }
    return ids;
  }

  GroupRun run_in_worker(const Indices& indices, bool may_be_cut) {
    const std::vector<std::string> ids = ids_of(indices);
    GroupRun run(ids, [this, may_be_cut] { return !may_be_cut || halted().reason.empty(); });
    WorkerWatch watch;
    watch.step_timeout = order_.options.case_timeout;
    watch.on_line = [&run](std::string_view line) { return run.line(line); };
    watch.on_printed = [&run](std::string_view text) { run.printed(text); };
    watch.on_pause = [&run] { run.pause(); };
    const auto arguments = case_arguments(order_.options, order_.seed, ids, kRecordDescriptor);
    run.ended(run_worker(order_.command, arguments, watch));
    return run;
  }

  void run_group(const Indices& group) {
    Indices left = group;
    for (auto halt = halted(); !left.empty(); halt = halted()) {
      if (!halt.reason.empty()) {
        for (const std::size_t index : left) {
          CaseResult result;
          result.status = halt.status;
          result.reason = halt.reason;
          result.out_of_budget = halt.out_of_budget;
          deliver(index, std::move(result));
        }
        return;
      }
      left = run_once(left);
    }
  }

  // One worker for these cases; returns those that have no result yet, always fewer unless the
  // campaign is halted.
  Indices run_once(const Indices& indices) {
    const GroupRun run = run_in_worker(indices, true);
    std::vector<CaseResult> results;
    for (std::size_t i = 0; i < run.count(); ++i) {
      results.push_back(run.result(i));
    }
    if (run.blamed() != run.count()) {
      look_into_death(indices, run.blamed(), results[run.blamed()]);
    }
    find_who_printed(indices, run, results);
    Indices left;
    for (std::size_t i = 0; i < run.count(); ++i) {
      if (run.settled(i)) {
        deliver(indices[i], std::move(results[i]));
      } else {
        left.push_back(indices[i]);
      }
    }
    return left;
  }

  void look_into_death(const Indices& indices, std::size_t blamed, CaseResult& result) {
    if (result.status == Status::crash) {
      if (indices.size() == 1) {
        result.alone = "it was alone in its worker";
        return;
      }
      const GroupRun alone = run_in_worker({indices[blamed]}, false);
      const Status status = alone.result(0).status;
      result.only_with_neighbours = status == Status::pass;
      result.alone = status == Status::crash  ? "it crashes alone too"
                     : status == Status::pass ? "alone it passes: only after its neighbours"
                                              : fmt::format("alone: {}", name(status));
    } else if (result.status == Status::hang) {
      const Probe health = run_probe(order_.command,
                                     probe_arguments(order_.options, kRecordDescriptor),
                                     order_.options.case_timeout);
      const std::lock_guard lock(mutex_);
      ++hangs_;
      if (!health.opened()) {
        blocked_ = fmt::format("after {} hung the plugin no longer opens: {}",
                               order_.plan.cases[indices[blamed]].suite_case.id,
                               first_words(health.result));
      }
    } else if (result.status == Status::blocked) {
      const std::lock_guard lock(mutex_);
      blocked_ = result.reason;
    }
  }

  // Text arrived while one case followed another: each of them runs alone to tell whose it is.
  void find_who_printed(const Indices& indices,
                        const GroupRun& run,
                        std::vector<CaseResult>& results) {
    bool found = false;
    for (const std::size_t suspect : run.suspects()) {
      const std::string text = run_in_worker({indices[suspect]}, false).result(0).printed;
      if (!text.empty()) {
        found = true;
        results[suspect].printed = text;
        fail_with(results[suspect], printed_failure(text));
      }
    }
    if (!found && !run.suspects().empty()) {
      CaseResult& first = results[run.suspects().front()];
      first.printed = run.suspects_text();
      fail_with(first, printed_failure(run.suspects_text()));
      first.notes.push_back(
          fmt::format("this or one of the {} cases after it printed that; alone none does",
                      run.suspects().size() - 1));
    }
  }

  const CampaignOrder& order_;
  std::mutex mutex_;  // guards all below
  std::vector<CaseResult> results_;
  std::size_t next_group_ = 0;
  std::size_t hangs_ = 0;
  std::string blocked_;
  Clock::time_point begin_;
};

}  // namespace

std::vector<CaseResult> run_campaign(const CampaignOrder& order, const CaseResult& probe) {
  return Campaign(order).run(probe);
}

}  // namespace kvspan::runner
