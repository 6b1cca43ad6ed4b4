// SPDX-License-Identifier: Apache-2.0
// P6..P11: decode of one layer, resident or read in place from the host, against the limits of the
// card, and against the times of others.
#include "layer_call.hpp"
#include "peers.hpp"
#include "rows.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvspan::cuda_bench {

namespace {

constexpr std::uint64_t k = 1024;

struct Bar {
  double floor = 0.0;
  double goal = 0.0;
};

// One context: what each width has to reach. A width without a bar is told.
struct Context {
  std::uint64_t tokens;
  Bar w1;
  Bar w4;
  Bar w8;
};

constexpr Context kContexts[] = {
    {8 * k, {.20, .35}, {}, {}},
    {9'000, {.16, .33}, {}, {}},
    {32 * k, {.37, .55}, {.24, .40}, {.16, .30}},
    {40'000, {.35, .55}, {}, {}},
    {128 * k, {.64, .78}, {.37, .60}, {.25, .45}},
    {256 * k, {.75, .86}, {.45, .70}, {.28, .50}},
};

std::string context_name(std::uint64_t tokens) {
  return tokens % k == 0 ? fmt::format("{}K", tokens / k) : fmt::format("{}", tokens);
}

// P10: against ggml on the same types.
Bar ggml_bar(std::uint64_t tokens, std::uint32_t width) {
  if (width == 1) {
    switch (tokens) {
      case 8 * k:
        return {2, 3};
      case 32 * k:
        return {5, 7};
      case 128 * k:
        return {9, 12};
      case 256 * k:
        return {11, 14};
      default:
        return {};
    }
  }
  return tokens != 128 * k ? Bar{} : width == 4 ? Bar{4.3, 7} : width == 8 ? Bar{2.7, 5} : Bar{};
}

void add_peer_rows(const Row& measured,
                   const std::string& geometry,
                   std::uint64_t tokens,
                   std::uint32_t width,
                   std::vector<Row>& rows) {
  const Peer peer = peer_of(geometry, tokens, width);
  const auto add = [&](const char* id, const char* unit, double peer_us, const Bar& bar) {
    if (peer_us == 0.0) {
      return;
    }
    Row row = measured;
    row.id = id;
    row.value = peer_us * 1e-6 / measured.seconds.median;
    row.unit = unit;
    row.floor = bar.floor;
    row.goal = bar.goal;
    row.details = {{"peer_us", peer_us}};
    rows.push_back(row);
  };
  const bool judged = geometry == "A";
  add("P10", "x ggml", peer.ggml_quantised_us, judged ? ggml_bar(tokens, width) : Bar{});
  const double f16 = peer.ggml_f16_us == 0.0 ? 0.0 : std::min(peer.ggml_f16_us, peer.torch_f16_us);
  const Bar wide{width <= 4 ? 1.0 : 0.8, 1.3};
  add("P11", "x f16", f16, judged && tokens >= 32 * k ? wide : Bar{});
}

std::vector<Row> resident(const Bench& bench,
                          const std::string& geometry,
                          const Context& context,
                          const std::vector<std::uint32_t>& widths) {
  LayerCase asked;
  asked.tokens = context.tokens;
  const LayerHistory history(bench.rig, bench.pages.of(geometry), bench.plug, asked);
  std::vector<Row> rows;
  for (const std::uint32_t width : widths) {
    LayerCall call(bench.rig, history, bench.plug, width);
    Row row;
    row.id = width == 1 ? "P7" : width == 4 ? "P8" : width == 8 ? "P9" : "P7";
    row.what = fmt::format("{} q8_0/q4_0 w{} {}", geometry, width, context_name(context.tokens));
    row.seconds = spread_of(call.time(7));
    row.bytes = history.bytes();
    row.check = call.verify();
    row.value = bench.limits.read_seconds(row.bytes) / row.seconds.median;
    row.unit = "of T_read";
    const Bar bar = width == 1   ? context.w1
                    : width == 4 ? context.w4
                    : width == 8 ? context.w8
                                 : Bar{};
    row.floor = bar.floor;
    row.goal = bar.goal;
    row.details = {{"gbytes_s", static_cast<double>(row.bytes) / row.seconds.median * 1e-9}};
    rows.push_back(row);
    add_peer_rows(row, geometry, context.tokens, width, rows);
  }
  return rows;
}

std::vector<Row> mapped(const Bench& bench, std::uint64_t tokens) {
  LayerCase asked;
  asked.tokens = tokens;
  asked.memory_kind = KVSPAN_MEMORY_HOST;
  const LayerHistory history(bench.rig, bench.pages.of("A"), bench.plug, asked);
  std::vector<Row> rows;
  for (const std::uint32_t width : {1U, 4U, 8U}) {
    LayerCall call(bench.rig, history, bench.plug, width);
    Row row;
    row.id = "P6";
    row.what = fmt::format("A host pages in place w{} {}K", width, tokens / k);
    row.seconds = spread_of(call.time(7));
    row.bytes = history.bytes();
    row.check = call.verify();
    row.value = static_cast<double>(row.bytes) / row.seconds.median / bench.limits.link_up;
    row.unit = "of L";
    row.floor = 0.86;
    row.goal = 0.92;
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

void add_layers(std::vector<Task>& tasks) {
  for (const Context& context : kContexts) {
    const bool odd = context.tokens % k != 0;
    const std::vector<std::uint32_t> widths =
        odd ? std::vector<std::uint32_t>{1} : std::vector<std::uint32_t>{1, 2, 3, 4, 6, 8};
    tasks.push_back({"P7 P8 P9 P10 P11",
                     fmt::format("A resident {}", context_name(context.tokens)),
                     [=](const Bench& bench) { return resident(bench, "A", context, widths); }});
  }
  for (const std::uint64_t tokens : {8 * k, 32 * k, 128 * k}) {
    tasks.push_back({"P7 P8 P9 P10 P11",
                     fmt::format("B resident {}", context_name(tokens)),
                     [=](const Bench& bench) {
                       return resident(bench, "B", {tokens, {}, {}, {}}, {1, 4, 8});
                     }});
  }
  for (const std::uint64_t tokens : {32 * k, 128 * k}) {
    tasks.push_back({"P6",
                     fmt::format("A host pages in place {}", context_name(tokens)),
                     [=](const Bench& bench) { return mapped(bench, tokens); }});
  }
}

}  // namespace kvspan::cuda_bench
