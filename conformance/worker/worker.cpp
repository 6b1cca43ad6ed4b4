// SPDX-License-Identifier: Apache-2.0
// From arguments to a run of cases.
#include "worker/worker.hpp"

#include "worker/case.hpp"
#include "worker/listener.hpp"
#include "worker/plan.hpp"
#include "worker/probe.hpp"
#include "worker/process_state.hpp"
#include "worker/record.hpp"
#include "worker/retained.hpp"
#include "worker/stack_writer.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <fnmatch.h>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace kvspan::conformance {
namespace {

using nlohmann::json;

constexpr int kUsage = 64;
constexpr int kMachine = 3;

struct Order {
  Settings settings;
  std::vector<std::string> options;
  std::vector<std::string> tuples;
  std::string retained;  // JSON
  std::string cases;
  bool probe = false;
  int record_fd = -1;
  int stack_fd = -1;
  int stack_signal = 0;
};

int refuse(const std::string& sentence) {
  static_cast<void>(std::fprintf(stderr, "kvspan-conformance --worker: %s\n", sentence.c_str()));
  return kUsage;
}

/// Empty when the order can be carried out, else what is wrong with it.
std::string complete(Order& order) {
  for (const std::string& option : order.options) {
    const std::size_t split = option.find('=');
    if (split == std::string::npos || split == 0) {
      return "--option " + option + ": write name=value";
    }
    order.settings.options[option.substr(0, split)] = option.substr(split + 1);
  }
  Mutation mutation = Mutation::none;
  if (!find_mutation(order.settings.mutation, mutation)) {
    std::string names;
    for (const std::string& name : mutation_names()) {
      names += " " + name;
    }
    return "--mutate " + order.settings.mutation + ": there is no such mutation, only" + names;
  }
  for (const std::string& text : order.tuples) {
    std::string wrong = read_tuple(text, order.settings.tuples.emplace_back());
    if (!wrong.empty()) {
      return wrong;
    }
  }
  if (!order.retained.empty()) {
    std::string wrong = read_retained(order.retained, order.settings.retained);
    if (!wrong.empty()) {
      return wrong;
    }
  }
  if (order.probe == !order.cases.empty()) {
    return "give --cases or --probe, one of them";
  }
  return "";
}

/// The patterns of --cases: globs apart by ':', or the lines of a file.
std::vector<std::string> patterns_of(const std::string& cases) {
  const bool listed = cases.find('/') != std::string::npos;
  std::ifstream file;
  std::istringstream globs(cases);
  if (listed) {
    file.open(cases);
  }
  std::istream& from = listed ? static_cast<std::istream&>(file) : globs;
  std::vector<std::string> patterns;
  for (std::string pattern; std::getline(from, pattern, listed ? '\n' : ':');) {
    if (!pattern.empty()) {
      patterns.push_back(pattern);
    }
  }
  return patterns;
}

/// The ids of the cases that a pattern selects, in the order in which they are run. `unmatched` is
/// a pattern that selects none.
std::vector<std::string> selected(const std::vector<std::string>& patterns,
                                  std::string& unmatched) {
  std::vector<bool> used(patterns.size(), false);
  std::vector<std::string> ids;
  for (const CaseInfo& info : registered_cases()) {
    bool wanted = false;
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      if (::fnmatch(patterns[i].c_str(), info.id.c_str(), 0) == 0) {
        used[i] = wanted = true;
      }
    }
    if (wanted) {
      ids.push_back(info.id);
    }
  }
  for (std::size_t i = 0; i < patterns.size() && unmatched.empty(); ++i) {
    unmatched = used[i] ? "" : patterns[i];
  }
  return ids;
}

json start_fields(const Order& order, uint64_t count) {
  return {{"schema", kRecordSchema},
          {"plugin", order.settings.plugin_path},
          {"options", order.settings.options},
          {"device", order.settings.device},
          {"seed", order.settings.seed},
          {"effort", order.settings.effort_percent},
          {"mutation", order.settings.mutation},
          {"pid", ::getpid()},
          {"cases", count}};
}

/// The sentence about a tuple that the plugin does not offer; empty when it offers all.
std::string absent_tuple(const json& found) {
  return found.value("absent_tuple", "");
}

