// SPDX-License-Identifier: Apache-2.0
// `kvspan generate`: real text from a real model whose KV need not fit the arena; --verify proves
// that it made no difference. Options to request, run, compare, sum up. The run itself:
// generation.cpp.
#include "kvspan/core/layout/kv_type.hpp"

#include "amount.hpp"
#include "calibration.hpp"
#include "command.hpp"
#include "config.hpp"
#include "exit_code.hpp"
#include "generation.hpp"
#include "generation_report.hpp"
#include "interrupt.hpp"
#include "json_file.hpp"
#include "model/gguf.hpp"
#include "model/tokenizer.hpp"
#include "opened_plugin.hpp"
#include "report.hpp"
#include "standard_streams.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace kvspan::host {

namespace {

constexpr std::uint32_t kThreadsMax = model::ThreadTeam::kMaxMembers;

struct GenerateOptions {
  std::string plugin = "cpu";
  std::uint32_t device = 0;
  std::string model;
  std::string prompt_file;
  std::uint32_t tokens = 64;
  std::string arena = "100%";
  std::string k_type = "f16";
  std::string v_type = "f16";
  std::uint32_t page_tokens = 256;
  std::uint32_t prefill_rows = 1024;
  std::uint32_t threads = 0;
  bool verify = false;
  std::string calibration;
  std::string json;
};

// A file, or a pipe. Errors: not_found, io (a directory), bad_file (empty), too_large.
Result<std::string> read_text(const std::string& path) {
  constexpr std::size_t kPromptBytesMax = 256U << 20;  // no model's context is near it
  constexpr std::size_t kBlockBytes = 64U << 10;
  const auto refuse = [&path](Errc code, std::string_view why) {
    return tl::unexpected(
        error_of(code, fmt::format("the prompt file {} {}", path, why), "prompt"));
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             std::fclose);
  std::string text;
  if (file != nullptr) {
    std::size_t got = 0;
    do {
      const std::size_t before = text.size();
      text.resize(before + kBlockBytes);
      got = std::fread(text.data() + before, 1, kBlockBytes, file.get());
      text.resize(before + got);
    } while (got != 0 && text.size() <= kPromptBytesMax);
  }
  if (file == nullptr || std::ferror(file.get()) != 0) {
    const int reason = errno;
    return refuse(reason == ENOENT ? Errc::not_found : Errc::io,
                  fmt::format("cannot be read: {}; give a file of text", std::strerror(reason)));
  }
  if (text.empty()) {
    return refuse(Errc::bad_file, "is empty; give a file of at least one letter");
  }
  if (text.size() > kPromptBytesMax) {
    return refuse(Errc::too_large, "is longer than 256 MiB; give a shorter one");
  }
  return text;
}

// The model, its tokenizer, the prompt's ids: everything that is input.
struct Input {
  model::Model model;
  model::Tokenizer tokenizer;
  std::vector<std::uint32_t> prompt;
};

Result<Input> read_input(const GenerateOptions& options) {
  const auto file = model::GgufFile::open(options.model);
  if (!file) {
    return tl::unexpected(file.error());
  }
  auto loaded = model::Model::load(*file);
  if (!loaded) {
    return tl::unexpected(as_bad_file(std::move(loaded).error()));
  }
  auto tokenizer = model::Tokenizer::load(*file);
  if (!tokenizer) {
    return tl::unexpected(as_bad_file(std::move(tokenizer).error()));
  }
  const auto text = read_text(options.prompt_file);
  if (!text) {
    return tl::unexpected(text.error());
  }
  auto prompt = tokenizer->encode(*text);
  if (!prompt) {
    return tl::unexpected(std::move(prompt).error());
  }
  const std::uint64_t needed = prompt->size() + options.tokens;
  const std::uint64_t context = loaded->geometry().context_tokens;
  if (needed > context) {
    return tl::unexpected(error_of(
        Errc::too_large,
        fmt::format(
            "the prompt's {} tokens and {} to generate are {} more than the model's context "
            "of {}; shorten the prompt or ask for fewer tokens",
            prompt->size(),
            options.tokens,
            needed - context,
            context),
        "context"));
  }
  return Input{std::move(*loaded), std::move(*tokenizer), std::move(*prompt)};
}

Result<GenerationRequest> request_of(const GenerateOptions& options, const Input& input) {
  const auto k_type = kv_type_named(options.k_type);
  const auto v_type = kv_type_named(options.v_type);
  if (!k_type || !v_type) {
    return tl::unexpected(k_type ? v_type.error() : k_type.error());
  }
  const model::ModelGeometry& sizes = input.model.geometry();
  GenerationRequest request;
  request.model = &input.model;
  request.prompt = input.prompt;
  request.tokens = options.tokens;
  if (input.tokenizer.eos()) {
    request.stop_ids.push_back(*input.tokenizer.eos());
  }
  SessionOptions& session = request.session;
  const LayerGeometry layer{
      k_type->id, v_type->id, sizes.head_size_k, sizes.head_size_v, sizes.kv_heads, sizes.q_heads};
  session.geometry.layers.assign(sizes.layers, layer);
  session.geometry.page_tokens = options.page_tokens;
  session.context_tokens = input.prompt.size() + options.tokens;
  session.prefill_rows_max = options.prefill_rows;
  const auto history = live_bytes(session.geometry, session.context_tokens);
  if (!history) {
    return tl::unexpected(history.error());
  }
  if (options.arena == "100%") {
    session.arena_bytes = kWholeHistoryArena;
    return request;
  }
  const auto arena = parse_bytes(options.arena, *history);
  if (!arena) {
    return tl::unexpected(arena.error());
  }
  session.arena_bytes = std::max<std::uint64_t>(*arena, 1);
  return request;
}

// One run with its progress line.
Result<GenerationResult> watched_run(const OpenedPlugin& opened,
                                     model::ThreadTeam& team,
                                     const GenerationRequest& request) {
  ProgressLine line;
  return generate(
      opened.backend(),
      team,
      request,
      [&](const Progress& progress) { line.show(progress); },
      [] { return Interrupt::requested(); });
}

// The same with everything resident, in the same chunks.
Result<Verification> verify(const OpenedPlugin& opened,
                            model::ThreadTeam& team,
                            GenerationRequest request,
                            const GenerationResult& streamed) {
  request.session.arena_bytes = kWholeHistoryArena;
  request.session.prefill_rows_fixed = streamed.plan.prefill_rows;
  auto resident = watched_run(opened, team, request);
  if (!resident) {
    return tl::unexpected(std::move(resident).error());
  }
  return compare(streamed, *resident);
}

int status_of(const GenerationReport& report) {
  if (report.run.interrupted || (report.verified && report.verified->interrupted)) {
    return kExitInterrupted;
  }
  return report.verified && !report.verified->equal ? kExitFailed : kExitOk;
}

// Runs and, if asked, verifies: everything that needs the plugin.
Result<GenerationReport> report_of(const GenerateOptions& options,
                                   const std::string& plugin_file,
                                   const Input& input,
                                   GenerationRequest request) {
  const std::uint32_t threads =
      options.threads != 0 ? options.threads
                           : std::clamp(std::thread::hardware_concurrency(), 1U, kThreadsMax);
  auto opened =
      OpenedPlugin::open({plugin_file, options.device, {{"threads", std::to_string(threads)}}});
  if (!opened) {
    return tl::unexpected(std::move(opened).error());
  }
  auto calibration = load_if_named(options.calibration, opened->backend());
  if (!calibration) {
    return tl::unexpected(std::move(calibration).error());
  }
  if (*calibration) {
    apply_calibration(**calibration, request.session.stream);
  }
  auto geometry = aligned_for(opened->backend(), std::move(request.session.geometry));
  if (!geometry) {
    return tl::unexpected(std::move(geometry).error());
  }
  request.session.geometry = std::move(*geometry);
  auto team = model::ThreadTeam::create(threads);
  if (!team) {
    return tl::unexpected(std::move(team).error());
  }
  GenerationReport report;
  report.plugin = opened->plugin().note().name;
  report.arena_bytes = request.session.arena_bytes;
  report.calibration = *calibration;
  auto run = watched_run(*opened, *team, request);
  if (!run) {
    return tl::unexpected(std::move(run).error());
  }
  report.run = std::move(*run);
  if (auto text = input.tokenizer.decode(report.run.ids)) {
    report.text = *text;
  }
  if (options.verify && !report.run.interrupted) {
    auto verified = verify(*opened, *team, request, report.run);
    if (!verified) {
      return tl::unexpected(std::move(verified).error());
    }
    report.verified = *verified;
  }
  return report;
}

Result<int> run_generate(const GenerateOptions& options, const GlobalOptions& global) {
  const Interrupt interrupt;  // before the first file that would be left behind
  auto json_file = JsonFile::open_if_named(options.json);
  if (!json_file) {
    return tl::unexpected(std::move(json_file).error());
  }
  std::optional<JsonFile>& json = *json_file;
  const auto plugin_file = find_plugin(options.plugin, plugin_folders(global.plugin_folders));
  if (!plugin_file) {
    return tl::unexpected(plugin_file.error());
  }
  const auto input = read_input(options);
  if (!input) {
    return tl::unexpected(input.error());
  }
  const auto request = request_of(options, *input);
  if (!request) {
    return tl::unexpected(request.error());
  }
  const auto report = report_of(options, *plugin_file, *input, *request);
  if (!report) {
    return tl::unexpected(report.error());
  }
  Result<void> told;
  if (!json || !json->is_stdout()) {
    told = write_stdout(report->text.ends_with('\n') ? report->text : report->text + "\n");
  }
  tell(generation_summary(*report));
  if (json) {
    if (auto wrote = json->write(generation_json(*report)); !wrote) {
      return tl::unexpected(std::move(wrote).error());
    }
  }
  if (!told) {
    return tl::unexpected(std::move(told).error());
  }
  return status_of(*report);
}

}  // namespace

