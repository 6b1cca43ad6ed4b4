// SPDX-License-Identifier: Apache-2.0
// `kvspan bench link`: what a copy costs on this machine's link, kept for `kvspan plan`.
#include "kvspan/bench/copy_samples.hpp"

#include "calibration.hpp"
#include "command.hpp"
#include "opened_plugin.hpp"
#include "report.hpp"
#include "standard_streams.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>

namespace kvspan::host {

namespace {

struct LinkOptions {
  std::string plugin = "cpu";
  std::uint32_t device = 0;
  std::string calibration;
};

Result<void> run_link(const LinkOptions& options, const GlobalOptions& global) {
  auto opened = OpenedPlugin::find(options.plugin, options.device, global.plugin_folders);
  if (!opened) {
    return tl::unexpected(std::move(opened).error());
  }
  const auto measured = bench::calibrate(opened->backend());
  if (!measured) {
    return tl::unexpected(measured.error());
  }
  if (!options.calibration.empty()) {
    const auto stored =
        store_calibration(options.calibration, *measured, opened->backend().info().name);
    if (!stored) {
      return stored;
    }
  }
  return write_stdout(
      fmt::format("device               {} ({})\n"
                  "rate                 {:.2f} GB/s\n"
                  "before the first byte {:.0f} ns a copy; {} bytes take as long\n"
                  "jitter               {:.0f} ns\n",
                  opened->backend().info().name,
                  device_id_text(measured->device_id),
                  measured->upload.bytes_s * 1e-9,
                  measured->upload.copy_ns,
                  break_even_bytes(measured->upload),
                  measured->jitter_ns));
}

}  // namespace

RunCommand add_bench_link(CLI::App& bench, const GlobalOptions& global) {
  CLI::App* const command = bench.add_subcommand(
      "link", "Cost of a copy to the device: time before its first byte, rate, jitter");
  auto options = std::make_shared<LinkOptions>();
  LinkOptions& o = *options;
  command->add_option("--plugin,--backend", o.plugin, "Name or file of the plugin")
      ->capture_default_str();
  command->add_option("--device", o.device, "Number of its device")->capture_default_str();
  command->add_option(
      "--calibration", o.calibration, "Keep what was measured in this file, under the device's id");
  return [&global, options] { return status_of(run_link(*options, global)); };
}

}  // namespace kvspan::host
