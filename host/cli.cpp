// SPDX-License-Identifier: Apache-2.0
// Parser set-up: one subcommand a file in commands/. Wrong options end with status 2, like wrong input.
#include "cli.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "commands/command.hpp"
#include "exit_code.hpp"
#include "kvspan/version.h"

namespace kvspan::host {

int run_command_line(int count, char** arguments) {
  CLI::App app{
      "kvspan: let a language model use more KV cache than its accelerator holds.\n"
      "Exit status: 0 done, 1 failed, 2 wrong input or options, 3 missing or too small here, "
      "130 interrupted."};
  app.name("kvspan");
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("kvspan {}.{}.{}", KVSPAN_ABI_MAJOR,
                                                KVSPAN_ABI_MINOR, KVSPAN_RELEASE_PATCH));
  GlobalOptions global;
  app.add_option("--plugin-dir", global.plugin_folders,
                 "Folder that holds kvspan-<name>.so; searched first, may be repeated. Then those of "
                 "KVSPAN_PLUGIN_PATH, then those beside this program");
  const std::vector<std::pair<std::string, RunCommand>> commands = {
      {"list", add_list(app, global)},
      {"inspect", add_inspect(app, global)},
      {"plan", add_plan(app, global)},
      {"generate", add_generate(app, global)}};
  try {
    app.parse(count, arguments);
  } catch (const CLI::ParseError& failure) {
    const int status = app.exit(failure);
    return status == 0 ? kExitOk : kExitWrongInput;
  }
  for (const auto& [name, run] : commands) {
    if (app.got_subcommand(name)) {
      return run();
    }
  }
  return kExitWrongInput;
}

}  // namespace kvspan::host
