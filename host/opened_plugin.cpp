// SPDX-License-Identifier: Apache-2.0
// Opening: load, count, describe, open, hand the tables to core.
#include "opened_plugin.hpp"

#include "config.hpp"
#include "standard_streams.hpp"

#include <fmt/format.h>

#include <utility>

namespace kvspan::host {

namespace {

void log_line(std::uint32_t level, std::string_view text) {
  static constexpr const char* kNames[] = {"error", "warning", "info", "debug"};
  tell(fmt::format("plugin {}: {}\n", kNames[level < 4 ? level : 3], text));
}

BackendTables tables_of(const sdk::Plugin& plugin) {
  BackendTables tables;
  tables.device = plugin.device();
  tables.memory = plugin.memory();
  tables.queue = plugin.queue();
  tables.fence = plugin.fence();
  tables.copy = plugin.copy();
  tables.codec = plugin.codec();
  tables.attention = plugin.attention();
  tables.debug = plugin.debug();
  return tables;
}

}  // namespace

Result<sdk::Plugin> load_plugin(const PluginRequest& request) {
  sdk::LoadOptions options;
  options.options = request.options;
  options.log = log_line;
  sdk::Plugin plugin;
  kvspan_error_t error = empty_error();
  const kvspan_result_t result = sdk::Plugin::load(request.file, options, plugin, &error);
  if (result != KVSPAN_OK) {
    Error refused = from_abi(result, error, "loading " + request.file);
    if (result == KVSPAN_E_INVALID_ARG || result == KVSPAN_E_INTERNAL) {
      refused.code = Errc::bad_file;  // the file is not what was asked for; the call was right
      refused.message += "; give a kvspan plugin, `kvspan list` shows those that are found";
    }
    return tl::unexpected(std::move(refused));
  }
  return plugin;
}

Result<std::uint32_t> count_devices(const sdk::Plugin& plugin, std::string& why) {
  std::uint32_t count = 0;
  kvspan_error_t error = empty_error();
  const kvspan_result_t result = plugin.device()->count(plugin.self(), &count, &error);
  if (result == KVSPAN_E_NO_DEVICE) {
    why = error.message;
    return 0;
  }
  if (result != KVSPAN_OK) {
    return tl::unexpected(from_abi(result, error, "counting devices"));
  }
  why = count == 0 ? "no device" : "";
  return count;
}

Result<kvspan_device_info_t> describe_device(const sdk::Plugin& plugin, std::uint32_t index) {
  kvspan_device_info_t info{};
  info.struct_size = sizeof info;
  kvspan_error_t error = empty_error();
  const kvspan_result_t result = plugin.device()->describe(plugin.self(), index, &info, &error);
  if (result != KVSPAN_OK) {
    return tl::unexpected(from_abi(result, error, "describing the device"));
  }
  return info;
}

Result<OpenedPlugin> OpenedPlugin::find(const std::string& name_or_path,
                                        std::uint32_t device,
                                        const std::vector<std::string>& folders,
                                        std::map<std::string, std::string> options) {
  const auto file = find_plugin(name_or_path, plugin_folders(folders));
  if (!file) {
    return tl::unexpected(file.error());
  }
  return open({*file, device, std::move(options)});
}

Result<OpenedPlugin> OpenedPlugin::open(const PluginRequest& request) {
  auto plugin = load_plugin(request);
  if (!plugin) {
    return tl::unexpected(std::move(plugin).error());
  }
  OpenedPlugin opened;
  opened.plugin_ = std::move(*plugin);
  std::string why;
  const auto count = count_devices(opened.plugin_, why);
  if (!count) {
    return tl::unexpected(count.error());
  }
  if (request.device >= *count) {
    return tl::unexpected(error_of(
        Errc::not_found,
        fmt::format(
            "{} has {} device(s){}{}; device {} does not exist, `kvspan list` shows those that "
            "do",
            request.file,
            *count,
            why.empty() ? "" : ": ",
            why,
            request.device),
        "device"));
  }
  const auto info = describe_device(opened.plugin_, request.device);
  if (!info) {
    return tl::unexpected(info.error());
  }
  kvspan_error_t error = empty_error();
  const kvspan_result_t result =
      sdk::Device::open(opened.plugin_, request.device, opened.device_, &error);
  if (result != KVSPAN_OK) {
    return tl::unexpected(from_abi(result, error, "opening the device"));
  }
  opened.backend_ =
      std::make_unique<Backend>(tables_of(opened.plugin_), opened.device_.get(), *info);
  return opened;
}

}  // namespace kvspan::host
