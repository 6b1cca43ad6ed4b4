// SPDX-License-Identifier: Apache-2.0
// A plugin with one device open, as core wants it. Owns both and closes them in order.
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/core/error.hpp"
#include "kvspan/sdk/handle.hpp"
#include "kvspan/sdk/loader.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace kvspan::host {

struct PluginRequest {
  std::string file;
  std::uint32_t device = 0;
  std::map<std::string, std::string> options;  // the plugin's own: "threads" -> "2"
};

// Everything that uses the backend is gone before this is.
class OpenedPlugin {
 public:
  // Errors: not_found, version, bad_file (what the file is not), unsupported (no such device): the
  // sentence begins with the file.
  [[nodiscard]] static Result<OpenedPlugin> open(const PluginRequest& request);

  // The plugin of that name or path, looked for as the command line says: `folders` are those that
  // it names; `options` are the plugin's own. Errors: not_found, and open's.
  [[nodiscard]] static Result<OpenedPlugin> find(const std::string& name_or_path,
                                                 std::uint32_t device,
                                                 const std::vector<std::string>& folders,
                                                 std::map<std::string, std::string> options = {});

  [[nodiscard]] const Backend& backend() const { return *backend_; }

  [[nodiscard]] const sdk::Plugin& plugin() const { return plugin_; }

 private:
  OpenedPlugin() = default;

  sdk::Plugin plugin_;
  sdk::Device device_;
  std::unique_ptr<Backend> backend_;
};

// Loads only: for listing devices. Errors as open.
[[nodiscard]] Result<sdk::Plugin> load_plugin(const PluginRequest& request);

// The facts of one device. Errors: the plugin's own.
[[nodiscard]] Result<kvspan_device_info_t> describe_device(const sdk::Plugin& plugin,
                                                           std::uint32_t index);

// How many devices there are; 0 where the plugin says that there is none, with its words in `why`.
[[nodiscard]] Result<std::uint32_t> count_devices(const sdk::Plugin& plugin, std::string& why);

}  // namespace kvspan::host
