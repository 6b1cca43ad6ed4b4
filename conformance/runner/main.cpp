// SPDX-License-Identifier: Apache-2.0
// Entry of `kvspan-conformance`: parent and worker are one program, so that the parent knows every
// case without loading anything. An exception here is out of memory or a bug: it gets a sentence.
#include "ending.hpp"
#include "parent.hpp"
#include "worker/case.hpp"
#include "worker/worker.hpp"

#include <nlohmann/json.hpp>

#include <csignal>
#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

using kvspan::runner::Suite;
using kvspan::runner::SuiteCase;

SuiteCase suite_case(const kvspan::conformance::CaseInfo& info) {
  SuiteCase one;
  one.id = info.id;
  one.rules = info.rules;
  one.profile = kvspan::conformance::name_of(info.profile);
  for (const kvspan::conformance::Need need : info.needs) {
    one.needs.push_back(kvspan::conformance::name_of(need));
  }
  one.cost_ms = info.cost_ms;
  one.takes_tuple = info.takes_tuple;
  one.runs_alone = info.runs_alone;
  one.unmet = [info](const nlohmann::json& probe) {
    return kvspan::conformance::unmet_need(info, probe);
  };
  return one;
}

int worker_in_process(std::vector<std::string> words) {
  words.insert(words.begin(), {"kvspan-conformance", "--worker"});
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  return kvspan::conformance::worker_main(static_cast<int>(words.size()), arguments.data());
}

// No file that is opened later becomes stdin, stdout or stderr because the caller had closed it.
void prepare_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) == -1) {
      static_cast<void>(::open("/dev/null", O_RDWR));
    }
  }
}

int run(int count, char** arguments) {
  if (count > 1 && std::string_view(arguments[1]) == "--worker") {
    return kvspan::conformance::worker_main(count, arguments);
  }
  prepare_standard_streams();
  static_cast<void>(std::signal(SIGPIPE, SIG_IGN));
  Suite suite;
  for (const auto& info : kvspan::conformance::registered_cases()) {
    suite.cases.push_back(suite_case(info));
  }
  suite.worker = {"/proc/self/exe", {"--worker"}};
  suite.worker_in_process = worker_in_process;
  return kvspan::runner::parent_main(suite, count, arguments);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failure) {
    static_cast<void>(std::fprintf(stderr,
                                   "error: this is a defect of kvspan-conformance, or memory is "
                                   "short: %s; please report it with the command\n",
                                   failure.what()));
    return kvspan::runner::kExitMachine;
  }
}