/// Leaves out, with the fact, what the plugin lacks. Not 0 when there is nothing to run then.
int plan_here(const Settings& settings) {
  const json found = probe(settings);
  if (found["ok"] != true) {
    static_cast<void>(std::fprintf(
        stderr, "%s: %s\n", settings.plugin_path.c_str(), found["message"].dump().c_str()));
    return kMachine;
  }
  if (const std::string absent = absent_tuple(found); !absent.empty()) {
    return refuse(absent);
  }
  std::map<std::string, std::string> skips;
  for (const CaseInfo& info : registered_cases()) {
    const std::string fact = unmet_need(info, found);
    if (!fact.empty()) {
      skips[info.id] = fact;
    }
  }
  plan_skips(std::move(skips));
  return 0;
}

int run_probe(const Order& order, RecordStream& records) {
  const json found = probe(order.settings);
  if (const std::string absent = absent_tuple(found); !absent.empty()) {
    return refuse(absent);
  }
  records.write("probe", found);
  if (!records.on()) {
    static_cast<void>(std::printf("%s\n", found.dump(1).c_str()));
  }
  records.write("done", {{"executed", 0}, {"failed", 0}, {"inconclusive", 0}, {"errors", 0}});
  return found["ok"] == true ? 0 : kMachine;
}

int run_cases(const Order& order, RecordStream& records) {
  if (!records.on()) {
    const int planned = plan_here(order.settings);
    return planned == 0 ? RUN_ALL_TESTS() : planned;
  }
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  auto* listener = new RecordListener(records);  // GoogleTest's from here on
  listeners.Append(listener);
  [[maybe_unused]] const int passed = RUN_ALL_TESTS();  // the listener counts for itself
  return listener->finish() ? 0 : 1;
}

// A sanitizer's runtime starts a thread of its own with the program's first one: now, before the
// threads are counted, so that no plugin is charged with it.
void start_runtime_threads() {
  std::atomic<int> first = 0;
  std::thread([&first] { first = ::gettid(); }).join();
  // A joined thread stays among the tasks for a moment.
  while (::access(("/proc/self/task/" + std::to_string(first)).c_str(), F_OK) == 0) {
    std::this_thread::yield();
  }
}

}  // namespace

int worker_main(int argc, char** argv) {
  start_runtime_threads();
  ::testing::InitGoogleTest(&argc, argv);
  Order order;
  CLI::App app("One group of conformance cases against one plugin");
  bool worker = false;
  app.add_flag("--worker", worker, "be a worker");
  app.add_option("--plugin", order.settings.plugin_path, "path of kvspan-<name>.so")->required();
  app.add_option("--option", order.options, "name=value for the plugin")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  app.add_option("--tuple", order.tuples, "K type, V type and head size to look at")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  app.add_option("--retained", order.retained, "JSON: what stays for the life of the process");
  app.add_option("--device", order.settings.device, "index");
  app.add_option("--cases", order.cases, "globs apart by ':', or a file of case ids");
  app.add_option("--seed", order.settings.seed, "moves the dice of every case");
  app.add_option("--effort", order.settings.effort_percent, "rounds in percent");
  app.add_option("--soak", order.settings.soak, "times the rounds of cases that seek rare events");
  app.add_option("--mutate", order.settings.mutation, "perturb results by name");
  app.add_option("--record-fd", order.record_fd, "descriptor for records");
  app.add_option("--stack-fd", order.stack_fd, "descriptor for stacks");
  app.add_option("--stack-signal", order.stack_signal, "what asks a thread for its stack");
  app.add_flag("--probe", order.probe, "say what the plugin offers");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : refuse(error.what());
  }
  const std::string wrong = complete(order);
  if (!wrong.empty()) {
    return refuse(wrong);
  }
  if (order.record_fd >= 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // no worker outlives its parent
  }
  if (order.stack_fd >= 0) {
    arm_stack_writer(order.stack_fd, order.stack_signal);
  }
  adopt(order.settings);
  remember_process(ProcessState::now());
  RecordStream records(order.record_fd);
  std::vector<std::string> ids;
  if (!order.probe) {
    std::string unmatched;
    ids = selected(patterns_of(order.cases), unmatched);
    if (ids.empty() || !unmatched.empty()) {
      return refuse("--cases " + (unmatched.empty() ? order.cases : unmatched) +
                    ": there is no such case; --list names them all");
    }
    std::string filter;
    for (const std::string& id : ids) {
      filter += filter.empty() ? id : ":" + id;
    }
    ::testing::GTEST_FLAG(filter) = filter;
  }
  records.write("start", start_fields(order, ids.size()));
  return order.probe ? run_probe(order, records) : run_cases(order, records);
}

}  // namespace kvspan::conformance
