// SPDX-License-Identifier: Apache-2.0
// What every command of the tool has in common: it adds itself to the parser and returns an exit
// status when run.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace kvspan::host {

// Options that stand before the command.
struct GlobalOptions {
  std::vector<std::string> plugin_folders;
};

// Runs the parsed command and returns its exit status.
using RunCommand = std::function<int()>;

// Each adds a subcommand to `app`; the returned function is called when it was chosen. `global`
// outlives it.
RunCommand add_list(CLI::App& app, const GlobalOptions& global);
RunCommand add_inspect(CLI::App& app, const GlobalOptions& global);
RunCommand add_plan(CLI::App& app, const GlobalOptions& global);
RunCommand add_generate(CLI::App& app, const GlobalOptions& global);
RunCommand add_bench(CLI::App& app, const GlobalOptions& global);
RunCommand add_sim(CLI::App& app, const GlobalOptions& global);

// Of `bench`: decode steps, chunks of a prompt, the link alone.
RunCommand add_bench_decode(CLI::App& bench, const GlobalOptions& global);
RunCommand add_bench_prefill(CLI::App& bench, const GlobalOptions& global);
RunCommand add_bench_link(CLI::App& bench, const GlobalOptions& global);

}  // namespace kvspan::host
