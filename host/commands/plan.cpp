// SPDX-License-Identifier: Apache-2.0
// `kvspan plan`: exact bytes of a geometry on a backend, the minimum arena, what a given arena
// becomes and why. Allocates nothing on the device.
#include "command.hpp"
#include "json_file.hpp"
#include "opened_plugin.hpp"
#include "plan_case.hpp"
#include "plan_report.hpp"
#include "report.hpp"
#include "standard_streams.hpp"

#include <nlohmann/json.hpp>

#include <memory>
#include <string>

namespace kvspan::host {

namespace {

// Far above any real geometry, and low enough for every count of slots to fit 32 bits.
constexpr std::uint32_t kLayersMax = 4096;
constexpr std::uint32_t kSequencesMax = 4096;
constexpr std::uint32_t kSizeMax = 1U << 14;  // heads, and elements of one
constexpr std::uint64_t kContextTokensMax = 1ULL << 40;

Result<void> report_plan(const PlanOptions& options,
                         const SessionOptions& session,
                         const Backend& backend) {
  const auto report = make_report(options, session, backend);
  if (!report) {
    return tl::unexpected(report.error());
  }
  if (!options.json.empty()) {
    auto out = JsonFile::open(options.json);
    if (!out) {
      return tl::unexpected(out.error());
    }
    if (auto wrote = out->write(plan_json(*report)); !wrote) {
      return wrote;
    }
  }
  return options.json == "-" ? Result<void>{} : write_stdout(plan_text(*report));
}

Result<void> run_plan(const PlanOptions& options, const GlobalOptions& global) {
  auto session = session_options(options);
  if (!session) {
    return tl::unexpected(std::move(session).error());
  }
  auto opened = OpenedPlugin::find(options.plugin, options.device, global.plugin_folders);
  if (!opened) {
    return tl::unexpected(std::move(opened).error());
  }
  auto geometry = aligned_for(opened->backend(), std::move(session->geometry));
  if (!geometry) {
    return tl::unexpected(std::move(geometry).error());
  }
  session->geometry = std::move(*geometry);
  return report_plan(options, *session, opened->backend());
}

void add_link_options(CLI::App& command, PlanOptions& o) {
  constexpr std::uint64_t kNanosecondsMax = 60'000'000'000;
  command.add_option("--calibration", o.calibration, "File that `bench link` wrote");
  command.add_option("--link", o.link, "Rate of the link in bytes a second: 49.2GB");
  command.add_option("--attend",
                     o.attend,
                     "Bytes of K and V attended a second where they lie; without it in no time");
  command.add_option("--copy-ns", o.copy_ns, "Of a copy before its first byte")
      ->check(CLI::Range(std::uint64_t{0}, kNanosecondsMax));
  command.add_option("--gap-ns", o.gap_ns, "The engine's other work between two layers")
      ->check(CLI::Range(std::uint64_t{0}, kNanosecondsMax));
  command.add_option("--jitter-ns", o.jitter_ns, "By which a group of pages may be late")
      ->check(CLI::Range(std::uint64_t{0}, kNanosecondsMax));
  command.add_option("--wave-ns", o.wave_ns, "Of attention of a fetched group, beyond its bytes")
      ->check(CLI::Range(std::uint64_t{0}, kNanosecondsMax));
  command
      .add_option("--row-ns",
                  o.row_ns,
                  "The engine's other work for a prefill row, all layers; with it or --attend-rows "
                  "the chunk is the fastest up to --prefill-rows; without --wave-ns the narrowest "
                  "that covers the stream")
      ->check(CLI::Range(std::uint64_t{0}, kNanosecondsMax));
  command.add_option(
      "--attend-rows",
      o.attend_rows,
      "Bytes of K and V attended a second, times prefill rows; without it in no time");
  command.add_option("--rule", o.rule, "Who places pages: automatic, or overlap, for comparison")
      ->capture_default_str()
      ->check(CLI::IsMember({"automatic", "overlap"}));
}

void add_machine_options(CLI::App& command, PlanOptions& o) {
  command.add_option(
      "--free", o.free, "Free device memory, for --arena auto; else the device says");
  command.add_option("--reserve", o.reserve, "Of the free memory left alone by --arena auto")
      ->capture_default_str();
  command.add_option("--device-memory", o.device_memory, "Of the card, for the headroom");
  command.add_option("--used", o.used, "What others use of the device's memory")
      ->capture_default_str();
  command.add_option("--host-memory", o.host_memory, "Of the host; a larger history is refused");
  command.add_option("--pinnable", o.pinnable, "Host memory that may be pinned; more is refused");
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
  CLI::Option* const layers = command->add_option("--layers", o.layers, "Layers with KV")
                                  ->check(CLI::Range(1U, kLayersMax));
  command
      ->add_option("--layer",
                   o.layer_specs,
                   "Layers that differ, in order, instead of --layers: 52:window=1024,k=f16. Keys: "
                   "k, v, q-heads, kv-heads, head-size, head-size-v, window, latent; what is not "
                   "said is as the options without a layer say")
      ->allow_extra_args(false)
      ->excludes(layers)
      ->excludes("--model");
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
  command->add_flag("--turns",
                    o.phases_take_turns,
                    "Prefill and decode have the arena one after the other; else side by side");
  command->add_option("--k-type", o.k_type, "Type of K")->capture_default_str();
  command->add_option("--v-type", o.v_type, "Type of V")->capture_default_str();
  command->add_option("--arena",
                      o.arena,
                      "Device memory: bytes, 6.3MB, 6MiB, 25% of the history, or auto: what is "
                      "free less --reserve; without it the minimum is planned");
  add_link_options(*command, o);
  add_machine_options(*command, o);
  command->add_option("--json", o.json, "Write the plan as JSON to this file, - for stdout");
  return [&global, options] { return status_of(run_plan(*options, global)); };
}

}  // namespace kvspan::host
