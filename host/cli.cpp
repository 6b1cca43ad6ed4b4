// SPDX-License-Identifier: Apache-2.0
// Parser set-up: one subcommand a file in commands/. Wrong options end with status 2, like wrong
// input.
#include "cli.hpp"

#include "kvspan/version.h"

#include "commands/command.hpp"
#include "exit_code.hpp"
#include "report.hpp"
#include "standard_streams.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::host {

namespace {

// Help and version are results, everything else is a wrong option.
int answer(const CLI::App& app, const CLI::ParseError& failure) {
  std::ostringstream text;
  std::ostringstream ignored;
  if (app.exit(failure, text, ignored) == 0) {
    const auto wrote = write_stdout(text.str());
    if (!wrote) {
      print_error(wrote.error());
      return exit_code(wrote.error());
    }
    return kExitOk;
  }
  std::string help = "kvspan";
  for (const CLI::App* command : app.get_subcommands()) {
    help += " " + command->get_name();
  }
  // The parser looks for what is missing before it looks at what is too much; a misspelt option is
  // both.
  const std::vector<std::string> extras = app.remaining(true);
  const std::string what =
      extras.empty() ? failure.what() : fmt::format("{} is not understood", extras.front());
  print_error({Errc::invalid_argument,
               fmt::format("{}; `{} --help` lists what is understood", what, help)});
  return kExitWrongInput;
}

}  // namespace

int run_command_line(int count, char** arguments) {
  CLI::App app{
      "kvspan: let a language model use more KV cache than its accelerator holds.\n"
      "Exit status: 0 done, 1 failed, 2 wrong input or options, 3 missing or too small here, "
      "130 interrupted."};
  app.name("kvspan");
  app.require_subcommand(1);
  app.set_version_flag(
      "--version",
      fmt::format("kvspan {}.{}.{}", KVSPAN_ABI_MAJOR, KVSPAN_ABI_MINOR, KVSPAN_RELEASE_PATCH));
  GlobalOptions global;
  app.add_option(
         "--plugin-dir",
         global.plugin_folders,
         "Folder that holds kvspan-<name>.so; searched first, may be repeated. Then those of "
         "KVSPAN_PLUGIN_PATH, then those beside this program")
      ->allow_extra_args(false);  // one folder each: the next word is the command
  const std::vector<std::pair<std::string, RunCommand>> commands = {
      {"list", add_list(app, global)},
      {"inspect", add_inspect(app, global)},
      {"plan", add_plan(app, global)},
      {"generate", add_generate(app, global)},
      {"bench", add_bench(app, global)},
      {"sim", add_sim(app, global)}};
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& failure) {
    return answer(app, failure);
  }
  for (const auto& [name, run] : commands) {
    if (app.got_subcommand(name)) {
      return run();
    }
  }
  return kExitWrongInput;
}

}  // namespace kvspan::host
