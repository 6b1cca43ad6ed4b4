// SPDX-License-Identifier: Apache-2.0
// `kvspan inspect FILE`: who a plugin says it is and whether it can work here, without running a
// byte of it.
#include "kvspan/sdk/note.hpp"

#include "command.hpp"
#include "config.hpp"
#include "json_file.hpp"
#include "report.hpp"
#include "standard_streams.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string>

namespace kvspan::host {

namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text.empty() ? "none" : text;
}

nlohmann::ordered_json note_json(const std::string& file,
                                 const sdk::Note& note,
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

std::string note_text(const std::string& file, const sdk::Note& note, const std::string& misfit) {
  std::string out;
  const auto line = [&out](std::string_view label, const std::string& text) {
    out += fmt::format("{:<14}{}\n", label, text);
  };
  line("file", file);
  line("name", fmt::format("{} {} by {}", note.name, note.version, note.vendor));
  line("ABI",
       fmt::format("{}.{} to {}.{}, header {:016x}",
                   note.abi_major,
                   note.minors.min,
                   note.abi_major,
                   note.minors.max,
                   note.header_hash));
  line("needs CPU", fmt::format("x86-64-v{}", note.isa_floor));
  line("links", joined(note.needed));
  line("opens", joined(note.libraries));
  line("build id", note.build_id.empty() ? "none" : note.build_id);
  line("fits here", misfit.empty() ? "yes" : "no: " + misfit);
  return out;
}

// Tells all of it also where the plugin does not fit: that is then an error too.
Result<void> run_inspect(const std::string& name,
                         const std::string& json_path,
                         const GlobalOptions& global) {
  const auto file = find_plugin(name, plugin_folders(global.plugin_folders));
  if (!file) {
    return tl::unexpected(file.error());
  }
  sdk::Note note;
  std::string why;
  if (!sdk::read_note(*file, note, why)) {
    return tl::unexpected(error_of(
        Errc::bad_file,
        *file + " " + why + "; give a kvspan plugin, `kvspan list` shows those that are found",
        "plugin"));
  }
  const std::string misfit = sdk::refusal(note, sdk::machine_here());
  if (!json_path.empty()) {
    auto out = JsonFile::open(json_path);
    auto wrote = out ? out->write(note_json(*file, note, misfit)) : tl::unexpected(out.error());
    if (!wrote) {
      return wrote;
    }
  }
  if (json_path != "-") {
    if (auto wrote = write_stdout(note_text(*file, note, misfit)); !wrote) {
      return wrote;
    }
  }
  if (!misfit.empty()) {
    return tl::unexpected(
        error_of(Errc::version, *file + " cannot be used here: it " + misfit, "plugin"));
  }
  return {};
}

}  // namespace

RunCommand add_inspect(CLI::App& app, const GlobalOptions& global) {
  CLI::App* const command =
      app.add_subcommand("inspect", "Identity of a plugin, read without loading it");
  auto name = std::make_shared<std::string>();
  auto json = std::make_shared<std::string>();
  command->add_option("plugin", *name, "Name or file of the plugin")->required();
  command->add_option("--json", *json, "Write the same as JSON to this file, - for stdout");
  return [&global, name, json] { return status_of(run_inspect(*name, *json, global)); };
}

}  // namespace kvspan::host