RunCommand add_generate(CLI::App& app, const GlobalOptions& global) {
  CLI::App* const command = app.add_subcommand(
      "generate", "Greedy text from a GGUF model, its KV streamed through a bounded arena");
  auto options = std::make_shared<GenerateOptions>();
  GenerateOptions& o = *options;
  command->add_option("--plugin", o.plugin, "Name or file of the plugin")->capture_default_str();
  command->add_option("--device", o.device, "Number of its device")->capture_default_str();
  command->add_option("--model", o.model, "GGUF file")->required();
  command->add_option("--prompt-file", o.prompt_file, "File with the prompt")->required();
  command->add_option("--tokens", o.tokens, "Tokens to generate")
      ->capture_default_str()
      ->check(CLI::Range(1U, 1U << 20));
  command
      ->add_option("--arena",
                   o.arena,
                   "Device memory for K/V, scratch included: bytes, 6.3MB, 6MiB, or 25% of the "
                   "history's bytes; 100% keeps all of it resident")
      ->capture_default_str();
  command->add_option("--k-type", o.k_type, "Type of K")->capture_default_str();
  command->add_option("--v-type", o.v_type, "Type of V")->capture_default_str();
  command->add_option("--page-tokens", o.page_tokens, "Tokens a page")->capture_default_str();
  command->add_option("--prefill-rows", o.prefill_rows, "Widest prefill chunk")
      ->capture_default_str()
      ->check(CLI::Range(1U, 1U << 16));
  command->add_option("--threads", o.threads, "Threads; 0 = all")
      ->capture_default_str()
      ->check(CLI::Range(0U, kThreadsMax));
  command->add_flag("--verify",
                    o.verify,
                    "Run again with everything resident; ids and logits must be equal bit for bit");
  command->add_option("--calibration",
                      o.calibration,
                      "File that `bench link` wrote: pages are placed by its numbers");
  command->add_option("--json", o.json, "Write the summary as JSON to this file, - for stdout");
  return [&global, options] {
    const auto status = run_generate(*options, global);
    if (!status) {
      print_error(status.error());
      return exit_code(status.error());
    }
    return *status;
  };
}

}  // namespace kvspan::host
