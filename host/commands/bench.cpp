// SPDX-License-Identifier: Apache-2.0
// `kvspan bench decode`: what streaming costs on this machine, without a model. Every timed run
// counts its bytes and has the outputs of the resident run, bit for bit, or the command fails.
#include "kvspan/core/layout/kv_type.hpp"
#include "kvspan/version.h"

#include "amount.hpp"
#include "command.hpp"
#include "decode_bench.hpp"
#include "exit_code.hpp"
#include "json_file.hpp"
#include "machine.hpp"
#include "opened_plugin.hpp"
#include "report.hpp"
#include "standard_streams.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvspan::host {

namespace {

struct BenchOptions {
  std::string plugin = "cpu";
  std::uint32_t device = 0;
  std::string geometry = "A";
  std::uint32_t layers = 16;
  std::vector<std::string> contexts = {"8K"};
  std::vector<std::uint32_t> widths = {1};
  std::vector<std::uint32_t> host_percent = {100};
  std::string k_type = "q8_0";
  std::string v_type = "q4_0";
  std::uint32_t page_tokens = 256;
  std::uint32_t group_pages = 0;
  std::uint64_t gap_ns = 0;
  std::uint32_t steps = 9;
  bool wait_each_layer = false;
  std::string commit;
  std::string json;
};

Error wrong(std::string message) {
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
    return tl::unexpected(
        wrong(fmt::format("a context of '{}' is not understood; give 1 to {} tokens, or 8K, or 1M",
                          text,
                          kTokensMax)));
  }
  return number * factor;
}

Result<LayerGeometry> layer_of(const BenchOptions& options) {
  const auto k_type = kv_type_named(options.k_type);
  const auto v_type = kv_type_named(options.v_type);
  if (!k_type || !v_type) {
    return tl::unexpected(k_type ? v_type.error() : k_type.error());
  }
  if (options.geometry == "A") {
    return LayerGeometry{k_type->id, v_type->id, 256, 256, 4, 24};
  }
  if (options.geometry == "B") {
    return LayerGeometry{k_type->id, v_type->id, 128, 128, 8, 32};
  }
  unsigned q_heads = 0;
  unsigned kv_heads = 0;
  unsigned head_size = 0;
  char more = 0;
  const int found = std::sscanf(
      options.geometry.c_str(), "%5u/%5u/%5u%c", &q_heads, &kv_heads, &head_size, &more);
  if (found != 3) {
    return tl::unexpected(wrong(fmt::format(
        "the geometry '{}' is not understood; give A, B, or query heads/KV heads/head size, like "
        "32/8/128",
        options.geometry)));
  }
  return LayerGeometry{k_type->id, v_type->id, head_size, head_size, kv_heads, q_heads};
}

Result<DecodeBenchRequest> request_of(const BenchOptions& options) {
  DecodeBenchRequest request;
  const auto layer = layer_of(options);
  if (!layer) {
    return tl::unexpected(layer.error());
  }
  request.layer = *layer;
  request.layers = options.layers;
  request.page_tokens = options.page_tokens;
  for (const std::string& context : options.contexts) {
    const auto tokens = parse_tokens(context);
    if (!tokens) {
      return tl::unexpected(tokens.error());
    }
    request.contexts.push_back(*tokens);
  }
  request.widths = options.widths;
  request.host_percent = options.host_percent;
  request.stream.group_pages = options.group_pages;
  request.stream.gap_ns = options.gap_ns;
  request.timed_steps = options.steps;
  request.wait_each_layer = options.wait_each_layer;
  return request;
}

nlohmann::ordered_json origin_json(const OpenedPlugin& opened, const BenchOptions& options) {
  const Machine machine = this_machine();
  const sdk::Note& note = opened.plugin().note();
  nlohmann::ordered_json out;
  out["kvspan"] = fmt::format("{}.{}.{}", KVSPAN_ABI_MAJOR, KVSPAN_ABI_MINOR, KVSPAN_RELEASE_PATCH);
  out["commit"] = options.commit;
  out["machine"] = {
      {"processor", machine.processor}, {"cores", machine.cores}, {"system", machine.system}};
  out["plugin"] = {{"name", note.name}, {"version", note.version}, {"build_id", note.build_id}};
  out["device"] = opened.backend().info().name;
  return out;
}

