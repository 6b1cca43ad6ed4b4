// SPDX-License-Identifier: Apache-2.0
// P14: what does not grow with the context, from plans and queries alone.
#include "kvspan/core/session/session.hpp"

#include "rows.hpp"

#include <fmt/format.h>

namespace kvspan::cuda_bench {

namespace {

SessionOptions options_of(const Bench& bench, std::uint64_t tokens) {
  SessionOptions options;
  options.geometry.layers.assign(16, bench.pages.of("A").layer());
  options.geometry.page_tokens = kPageTokens;
  options.geometry.alignment = 256;
  options.context_tokens = tokens;
  options.prefill_rows_max = 16;
  options.decode_rows = 8;
  options.stream.group_pages = 32;
  options.stream.gap_ns = 1'500'000;
  options.stream.jitter_ns = 100'000;
  options.stream.link_bytes_s = static_cast<std::uint64_t>(bench.limits.link_up);
  options.stream.resident_pages_max = 0;
  return options;
}

Plan plan_of(const Bench& bench, std::uint64_t tokens) {
  const SessionOptions options = options_of(bench, tokens);
  PlanRequest request = plan_request(bench.rig.backend(), options);
  request.context_tokens = tokens;
  request.arena_bytes = std::uint64_t{8} << 30;
  return take(plan(request), "planning");
}

Row exact_row(const char* what, double value, const char* unit, std::uint64_t bytes) {
  Row row;
  row.id = "P14";
  row.what = what;
  row.value = value;
  row.unit = unit;
  row.better = Better::lower;
  row.floor = 1.0;
  row.goal = 1.0;
  row.bytes = bytes;
  row.check = "exact";
  return row;
}

std::vector<Row> exact(const Bench& bench) {
  const Plan near = plan_of(bench, 32 * 1024);
  const Plan far = plan_of(bench, 1024 * 1024);
  const SessionOptions options = options_of(bench, 0);
  const std::uint64_t allowed =
      2 * std::uint64_t{near.group_pages} + gap_pages(options.stream, near.slot_bytes);
  const auto ratio = [](std::uint64_t a, std::uint64_t b) {
    return static_cast<double>(a) / static_cast<double>(b);
  };
  std::vector<Row> rows;
  rows.push_back(exact_row("ring pages over two groups and a gap",
                           ratio(near.ring_slots, allowed),
                           "x",
                           near.ring_slots * near.slot_bytes));
  rows.push_back(exact_row("streaming state at 1M over 32K",
                           ratio(far.regions.total_bytes() - far.regions.resident_bytes,
                                 near.regions.total_bytes() - near.regions.resident_bytes),
                           "x",
                           near.regions.total_bytes()));
  const auto workspace = [&](std::uint64_t tokens) {
    const SessionOptions of = options_of(bench, tokens);
    const auto caps =
        take(capabilities_of(bench.rig.backend(), of)(0, Phase::decode, 8), "a query");
    return caps.run_workspace_bytes;
  };
  rows.push_back(exact_row("workspace of run at 1M over 8K",
                           ratio(workspace(1024 * 1024), workspace(8 * 1024)),
                           "x",
                           workspace(8 * 1024)));
  return rows;
}

}  // namespace

void add_exact(std::vector<Task>& tasks) {
  tasks.push_back({"P14", "exact amounts", exact});
}

}  // namespace kvspan::cuda_bench
