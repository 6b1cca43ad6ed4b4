// SPDX-License-Identifier: Apache-2.0
// `kvspan inspect FILE`: who a plugin says it is and whether it can work here, without running a byte of it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "command.hpp"
#include "config.hpp"
#include "exit_code.hpp"
#include "kvspan/sdk/note.hpp"
#include "report.hpp"

namespace kvspan::host {

namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text.empty() ? "none" : text;
}

nlohmann::ordered_json note_json(const std::string& file, const sdk::Note& note,
                                 const std::string& misfit) {
  nlohmann::ordered_json out;
  out["file"] = file;
  out["name"] = note.name;
  out["vendor"] = note.vendor;
  out["version"] = note.version;
  out["abi_major"] = note.abi_major;
  out["abi_minor_min"] = note.minors.min;
  out["abi_minor_max"] = note.minors.max;
  out["header_hash"] = fmt::format("{:016x}", note.header_hash);
  out["isa_floor"] = fmt::format("x86-64-v{}", note.isa_floor);
  out["linked"] = note.needed;
  out["opened_at_run_time"] = note.libraries;
  out["build_id"] = note.build_id;
  out["fits"] = misfit.empty();
  if (!misfit.empty()) {
    out["misfit"] = misfit;
  }
  return out;
}

void print_note(const std::string& file, const sdk::Note& note, const std::string& misfit) {
  fmt::print("file          {}\n", file);
  fmt::print("name          {} {} by {}\n", note.name, note.version, note.vendor);
  fmt::print("ABI           {}.{} to {}.{}, header {:016x}\n", note.abi_major, note.minors.min,
             note.abi_major, note.minors.max, note.header_hash);
  fmt::print("needs CPU     x86-64-v{}\n", note.isa_floor);
  fmt::print("links         {}\n", joined(note.needed));
  fmt::print("opens         {}\n", joined(note.libraries));
  fmt::print("build id      {}\n", note.build_id.empty() ? "none" : note.build_id);
  fmt::print("fits here     {}\n", misfit.empty() ? "yes" : "no: " + misfit);
}

}  // namespace

RunCommand add_inspect(CLI::App& app, const GlobalOptions& global) {
  CLI::App* const command =
      app.add_subcommand("inspect", "Identity of a plugin, read without loading it");
  auto name = std::make_shared<std::string>();
  auto json = std::make_shared<std::string>();
  command->add_option("plugin", *name, "Name or file of the plugin")->required();
  command->add_option("--json", *json, "Write the same as JSON to this file, - for stdout");
  return [&global, name, json] {
    const auto file = find_plugin(*name, plugin_folders(global.plugin_folders));
    if (!file) {
      print_error(file.error());
      return exit_code(file.error());
    }
    sdk::Note note;
    std::string why;
    if (!sdk::read_note(*file, note, why)) {
      const Error error{Errc::bad_file, *file + ": " + why, 0, 0, 0, "plugin"};
      print_error(error);
      return exit_code(error);
    }
    const std::string misfit = sdk::refusal(note, sdk::machine_here());
    if (!json->empty()) {
      auto out = JsonFile::open(*json);
      auto wrote =
          out ? out->write(note_json(*file, note, misfit)) : tl::unexpected(out.error());
      if (!wrote) {
        print_error(wrote.error());
        return exit_code(wrote.error());
      }
    }
    if (*json != "-") {
      print_note(*file, note, misfit);
    }
    return misfit.empty() ? kExitOk : kExitMissingHere;
  };
}

}  // namespace kvspan::host
