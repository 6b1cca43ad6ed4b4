// SPDX-License-Identifier: Apache-2.0
// What the commands under `kvspan bench` that attend have in common: a plugin with its options, a
// geometry, where the result goes.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/layout/geometry.hpp"

#include "calibration.hpp"
#include "command.hpp"
#include "json_file.hpp"
#include "opened_plugin.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvspan::host {

struct BenchTarget {
  std::string plugin = "cpu";
  std::vector<std::string> plugin_options;  // NAME=VALUE
  std::uint32_t device = 0;
  std::string geometry = "A";
  std::uint32_t layers = 16;
  std::vector<std::string> contexts = {"8K"};
  std::vector<std::uint32_t> host_percent = {100};
  std::string k_type = "q8_0";
  std::string v_type = "q4_0";
  std::string q_type = "f32";
  std::uint32_t page_tokens = 256;
  std::uint32_t group_pages = 0;
  std::string calibration;
  std::string commit;
  std::string json;
};

// `target` outlives the command.
void add_target(CLI::App& command, BenchTarget& target);

// --geometry, types and page size alone.
void add_layer_options(CLI::App& command, BenchTarget& target);

// --plugin, --option and --device alone.
void add_plugin_options(CLI::App& command, BenchTarget& target);

// Errors: invalid_argument where an option is no NAME=VALUE; OpenedPlugin::find()'s.
[[nodiscard]] Result<OpenedPlugin> open_target(const BenchTarget& target,
                                               const GlobalOptions& global);

// Errors: invalid_argument for a geometry or type that is not known.
[[nodiscard]] Result<LayerGeometry> layer_of(const BenchTarget& target);

// Of queries.
[[nodiscard]] kvspan_type_t query_type_of(const BenchTarget& target);

// The contexts in tokens. Errors: invalid_argument.
[[nodiscard]] Result<std::vector<std::uint64_t>> contexts_of(const BenchTarget& target);

// A target that can be measured: its plugin, what is known of its device, where the result goes.
struct OpenedTarget {
  OpenedPlugin plugin;
  std::optional<DeviceCalibration> calibration;
  std::optional<JsonFile> json;

  [[nodiscard]] const Backend& backend() const { return plugin.backend(); }
};

// Errors: open_target()'s, load_if_named()'s, JsonFile's.
[[nodiscard]] Result<OpenedTarget> open_measured(const BenchTarget& target,
                                                 const GlobalOptions& global);

// Writes the document where one is asked for: where it was measured, and of what, then `results`.
[[nodiscard]] Result<void> write_results(OpenedTarget& opened,
                                         const BenchTarget& target,
                                         const nlohmann::ordered_json& results);

// Lines for people: on stdout, or on stderr where the JSON goes there.
class BenchTable {
 public:
  explicit BenchTable(const std::optional<JsonFile>& json) : json_(json) {}

  void say(const std::string& text);

  // The first failure of a write.
  [[nodiscard]] const Result<void>& wrote() const { return wrote_; }

 private:
  const std::optional<JsonFile>& json_;
  Result<void> wrote_;
};

}  // namespace kvspan::host
