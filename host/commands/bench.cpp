// SPDX-License-Identifier: Apache-2.0
// `kvspan bench`: what this machine does, without a model. One file a command under it.
#include "command.hpp"

namespace kvspan::host {

RunCommand add_bench(CLI::App& app, const GlobalOptions& global) {
  CLI::App* const bench = app.add_subcommand("bench", "What streaming costs here, without a model");
  bench->require_subcommand(1);
  const RunCommand run_decode = add_bench_decode(*bench, global);
  const RunCommand run_prefill = add_bench_prefill(*bench, global);
  const RunCommand run_link = add_bench_link(*bench, global);
  return [bench, run_decode, run_prefill, run_link] {
    return bench->got_subcommand("link")      ? run_link()
           : bench->got_subcommand("prefill") ? run_prefill()
                                              : run_decode();
  };
}

}  // namespace kvspan::host
