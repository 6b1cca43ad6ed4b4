// SPDX-License-Identifier: Apache-2.0
// `kvspan bench link`: what a copy costs on this machine's link, and what attention does with pages
// that are there; kept for the planner.
#include "kvspan/bench/attend_rate.hpp"
#include "kvspan/bench/copy_samples.hpp"

#include "bench_target.hpp"
#include "calibration.hpp"
#include "command.hpp"
#include "report.hpp"
#include "standard_streams.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>

namespace kvspan::host {

namespace {

Result<DeviceCalibration> measure(const BenchTarget& target, const Backend& backend) {
  const auto layer = layer_of(target);
  const auto pages = layer ? bench::RandomPages::create(*layer, target.page_tokens, 256)
                           : tl::unexpected(layer.error());
  if (!pages) {
    return tl::unexpected(pages.error());
  }
  auto measured = bench::calibrate(backend);
  if (!measured) {
    return measured;
  }
  const auto attention = bench::attend_rate(backend, *pages);
  if (!attention) {
    return tl::unexpected(attention.error());
  }
  measured->attend_bytes_s = attention->bytes_s;
  measured->wave_ns = attention->wave_ns;
  return measured;
}

Result<void> run_link(const BenchTarget& target, const GlobalOptions& global) {
  if (!target.calibration.empty()) {
    if (auto checked = check_calibration_file(target.calibration); !checked) {
      return checked;
    }
  }
  auto opened = open_target(target, global);
  if (!opened) {
    return tl::unexpected(std::move(opened).error());
  }
  const auto measured = measure(target, opened->backend());
  if (!measured) {
    return tl::unexpected(measured.error());
  }
  if (!target.calibration.empty()) {
    const auto stored =
        store_calibration(target.calibration, *measured, opened->backend().info().name);
    if (!stored) {
      return stored;
    }
  }
  return write_stdout(
      fmt::format("device               {} ({})\n"
                  "rate                 {:.2f} GB/s\n"
                  "before the first byte {:.0f} ns a copy; {} bytes take as long\n"
                  "jitter               {:.0f} ns\n"
                  "attention            {:.2f} GB/s of resident pages by one row\n"
                  "a wave               {:.0f} ns beyond its bytes\n",
                  opened->backend().info().name,
                  device_id_text(measured->device_id),
                  measured->upload.bytes_s * 1e-9,
                  measured->upload.copy_ns,
                  break_even_bytes(measured->upload),
                  measured->jitter_ns,
                  measured->attend_bytes_s * 1e-9,
                  measured->wave_ns));
}

}  // namespace

RunCommand add_bench_link(CLI::App& bench, const GlobalOptions& global) {
  CLI::App* const command = bench.add_subcommand(
      "link",
      "Cost of a copy to the device (time before its first byte, rate, jitter) and of attention of "
      "what is there (rate, time of a wave)");
  auto target = std::make_shared<BenchTarget>();
  BenchTarget& t = *target;
  add_plugin_options(*command, t);
  add_layer_options(*command, t);
  command->add_option(
      "--calibration", t.calibration, "Keep what was measured in this file, under the device's id");
  return [&global, target] { return status_of(run_link(*target, global)); };
}

}  // namespace kvspan::host
