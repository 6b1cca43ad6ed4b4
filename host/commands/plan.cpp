// SPDX-License-Identifier: Apache-2.0
// `kvspan plan`: exact bytes of a geometry on a backend, the minimum arena, and what a given arena
// becomes. Allocates nothing on the device.
#include "kvspan/core/layout/checked.hpp"
#include "kvspan/core/layout/kv_type.hpp"
#include "kvspan/core/session/session.hpp"

#include "amount.hpp"
#include "command.hpp"
#include "config.hpp"
#include "exit_code.hpp"
#include "json_file.hpp"
#include "model/gguf.hpp"
#include "model/model_config.hpp"
#include "opened_plugin.hpp"
#include "report.hpp"
#include "standard_streams.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string>

namespace kvspan::host {

namespace {

// Far above any real geometry, and low enough for every count of slots to fit 32 bits.
constexpr std::uint32_t kLayersMax = 4096;
constexpr std::uint32_t kSequencesMax = 4096;
constexpr std::uint32_t kSizeMax = 1U << 14;  // heads, and elements of one
constexpr std::uint64_t kContextTokensMax = 1ULL << 40;

struct PlanOptions {
  std::string plugin = "cpu";
  std::uint32_t device = 0;
  std::string model;
  std::uint32_t layers = 0;
  std::uint32_t q_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_size_k = 0;
  std::uint32_t head_size_v = 0;
  std::uint64_t context_tokens = 0;
  std::uint32_t sequences = 1;
  std::uint32_t page_tokens = 256;
  std::uint32_t prefill_rows = 1024;
  std::uint32_t decode_rows = 1;
  std::string k_type = "f16";
  std::string v_type = "f16";
  std::string arena;
  std::string json;
};

Result<SessionOptions> session_options(const PlanOptions& options) {
  model::ModelGeometry sizes;
  sizes.layers = options.layers;
  sizes.q_heads = options.q_heads;
  sizes.kv_heads = options.kv_heads;
  sizes.head_size_k = options.head_size_k;
  sizes.head_size_v = options.head_size_v == 0 ? options.head_size_k : options.head_size_v;
  if (!options.model.empty()) {
    const auto file = model::GgufFile::open(options.model);
    if (!file) {
      return tl::unexpected(file.error());
    }
    const auto config = model::read_model_config(*file);
    if (!config) {
      return tl::unexpected(as_bad_file(config.error()));
    }
    sizes = config->geometry;
  } else if (sizes.layers == 0 || sizes.q_heads == 0 || sizes.kv_heads == 0 ||
             sizes.head_size_k == 0) {
    return tl::unexpected(Error{Errc::invalid_argument,
                                "give --model, or --layers, --q-heads, --kv-heads and --head-size",
                                0,
                                0,
                                0,
                                "plan"});
  }
  const auto k_type = kv_type_named(options.k_type);
  const auto v_type = kv_type_named(options.v_type);
  if (!k_type || !v_type) {
    return tl::unexpected(k_type ? v_type.error() : k_type.error());
  }
  SessionOptions out;
  const LayerGeometry layer{
      k_type->id, v_type->id, sizes.head_size_k, sizes.head_size_v, sizes.kv_heads, sizes.q_heads};
  out.geometry.layers.assign(sizes.layers, layer);
  out.geometry.page_tokens = options.page_tokens;
  out.context_tokens = options.context_tokens;
  out.sequences = options.sequences;
  out.prefill_rows_max = options.prefill_rows;
  out.decode_rows = options.decode_rows;
  return out;
}

PlanRequest plan_request(const Backend& backend, const SessionOptions& session) {
  PlanRequest request;
  request.geometry = session.geometry;
  request.context_tokens = session.context_tokens;
  request.sequences = session.sequences;
  request.prefill_rows_max = session.prefill_rows_max;
  request.decode_rows = session.decode_rows;
  request.capabilities = capabilities_of(backend, session);
  return request;
}

nlohmann::ordered_json plan_json(const Plan& plan) {
  nlohmann::ordered_json out;
  out["mode"] = name(plan.mode);
  out["arena_bytes"] = plan.regions.total_bytes();
  out["minimum_arena_bytes"] = plan.minimum_arena_bytes;
  out["host_bytes"] = plan.history_bytes;
  out["prefill_rows"] = plan.prefill_rows;
  out["page_bytes"] = plan.pages.front().page_bytes;
  out["ring_pages"] = plan.ring_slots;
  out["tail_pages"] = plan.tail_slots;
  out["group_pages"] = plan.group_pages;
  out["resident_pages"] = plan.resident_pages;
  out["pages_a_layer"] = plan.pages_a_sequence;
  out["pinned_bytes"] = plan.pinned_bytes;
  for (const PhaseBudget& phase : plan.phases) {
    for (const PlanComponent& component : phase.components) {
      out["phases"][phase.name][component.name] = component.size_bytes;
    }
  }
  return out;
}

std::string plan_text(const Plan& plan, std::uint64_t arena_bytes) {
  const std::uint64_t total = plan.regions.total_bytes();
  std::string out;
  const auto amount = [&out](std::string_view label, std::uint64_t size, std::string_view more) {
    out += fmt::format("{:<21}{:>16} bytes ({}){}\n", label, size, bytes_text(size), more);
  };
  out += fmt::format("mode                 {}\n", name(plan.mode));
  amount("minimum arena", plan.minimum_arena_bytes, "");
  amount(arena_bytes == 0 ? "this plan, minimum" : "this plan", total, "");
  amount("host history", plan.history_bytes, ", pinned");
  out += fmt::format("prefill chunk        {:>16} rows\n", plan.prefill_rows);
  std::uint64_t resident = 0;
  for (const std::uint32_t pages : plan.resident_pages) {
    resident += pages;
  }
  out += fmt::format(
      "pages                {} resident + {} ring + {} tail slots; a sequence has {} a layer\n",
      resident,
      plan.ring_slots,
      plan.tail_slots,
      plan.pages_a_sequence);
  for (const PhaseBudget& phase : plan.phases) {
    out += fmt::format("{:<20} {:>16} bytes needed\n", phase.name, phase.needed_bytes());
    for (const PlanComponent& component : phase.components) {
      if (component.size_bytes != 0) {
        out += fmt::format("  {:<18} {:>16} bytes\n", component.name, component.size_bytes);
      }
    }
  }
  return out;
}

// Everything that the plan adds up or multiplies stays far below 64 bits.
Result<void> check_size(const SessionOptions& session) {
  constexpr std::uint64_t kHistoryBytesMax = 1ULL << 60;
  const std::uint64_t page = std::max(session.geometry.page_tokens, 1U);
  auto bytes = live_bytes(session.geometry, (session.context_tokens + page - 1) / page * page);
  if (!bytes) {
    return tl::unexpected(std::move(bytes).error());
  }
  const auto all = checked_mul(*bytes, session.sequences);
  if (!all || *all > kHistoryBytesMax) {
    return tl::unexpected(Error{
        Errc::too_large,
        fmt::format("a history of {} sequences of {} tokens is more than the {} bytes that can be "
                    "planned; use fewer sequences, layers or tokens",
                    session.sequences,
                    session.context_tokens,
                    kHistoryBytesMax),
        0,
        0,
        0,
        "history"});
  }
  return {};
}

Result<void> run_plan(const PlanOptions& options, const GlobalOptions& global) {
  auto session = session_options(options);
  if (!session) {
    return tl::unexpected(std::move(session).error());
  }
  if (auto checked = check_size(*session); !checked) {
    return checked;
  }
  const auto file = find_plugin(options.plugin, plugin_folders(global.plugin_folders));
  if (!file) {
    return tl::unexpected(file.error());
  }
  auto opened = OpenedPlugin::open({*file, options.device, {}});
  if (!opened) {
    return tl::unexpected(std::move(opened).error());
  }
  PlanRequest request = plan_request(opened->backend(), *session);
  auto least = plan(request);
  if (!least) {
    return tl::unexpected(std::move(least).error());
  }
  if (!options.arena.empty()) {
    const auto bytes = parse_bytes(options.arena, least->history_bytes);
    if (!bytes) {
      return tl::unexpected(bytes.error());
    }
    request.arena_bytes = std::max<std::uint64_t>(*bytes, 1);
  }
  auto found = plan(request);
  if (!found) {
    return tl::unexpected(std::move(found).error());
  }
  if (!options.json.empty()) {
    auto out = JsonFile::open(options.json);
    if (!out) {
      return tl::unexpected(out.error());
    }
    if (auto wrote = out->write(plan_json(*found)); !wrote) {
      return wrote;
    }
  }
  if (options.json != "-") {
    return write_stdout(plan_text(*found, request.arena_bytes));
  }
  return {};
}

}  // namespace

RunCommand add_plan(CLI::App& app, const GlobalOptions& global) {
  CLI::App* const command = app.add_subcommand(
      "plan", "Exact bytes of a geometry, the minimum arena, what an arena becomes");
  auto options = std::make_shared<PlanOptions>();
  PlanOptions& o = *options;
  command->add_option("--plugin", o.plugin, "Name or file of the plugin")->capture_default_str();
  command->add_option("--device", o.device, "Number of its device")->capture_default_str();
  command->add_option("--model", o.model, "GGUF file to take the geometry from");
  command->add_option("--layers", o.layers, "Layers with KV")->check(CLI::Range(1U, kLayersMax));
  command->add_option("--q-heads", o.q_heads, "Query heads")->check(CLI::Range(1U, kSizeMax));
  command->add_option("--kv-heads", o.kv_heads, "KV heads")->check(CLI::Range(1U, kSizeMax));
  command->add_option("--head-size", o.head_size_k, "Elements of a K head, and of a V head")
      ->check(CLI::Range(1U, kSizeMax));
  command->add_option("--head-size-v", o.head_size_v, "Elements of a V head where it differs")
      ->check(CLI::Range(1U, kSizeMax));
  command->add_option("--context", o.context_tokens, "Longest history in tokens")
      ->required()
      ->check(CLI::Range(std::uint64_t{1}, kContextTokensMax));
  command->add_option("--sequences", o.sequences, "Sequences at once")
      ->capture_default_str()
      ->check(CLI::Range(1U, kSequencesMax));
  command->add_option("--page-tokens", o.page_tokens, "Tokens a page")->capture_default_str();
  command->add_option("--prefill-rows", o.prefill_rows, "Widest prefill chunk")
      ->capture_default_str()
      ->check(CLI::Range(1U, 1U << 16));
  command->add_option("--decode-rows", o.decode_rows, "Rows a decode step")
      ->capture_default_str()
      ->check(CLI::Range(1U, 64U));
  command->add_option("--k-type", o.k_type, "Type of K")->capture_default_str();
  command->add_option("--v-type", o.v_type, "Type of V")->capture_default_str();
  command->add_option("--arena",
                      o.arena,
                      "Device memory: bytes, 6.3MB, 6MiB or 25% of the history; without it the "
                      "minimum is planned");
  command->add_option("--json", o.json, "Write the plan as JSON to this file, - for stdout");
  return [&global, options] { return status_of(run_plan(*options, global)); };
}

}  // namespace kvspan::host
