// SPDX-License-Identifier: Apache-2.0
// P7..P11: resident decode against the size-matched read limit, and against the times of others.
#include "layer_call.hpp"
#include "peers.hpp"
#include "rows.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvspan::cuda_bench {

namespace {

struct Wanted {
  std::uint64_t tokens;
  double floor;
  double goal;
};

std::string context_name(std::uint64_t tokens) {
  return tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024) : fmt::format("{}", tokens);
}

Row resident(const Bench& bench, const LayerCase& asked, const Wanted& wanted) {
  LayerCall call(bench.rig, bench.pages.of(asked.geometry), asked);
  Row row;
  row.seconds = spread_of(call.time(7));
  row.bytes = call.bytes();
  row.check = call.verify();
  row.value = bench.limits.read_seconds(row.bytes) / row.seconds.median;
  row.unit = "of T_read";
  row.floor = wanted.floor;
  row.goal = wanted.goal;
  row.details = {{"gbytes_s", static_cast<double>(row.bytes) / row.seconds.median * 1e-9}};
  const Peer peer = peer_of(asked.geometry, asked.tokens, asked.rows);
  const auto add = [&](const char* name, double peer_us) {
    if (peer_us != 0.0) {
      row.details.emplace_back(name, peer_us * 1e-6 / row.seconds.median);
    }
  };
  add("x_ggml_q8_0_q4_0", peer.ggml_quantised_us);
  add("x_ggml_f16", peer.ggml_f16_us);
  add("x_torch_f16", peer.torch_f16_us);
  return row;
}

void add(std::vector<Task>& tasks,
         const char* id,
         const std::string& geometry,
         std::uint32_t width,
         std::initializer_list<Wanted> contexts) {
  for (const Wanted& wanted : contexts) {
    const LayerCase asked{geometry, wanted.tokens, width, KVSPAN_ROWS_DECODE};
    tasks.push_back(
        {id,
         fmt::format("{} q8_0/q4_0 w{} {}", geometry, width, context_name(wanted.tokens)),
         [asked, wanted](const Bench& bench) { return resident(bench, asked, wanted); }});
  }
}

}  // namespace

void add_resident(std::vector<Task>& tasks) {
  constexpr std::uint64_t k = 1024;
  add(tasks,
      "P7",
      "A",
      1,
      {{8 * k, .20, .35},
       {9'000, .16, .33},
       {32 * k, .37, .55},
       {40'000, .35, .55},
       {128 * k, .64, .78},
       {256 * k, .75, .86}});
  add(tasks,
      "P8",
      "A",
      4,
      {{8 * k, 0, 0}, {32 * k, .24, .40}, {128 * k, .37, .60}, {256 * k, .45, .70}});
  add(tasks,
      "P9",
      "A",
      8,
      {{8 * k, 0, 0}, {32 * k, .16, .30}, {128 * k, .25, .45}, {256 * k, .28, .50}});
}

}  // namespace kvspan::cuda_bench
