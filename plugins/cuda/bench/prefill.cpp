// SPDX-License-Identifier: Apache-2.0
// P16: wide rows over a long history of quantised pages, read in place, against torch's flash
// attention on f16 (peers.hpp).
#include "layer_call.hpp"
#include "peers.hpp"
#include "rows.hpp"

#include <fmt/format.h>

namespace kvspan::cuda_bench {

namespace {

constexpr std::uint64_t k = 1024;

std::vector<Row> prefill(const Bench& bench, const std::string& geometry, std::uint64_t tokens) {
  LayerCase asked;
  asked.tokens = tokens;
  asked.row_class = KVSPAN_ROWS_PREFILL;
  const LayerHistory history(bench.rig, bench.pages.of(geometry), bench.plug, asked);
  const LayerGeometry& layer = bench.pages.of(geometry).layer();
  std::vector<Row> rows;
  for (const std::uint32_t count : {128U, 512U, 2048U}) {
    LayerCall call(bench.rig, history, bench.plug, count);
    Row row;
    row.id = "P16";
    row.what = fmt::format("{} {} rows over {}K", geometry, count, tokens / k);
    row.seconds = spread_of(call.time(7));
    row.bytes = history.bytes();
    row.check = call.verify();
    row.value = prefill_peer_us(geometry, tokens, count) * 1e-6 / row.seconds.median;
    row.unit = "x torch";
    row.floor = count == 2048 ? .60 : count == 512 ? .50 : .35;
    row.goal = count == 128 ? .75 : 1.2;
    const double flops =
        4.0 * count * static_cast<double>(tokens - count / 2) * layer.q_heads * layer.head_size_k;
    row.details = {{"tflop_s", flops / row.seconds.median * 1e-12}};
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

void add_prefill(std::vector<Task>& tasks) {
  for (const std::uint64_t tokens : {32 * k, 128 * k}) {
    tasks.push_back({"P16",
                     fmt::format("A wide rows over {}K", tokens / k),
                     [=](const Bench& bench) { return prefill(bench, "A", tokens); }});
  }
}

}  // namespace kvspan::cuda_bench
