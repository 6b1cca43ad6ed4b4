// SPDX-License-Identifier: Apache-2.0
// `kvspan list`: every plugin that is found, its devices, or the one reason why it cannot be used
// here.
#include "command.hpp"
#include "config.hpp"
#include "json_file.hpp"
#include "opened_plugin.hpp"
#include "report.hpp"
#include "standard_streams.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string>

namespace kvspan::host {

namespace {

nlohmann::ordered_json device_json(const kvspan_device_info_t& info) {
  nlohmann::ordered_json out;
  out["name"] = info.name;
  std::string id;
  for (const std::uint8_t byte : info.id) {
    id += fmt::format("{:02x}", byte);
  }
  out["id"] = id;
  out["unified_memory"] = (info.flags & KVSPAN_DEVICE_UNIFIED_MEMORY) != 0;
  out["allocation_bytes_max"] = info.allocation_bytes_max;
  out["queues_max"] = info.queues_max;
  return out;
}

nlohmann::ordered_json plugin_json(const std::string& file) {
  nlohmann::ordered_json out;
  out["file"] = file;
  const auto plugin = load_plugin({file, 0, {}});
  if (!plugin) {
    out["unusable"] = plugin.error().message;
    return out;
  }
  out["name"] = plugin->note().name;
  out["version"] = plugin->note().version;
  out["attention"] = plugin->attention() != nullptr;
  std::string why;
  const auto count = count_devices(*plugin, why);
  if (!count) {
    out["unusable"] = count.error().message;
    return out;
  }
  out["devices"] = nlohmann::ordered_json::array();
  for (std::uint32_t index = 0; index < *count; ++index) {
    const auto info = describe_device(*plugin, index);
    if (info) {
      out["devices"].push_back(device_json(*info));
    }
  }
  if (!why.empty()) {
    out["no_device"] = why;
  }
  return out;
}

std::string plugin_text(const nlohmann::ordered_json& plugin) {
  const auto text = [&plugin](const char* key) { return plugin[key].get<std::string>(); };
  if (plugin.contains("unusable")) {
    return fmt::format("{}\n  cannot be used here: {}\n", text("file"), text("unusable"));
  }
  std::string out = fmt::format("{} {}  {}\n", text("name"), text("version"), text("file"));
  if (plugin.contains("no_device")) {
    out += fmt::format("  {}\n", text("no_device"));
  }
  std::size_t index = 0;
  for (const auto& device : plugin["devices"]) {
    out += fmt::format("  device {}: {}{}\n",
                       index++,
                       device["name"].get<std::string>(),
                       device["unified_memory"].get<bool>() ? " (unified memory)" : "");
  }
  return out;
}

Error nothing_found(const std::vector<std::string>& folders) {
  std::string searched;
  for (const std::string& folder : folders) {
    searched += (searched.empty() ? "" : ", ") + folder;
  }
  return error_of(Errc::not_found,
                  "no kvspan-*.so was found in " +
                      (searched.empty() ? "any known folder" : searched) + "; give --plugin-dir",
                  "plugin");
}

Result<void> run_list(const std::string& json_path, const GlobalOptions& global) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  const std::vector<std::string> folders = plugin_folders(global.plugin_folders);
  for (const std::string& file : all_plugins(folders)) {
    all.push_back(plugin_json(file));
  }
  if (!json_path.empty()) {
    auto file = JsonFile::open(json_path);
    auto wrote = file ? file->write({{"plugins", all}}) : tl::unexpected(file.error());
    if (!wrote) {
      return wrote;
    }
  }
  if (json_path != "-") {
    std::string text;
    for (const auto& plugin : all) {
      text += plugin_text(plugin);
    }
    if (auto wrote = write_stdout(text); !wrote) {
      return wrote;
    }
  }
  if (all.empty()) {
    return tl::unexpected(nothing_found(folders));
  }
  return {};
}

}  // namespace

RunCommand add_list(CLI::App& app, const GlobalOptions& global) {
  CLI::App* const command = app.add_subcommand("list", "Plugins and devices that are found here");
  auto json = std::make_shared<std::string>();
  command->add_option("--json", *json, "Write the same as JSON to this file, - for stdout");
  return [&global, json] { return status_of(run_list(*json, global)); };
}

}  // namespace kvspan::host
