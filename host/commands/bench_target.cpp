// SPDX-License-Identifier: Apache-2.0
// Read first: bench_target.hpp.
#include "bench_target.hpp"

#include "kvspan/core/layout/kv_type.hpp"
#include "kvspan/version.h"

#include "machine.hpp"
#include "standard_streams.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <cstdio>
#include <utility>

namespace kvspan::host {

namespace {

Error wrong_target(std::string message) {
  return error_of(Errc::invalid_argument, std::move(message), "bench");
}

// "8192", "8K" or "1M": tokens.
Result<std::uint64_t> parse_tokens(std::string_view text) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, number);
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  const std::uint64_t factor = unit.empty() ? 1 : unit == "K" ? 1024 : unit == "M" ? 1 << 20 : 0;
  constexpr std::uint64_t kTokensMax = 1ULL << 30;
  if (problem != std::errc{} || factor == 0 || number == 0 || number > kTokensMax / factor) {
    return tl::unexpected(wrong_target(
        fmt::format("a context of '{}' is not understood; give 1 to {} tokens, or 8K, or 1M",
                    text,
                    kTokensMax)));
  }
  return number * factor;
}

}  // namespace

void add_plugin_options(CLI::App& command, BenchTarget& target) {
  command.add_option("--plugin,--backend", target.plugin, "Name or file of the plugin")
      ->capture_default_str();
  command.add_option("--option",
                     target.plugin_options,
                     "An option of the plugin, NAME=VALUE: its README has them");
  command.add_option("--device", target.device, "Number of its device")->capture_default_str();
}

void add_layer_options(CLI::App& command, BenchTarget& target) {
  command
      .add_option(
          "--geometry", target.geometry, "A = 24/4/256, B = 32/8/128, or heads/KV heads/size")
      ->capture_default_str();
  command.add_option("--k-type,--k", target.k_type, "Type of K")->capture_default_str();
  command.add_option("--v-type,--v", target.v_type, "Type of V")->capture_default_str();
  command.add_option("--page-tokens", target.page_tokens, "Tokens a page")
      ->capture_default_str()
      ->check(CLI::Range(1U, 65536U));
}

void add_target(CLI::App& command, BenchTarget& target) {
  add_plugin_options(command, target);
  add_layer_options(command, target);
  command.add_option("--layers", target.layers, "Layers with KV")
      ->capture_default_str()
      ->check(CLI::Range(1U, 4096U));
  command.add_option("--context", target.contexts, "Tokens before the first step: 8K,32K")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--host-share", target.host_percent, "Pages that are not resident, in percent")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(0U, 100U));
  command.add_option("--q-type", target.q_type, "Type of queries: f32, or f16 of the same values")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "f16"}));
  command.add_option("--group-pages", target.group_pages, "Pages a fetch; 0 = chosen")
      ->capture_default_str()
      ->check(CLI::Range(0U, 1024U));
  command.add_option("--calibration",
                     target.calibration,
                     "File that `bench link` wrote: placements and predictions are by its numbers");
  command.add_option("--commit", target.commit, "Written into the JSON");
  command.add_option("--json", target.json, "Write everything as JSON to this file, - for stdout");
}

Result<OpenedPlugin> open_target(const BenchTarget& target, const GlobalOptions& global) {
  std::map<std::string, std::string> options;
  for (const std::string& option : target.plugin_options) {
    const std::size_t at = option.find('=');
    if (at == 0 || at == std::string::npos) {
      return tl::unexpected(wrong_target(
          fmt::format("the option '{}' of the plugin is not understood; give NAME=VALUE", option)));
    }
    options[option.substr(0, at)] = option.substr(at + 1);
  }
  return OpenedPlugin::find(
      target.plugin, target.device, global.plugin_folders, std::move(options));
}

Result<LayerGeometry> layer_of(const BenchTarget& target) {
  const auto k_type = kv_type_named(target.k_type);
  const auto v_type = kv_type_named(target.v_type);
  if (!k_type || !v_type) {
    return tl::unexpected(k_type ? v_type.error() : k_type.error());
  }
  if (target.geometry == "A") {
    return LayerGeometry{k_type->id, v_type->id, 256, 256, 4, 24};
  }
  if (target.geometry == "B") {
    return LayerGeometry{k_type->id, v_type->id, 128, 128, 8, 32};
  }
  unsigned q_heads = 0;
  unsigned kv_heads = 0;
  unsigned head_size = 0;
  char more = 0;
  const int found =
      std::sscanf(target.geometry.c_str(), "%5u/%5u/%5u%c", &q_heads, &kv_heads, &head_size, &more);
  if (found != 3) {
    return tl::unexpected(wrong_target(fmt::format(
        "the geometry '{}' is not understood; give A, B, or query heads/KV heads/head size, like "
        "32/8/128",
        target.geometry)));
  }
  return LayerGeometry{k_type->id, v_type->id, head_size, head_size, kv_heads, q_heads};
}

kvspan_type_t query_type_of(const BenchTarget& target) {
  return target.q_type == "f16" ? KVSPAN_TYPE_F16 : KVSPAN_TYPE_F32;
}

Result<std::vector<std::uint64_t>> contexts_of(const BenchTarget& target) {
  std::vector<std::uint64_t> contexts;
  for (const std::string& context : target.contexts) {
    const auto tokens = parse_tokens(context);
    if (!tokens) {
      return tl::unexpected(tokens.error());
    }
    contexts.push_back(*tokens);
  }
  return contexts;
}

Result<OpenedTarget> open_measured(const BenchTarget& target, const GlobalOptions& global) {
  auto plugin = open_target(target, global);
  if (!plugin) {
    return tl::unexpected(std::move(plugin).error());
  }
  auto calibration = load_if_named(target.calibration, plugin->backend());
  if (!calibration) {
    return tl::unexpected(std::move(calibration).error());
  }
  auto json = JsonFile::open_if_named(target.json);
  if (!json) {
    return tl::unexpected(std::move(json).error());
  }
  return OpenedTarget{std::move(*plugin), *calibration, std::move(*json)};
}

namespace {

// Where it was measured, and of what.
nlohmann::ordered_json target_json(const OpenedPlugin& opened, const BenchTarget& target) {
  const Machine machine = this_machine();
  const sdk::Note& note = opened.plugin().note();
  nlohmann::ordered_json out;
  out["kvspan"] = fmt::format("{}.{}.{}", KVSPAN_ABI_MAJOR, KVSPAN_ABI_MINOR, KVSPAN_RELEASE_PATCH);
  out["commit"] = target.commit;
  out["machine"] = {
      {"processor", machine.processor}, {"cores", machine.cores}, {"system", machine.system}};
  out["plugin"] = {{"name", note.name},
                   {"version", note.version},
                   {"build_id", note.build_id},
                   {"options", target.plugin_options}};
  out["q_type"] = target.q_type;
  out["device"] = opened.backend().info().name;
  return out;
}

}  // namespace

Result<void> write_results(OpenedTarget& opened,
                           const BenchTarget& target,
                           const nlohmann::ordered_json& results) {
  if (!opened.json) {
    return {};
  }
  nlohmann::ordered_json document = target_json(opened.plugin, target);
  document.update(results);
  return opened.json->write(document);
}

void BenchTable::say(const std::string& text) {
  if (json_ && json_->is_stdout()) {
    tell(text);
  } else if (wrote_) {
    wrote_ = write_stdout(text);
  }
}

}  // namespace kvspan::host