Result<void> run_decode(const BenchOptions& options, const GlobalOptions& global) {
  const auto request = request_of(options);
  if (!request) {
    return tl::unexpected(request.error());
  }
  auto opened = OpenedPlugin::find(options.plugin, options.device, global.plugin_folders);
  if (!opened) {
    return tl::unexpected(std::move(opened).error());
  }
  auto json_file = JsonFile::open_if_named(options.json);
  if (!json_file) {
    return tl::unexpected(std::move(json_file).error());
  }
  std::optional<JsonFile>& json = *json_file;
  // The table is the result where JSON is not.
  Result<void> wrote;
  const auto say = [&](const std::string& text) {
    if (json && json->is_stdout()) {
      tell(text);
    } else if (wrote) {
      wrote = write_stdout(text);
    }
  };
  bool first = true;
  const auto result = bench_decode(
      opened->backend(), *request, [&](const DecodeBenchRow& row, double link_bytes_s) {
        if (first) {
          say(fmt::format("{}; link {:.2f} GB/s\n{}",
                          opened->backend().info().name,
                          link_bytes_s * 1e-9,
                          decode_bench_heading()));
          first = false;
        }
        say(decode_bench_line(row, link_bytes_s));
      });
  if (!result || !wrote) {
    return tl::unexpected(result ? wrote.error() : result.error());
  }
  if (json) {
    nlohmann::ordered_json document = origin_json(*opened, options);
    document.update(decode_bench_json(*request, *result));
    return json->write(document);
  }
  return {};
}

}  // namespace

RunCommand add_bench(CLI::App& app, const GlobalOptions& global) {
  CLI::App* const bench = app.add_subcommand("bench", "What streaming costs here, without a model");
  bench->require_subcommand(1);
  CLI::App* const command = bench->add_subcommand(
      "decode",
      "Steps over a random history of which a share is on the host; bytes are counted and outputs "
      "compared with the resident run, or the command fails");
  auto options = std::make_shared<BenchOptions>();
  BenchOptions& o = *options;
  command->add_option("--plugin,--backend", o.plugin, "Name or file of the plugin")
      ->capture_default_str();
  command->add_option("--device", o.device, "Number of its device")->capture_default_str();
  command
      ->add_option("--geometry", o.geometry, "A = 24/4/256, B = 32/8/128, or heads/KV heads/size")
      ->capture_default_str();
  command->add_option("--layers", o.layers, "Layers with KV")
      ->capture_default_str()
      ->check(CLI::Range(1U, 4096U));
  command->add_option("--context", o.contexts, "Tokens before the first step: 8K,32K")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--rows", o.widths, "Rows a step: 1,4,8")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1U, 64U));
  command->add_option("--host-share", o.host_percent, "Pages that are not resident, in percent")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(0U, 100U));
  command->add_option("--k-type,--k", o.k_type, "Type of K")->capture_default_str();
  command->add_option("--v-type,--v", o.v_type, "Type of V")->capture_default_str();
  command->add_option("--page-tokens", o.page_tokens, "Tokens a page")
      ->capture_default_str()
      ->check(CLI::Range(1U, 65536U));
  command->add_option("--group-pages", o.group_pages, "Pages a fetch; 0 = chosen")
      ->capture_default_str()
      ->check(CLI::Range(0U, 1024U));
  command
      ->add_option("--gap-ns", o.gap_ns, "The engine's other work between two layers, nanoseconds")
      ->capture_default_str()
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1'000'000'000}));
  command->add_flag(
      "--wait-each-layer", o.wait_each_layer, "The engine waits for a layer before the next");
  command->add_option("--steps", o.steps, "Timed steps a row of the table")
      ->capture_default_str()
      ->check(CLI::Range(1U, 10000U));
  command->add_option("--commit", o.commit, "Written into the JSON");
  command->add_option("--json", o.json, "Write everything as JSON to this file, - for stdout");
  const RunCommand run_link = add_bench_link(*bench, global);
  return [&global, options, bench, run_link] {
    return bench->got_subcommand("link") ? run_link() : status_of(run_decode(*options, global));
  };
}

}  // namespace kvspan::host
