// SPDX-License-Identifier: Apache-2.0
// The two command lines. Read next: conformance/worker/worker.hpp, which describes the first.
#include "worker_arguments.hpp"

#include "probe.hpp"
#include "stack_dump.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

namespace kvspan::runner {

namespace {

// What shapes every call of the plugin, whoever makes it: for workers and people alike.
std::vector<std::string> shared_arguments(const Options& options) {
  std::vector<std::string> out;
  for (const std::string& pair : options.plugin_options) {
    out.insert(out.end(), {"--option", pair});
  }
  for (const std::string& tuple : options.tuples) {
    out.insert(out.end(), {"--tuple", tuple});
  }
  if (options.device != 0) {
    out.insert(out.end(), {"--device", std::to_string(options.device)});
  }
  if (options.effort_percent != 100) {
    out.insert(out.end(), {"--effort", std::to_string(options.effort_percent)});
  }
  if (options.soak != 1) {
    out.insert(out.end(), {"--soak", std::to_string(options.soak)});
  }
  if (!options.mutation.empty()) {
    out.insert(out.end(), {"--mutate", options.mutation});
  }
  return out;
}

std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string("_-./=,:+@%").find(c) != std::string::npos;
  });
  if (plain) {
    return word;
  }
  std::string out = "'";
  for (const char c : word) {
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return out + "'";
}

std::vector<std::string> worker_arguments(const Options& options, int record_descriptor) {
  std::vector<std::string> out = {"--plugin", options.plugin};
  if (record_descriptor >= 0) {
    out.insert(out.end(),
               {"--record-fd",
                std::to_string(record_descriptor),
                "--stack-fd",
                std::to_string(kStackDescriptor),
                "--stack-signal",
                std::to_string(stack_signal())});
  }
  const std::vector<std::string> shared = shared_arguments(options);
  out.insert(out.end(), shared.begin(), shared.end());
  if (!options.retained.empty()) {
    out.insert(out.end(), {"--retained", options.retained});
  }
  return out;
}

}  // namespace

std::vector<std::string> probe_arguments(const Options& options, int record_descriptor) {
  std::vector<std::string> out = worker_arguments(options, record_descriptor);
  out.emplace_back("--probe");
  return out;
}

std::vector<std::string> case_arguments(const Options& options,
                                        std::uint64_t seed,
                                        const std::vector<std::string>& ids,
                                        int record_descriptor) {
  std::vector<std::string> out = worker_arguments(options, record_descriptor);
  out.insert(out.end(),
             {"--seed", std::to_string(seed), "--cases", fmt::format("{}", fmt::join(ids, ":"))});
  return out;
}

std::string reproduce_line(const Options& options,
                           std::uint64_t seed,
                           const SuiteCase& one,
                           const CaseResult& result) {
  const std::vector<std::string> shared = shared_arguments(options);
  std::vector<std::string> words = {"kvspan-conformance"};
  if (one.suite() == probe_case().suite()) {
    words.insert(words.end(), {"--worker", "--plugin", options.plugin, "--probe"});
  } else {
    words.insert(words.end(), {options.plugin, "--case"});
    words.push_back(result.only_with_neighbours ? fmt::format("{}.*", one.suite()) : one.id);
    words.insert(words.end(), {"--seed", std::to_string(seed), "--in-process"});
    if (!options.retained_file.empty()) {
      words.insert(words.end(), {"--retained", options.retained_file});
    }
  }
  words.insert(words.end(), shared.begin(), shared.end());
  std::transform(words.begin(), words.end(), words.begin(), quoted);
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace kvspan::runner
