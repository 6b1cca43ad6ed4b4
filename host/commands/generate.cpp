// SPDX-License-Identifier: Apache-2.0
// `kvspan generate`: real text from a real model whose KV need not fit the arena; --verify proves that it made no
// difference. Options to request, run, compare, sum up. The run itself: generation.cpp.
#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

#include "amount.hpp"
#include "command.hpp"
#include "config.hpp"
#include "exit_code.hpp"
#include "generation.hpp"
#include "generation_report.hpp"
#include "interrupt.hpp"
#include "kvspan/core/layout/kv_type.hpp"
#include "model/gguf.hpp"
#include "model/tokenizer.hpp"
#include "opened_plugin.hpp"
#include "report.hpp"

namespace kvspan::host {

namespace {

struct GenerateOptions {
  std::string plugin = "cpu";
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
  std::string json;
};

Result<std::string> read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) {
    return tl::unexpected(Error{Errc::not_found,
                                path + " cannot be read, or is empty; give a file with a prompt", 0, 0,
                                0, "prompt"});
  }
  return text.str();
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
    return tl::unexpected(std::move(loaded).error());
  }
  auto tokenizer = model::Tokenizer::load(*file);
  if (!tokenizer) {
    return tl::unexpected(std::move(tokenizer).error());
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
    return tl::unexpected(Error{
        Errc::too_large,
        fmt::format("the prompt's {} tokens and {} to generate are {} more than the model's context "
                    "of {}; shorten the prompt or ask for fewer tokens",
                    prompt->size(), options.tokens, needed - context, context),
        0, 0, 0, "context"});
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
  const LayerGeometry layer{k_type->id,        v_type->id,     sizes.head_size_k,
                            sizes.head_size_v, sizes.kv_heads, sizes.q_heads};
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

Result<int> run_generate(const GenerateOptions& options, const GlobalOptions& global) {
  std::optional<JsonFile> json;
  if (!options.json.empty()) {
    auto file = JsonFile::open(options.json);
    if (!file) {
      return tl::unexpected(file.error());
    }
    json.emplace(std::move(*file));
  }
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
  const std::uint32_t threads =
      options.threads != 0 ? options.threads : std::max(1U, std::thread::hardware_concurrency());
  auto opened = OpenedPlugin::open({*plugin_file, 0, {{"threads", std::to_string(threads)}}});
  if (!opened) {
    return tl::unexpected(std::move(opened).error());
  }
  auto team = model::ThreadTeam::create(threads);
  if (!team) {
    return tl::unexpected(std::move(team).error());
  }
  const Interrupt interrupt;
  GenerationReport report;
  report.plugin = opened->plugin().note().name;
  report.arena_bytes = request->session.arena_bytes;
  {
    ProgressLine line;
    auto run = generate(
        opened->backend(), *team, *request, [&](const Progress& p) { line.show(p); },
        [] { return Interrupt::requested(); });
    if (!run) {
      return tl::unexpected(std::move(run).error());
    }
    report.run = std::move(*run);
  }
  if (auto text = input->tokenizer.decode(report.run.ids)) {
    report.text = *text;
  }
  if (options.verify && !report.run.interrupted) {
    // The same chunks: attention's bits do not depend on them, but a matrix product's may.
    GenerationRequest resident = *request;
    resident.session.arena_bytes = kWholeHistoryArena;
    resident.session.prefill_rows_fixed = report.run.plan.prefill_rows;
    ProgressLine line;
    auto run = generate(
        opened->backend(), *team, resident, [&](const Progress& p) { line.show(p); },
        [] { return Interrupt::requested(); });
    if (!run) {
      return tl::unexpected(std::move(run).error());
    }
    report.verified = compare(report.run, *run);
  }
  print_generation(report, json && json->is_stdout() ? TextOutput::none : TextOutput::text);
  if (json) {
    if (auto wrote = json->write(generation_json(report)); !wrote) {
      return tl::unexpected(std::move(wrote).error());
    }
  }
  if (report.run.interrupted || (report.verified && report.verified->interrupted)) {
    return kExitInterrupted;
  }
  return report.verified && !report.verified->equal ? kExitFailed : kExitOk;
}

}  // namespace

RunCommand add_generate(CLI::App& app, const GlobalOptions& global) {
  CLI::App* const command = app.add_subcommand(
      "generate", "Greedy text from a GGUF model, its KV streamed through a bounded arena");
  auto options = std::make_shared<GenerateOptions>();
  GenerateOptions& o = *options;
  command->add_option("--plugin", o.plugin, "Name or file of the plugin")->capture_default_str();
  command->add_option("--model", o.model, "GGUF file")->required();
  command->add_option("--prompt-file", o.prompt_file, "File with the prompt")->required();
  command->add_option("--tokens", o.tokens, "Tokens to generate")
      ->capture_default_str()
      ->check(CLI::Range(1U, 1U << 20));
  command->add_option("--arena", o.arena,
                      "Device memory for K/V, scratch included: bytes, 6.3MB, 6MiB, or 25% of the "
                      "history's bytes; 100% keeps all of it resident")
      ->capture_default_str();
  command->add_option("--k-type", o.k_type, "Type of K")->capture_default_str();
  command->add_option("--v-type", o.v_type, "Type of V")->capture_default_str();
  command->add_option("--page-tokens", o.page_tokens, "Tokens a page")->capture_default_str();
  command->add_option("--prefill-rows", o.prefill_rows, "Widest prefill chunk")
      ->capture_default_str()
      ->check(CLI::Range(1U, 1U << 16));
  command->add_option("--threads", o.threads, "Threads; 0 = all")->capture_default_str();
  command->add_flag("--verify", o.verify,
                    "Run again with everything resident; ids and logits must be equal bit for bit");
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
