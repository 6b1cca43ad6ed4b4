// SPDX-License-Identifier: Apache-2.0
// `kvspan bench decode`: what streaming costs on this machine, without a model. Every timed run
// counts its bytes and has the outputs of the resident run, bit for bit, or the command fails.
#include "bench_target.hpp"
#include "decode_bench.hpp"
#include "report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <vector>

namespace kvspan::host {

namespace {

struct DecodeBenchOptions {
  BenchTarget target;
  std::vector<std::uint32_t> widths = {1};
  std::uint64_t gap_ns = 0;
  std::uint32_t steps = 9;
  std::uint32_t arenas = 0;
  bool wait_each_layer = false;
  bool submission_thread = false;
};

Result<DecodeBenchRequest> decode_request_of(const DecodeBenchOptions& options) {
  DecodeBenchRequest request;
  const auto layer = layer_of(options.target);
  auto contexts = contexts_of(options.target);
  if (!layer || !contexts) {
    return tl::unexpected(layer ? contexts.error() : layer.error());
  }
  if (options.arenas != 0 && (options.widths.size() != 1 || contexts->size() != 1)) {
    return tl::unexpected(error_of(Errc::invalid_argument,
                                   "--arenas takes one context and one number of rows; give one "
                                   "of each",
                                   "bench"));
  }
  request.layer = *layer;
  request.contexts = std::move(*contexts);
  request.layers = options.target.layers;
  request.query_type = query_type_of(options.target);
  request.page_tokens = options.target.page_tokens;
  request.widths = options.widths;
  request.host_percent = options.target.host_percent;
  request.arenas = options.arenas;
  request.stream.group_pages = options.target.group_pages;
  request.stream.gap_ns = options.gap_ns;
  request.timed_steps = options.steps;
  request.wait_each_layer = options.wait_each_layer;
  request.submission_thread = options.submission_thread;
  return request;
}

Result<void> run_decode(const DecodeBenchOptions& options, const GlobalOptions& global) {
  auto request = decode_request_of(options);
  if (!request) {
    return tl::unexpected(request.error());
  }
  auto opened = open_measured(options.target, global);
  if (!opened) {
    return tl::unexpected(std::move(opened).error());
  }
  request->calibration = opened->calibration;
  BenchTable table(opened->json);
  bool first = true;
  const auto say = [&](double link_bytes_s, const std::string& heading, const std::string& line) {
    if (first) {
      table.say(fmt::format(
          "{}; link {:.2f} GB/s\n{}", opened->backend().info().name, link_bytes_s * 1e-9, heading));
      first = false;
    }
    table.say(line);
  };
  const auto result = bench_decode(
      opened->backend(),
      *request,
      {[&](const DecodeBenchRow& row, double link_bytes_s) {
         say(link_bytes_s, decode_bench_heading(), decode_bench_line(row, link_bytes_s));
       },
       [&](const SweepPoint& point, double link_bytes_s) {
         say(link_bytes_s, sweep_heading(), sweep_line(point));
       }});
  if (!result || !table.wrote()) {
    return tl::unexpected(result ? table.wrote().error() : result.error());
  }
  return write_results(*opened, options.target, decode_bench_json(*request, *result));
}

}  // namespace

RunCommand add_bench_decode(CLI::App& bench, const GlobalOptions& global) {
  CLI::App* const command = bench.add_subcommand(
      "decode",
      "Steps over a random history of which a share is on the host; bytes are counted and outputs "
      "compared with the resident run, or the command fails");
  auto options = std::make_shared<DecodeBenchOptions>();
  DecodeBenchOptions& o = *options;
  add_target(*command, o.target);
  command->add_option("--rows", o.widths, "Rows a step: 1,4,8")
      ->delimiter(',')
      ->capture_default_str()
      ->check(CLI::Range(1U, 64U));
  command
      ->add_option("--gap-ns", o.gap_ns, "The engine's other work between two layers, nanoseconds")
      ->capture_default_str()
      ->check(CLI::Range(std::uint64_t{0}, std::uint64_t{1'000'000'000}));
  command->add_flag(
      "--wait-each-layer", o.wait_each_layer, "The engine waits for a layer before the next");
  command->add_flag("--submission-thread",
                    o.submission_thread,
                    "A thread of the session's own makes its calls, not the engine's");
  command->add_option("--steps", o.steps, "Timed steps a row of the table")
      ->capture_default_str()
      ->check(CLI::Range(1U, 10000U));
  command
      ->add_option("--arenas",
                   o.arenas,
                   "Instead of shares: so many arenas, from the smallest to one that holds "
                   "everything, each placed as the policy would")
      ->check(CLI::Range(2U, 1000U))
      ->excludes("--host-share");
  return [&global, options] { return status_of(run_decode(*options, global)); };
}

}  // namespace kvspan::host
