// SPDX-License-Identifier: Apache-2.0
// `kvspan bench prefill`: what a prompt's chunks cost behind a history on the host. Every timed
// chunk counts its bytes both ways and has the outputs of the resident run, bit for bit, or the
// command fails.
#include "bench_target.hpp"
#include "prefill_bench.hpp"
#include "report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <vector>

namespace kvspan::host {

namespace {

struct PrefillBenchOptions {
  BenchTarget target;
  std::vector<std::uint32_t> chunk_rows = {512};
  std::uint32_t turns = 3;
  std::uint32_t timed = 3;
};

Result<PrefillBenchRequest> prefill_request_of(const PrefillBenchOptions& options) {
  PrefillBenchRequest request;
  const auto layer = layer_of(options.target);
  auto contexts = contexts_of(options.target);
  if (!layer || !contexts) {
    return tl::unexpected(layer ? contexts.error() : layer.error());
  }
  request.layer = *layer;
  request.contexts = std::move(*contexts);
  request.layers = options.target.layers;
  request.query_type = query_type_of(options.target);
  request.page_tokens = options.target.page_tokens;
  request.chunk_rows = options.chunk_rows;
  request.host_percent = options.target.host_percent;
  request.group_pages = options.target.group_pages;
  request.turns = {options.turns, options.timed};
  return request;
}

Result<void> run_prefill(const PrefillBenchOptions& options, const GlobalOptions& global) {
  auto request = prefill_request_of(options);
  if (!request) {
    return tl::unexpected(request.error());
  }
  auto opened = open_measured(options.target, global);
  if (!opened) {
    return tl::unexpected(std::move(opened).error());
  }
  request->calibration = opened->calibration;
  BenchTable table(opened->json);
  const auto result = bench_prefill(
      opened->backend(),
      *request,
      [&](const PrefillBenchResult& link) {
        table.say(fmt::format("{}; link {:.3f} GB/s; {}",
                              opened->backend().info().name,
                              link.link_bytes_s * 1e-9,
                              prefill_bench_heading(link)));
      },
      [&](const PrefillBenchRow& row) { table.say(prefill_bench_line(row)); });
  if (!result || !table.wrote()) {
    return tl::unexpected(result ? table.wrote().error() : result.error());
  }
  return write_results(*opened, options.target, prefill_bench_json(*request, *result));
}

}  // namespace

RunCommand add_bench_prefill(CLI::App& bench, const GlobalOptions& global) {
  CLI::App* const command = bench.add_subcommand(
      "prefill",
      "Chunks of a prompt behind a random history of which a share is on the host, and both "
      "directions of the link at once; bytes are counted and outputs compared with the resident "
      "run, or the command fails");
  auto options = std::make_shared<PrefillBenchOptions>();
  PrefillBenchOptions& o = *options;
  add_target(*command, o.target);
  command->add_option("--rows", o.chunk_rows, "Rows a chunk: 256,2048")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1U, 65536U));
  command->add_option("--turns", o.turns, "Turns of the resident and the streamed session")
      ->capture_default_str()
      ->check(CLI::Range(1U, 1000U));
  command->add_option("--timed", o.timed, "Timed chunks a turn, behind one that is not")
      ->capture_default_str()
      ->check(CLI::Range(1U, 1000U));
  return [&global, options] { return status_of(run_prefill(*options, global)); };
}

}  // namespace kvspan::host
