// SPDX-License-Identifier: Apache-2.0
// P17: chunks of a prompt over a history on the host, through core; and both directions of the link
// at once.
#include "kvspan/bench/both_ways.hpp"
#include "kvspan/bench/chunk_steps.hpp"
#include "kvspan/core/policy/placement.hpp"

#include "peers.hpp"
#include "rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>

namespace kvspan::cuda_bench {

namespace {

using bench::BothWays;
using bench::Chunk;
using bench::ChunkTimes;
using bench::StepCase;

constexpr std::uint64_t k = 1024;
constexpr std::uint64_t kArenaBytes = std::uint64_t{64} << 30;  // bounded by what is asked for
constexpr std::uint32_t kTimed = 5;
constexpr double kTorchShare = 0.6;  // compute counts as at most torch's flash over this

// Pages of 256 tokens that a chunk has to bring, and rows that it has to send down, once each.
Row once(Row row, const char* what, std::uint64_t counted, std::uint64_t once_bytes) {
  row.what += what;
  row.value = static_cast<double>(counted) / static_cast<double>(once_bytes);
  row.unit = "x";
  row.floor = 1.0;
  row.goal = 1.0;
  row.bytes = counted;
  if (counted < once_bytes) {
    row.failure = fmt::format("{} where {} are needed", counted, once_bytes);
  }
  return row;
}

// A chunk of so many rows; the middle one of those timed ends at `tokens`.
struct Size {
  std::uint64_t tokens;
  std::uint32_t rows;
  std::uint32_t layers;
  std::uint32_t group_pages;
};

// What core's planner gives a prompt; narrow chunks in smaller ones are told, not judged.
constexpr std::uint32_t kPlanned = kPromptGroupMax;

std::string name_of(const Size& size) {
  return fmt::format(
      "A chunk of {} ending at {}K, groups of {}", size.rows, size.tokens / k, size.group_pages);
}

// Chunks that follow each other; the middle one of those timed ends at `tokens`.
StepCase chunk_case(const Size& size) {
  const auto [tokens, rows, layers, group_pages] = size;
  StepCase asked;
  asked.layers = layers;
  asked.tokens = tokens - (kTimed / 2 + 2) * std::uint64_t{rows};
  asked.appended = (kTimed + 1) * std::uint64_t{rows};
  asked.rows_max = 1;
  asked.chunk_rows = rows;
  asked.query_type = KVSPAN_TYPE_F16;  // f32 queries have no kernel for wide rows
  asked.arena_bytes = kArenaBytes;
  asked.stream.group_pages = group_pages;
  asked.stream.resident_pages_max = 0;
  return asked;
}

std::vector<Row> chunk(const Bench& bench, const Size& size) {
  const auto [tokens, rows, layers, group_pages] = size;
  const StepCase asked = chunk_case(size);
  const ChunkTimes times =
      take(bench::time_chunks(bench.rig.backend(), bench.pages.of("A"), asked, {1, kTimed}),
           "timing chunks");
  std::vector<double> seconds;
  std::vector<double> resident_seconds;
  for (const Chunk& timed : times.chunks) {
    seconds.push_back(timed.seconds);
    resident_seconds.push_back(timed.resident_seconds);
  }
  const double resident = spread_of(std::move(resident_seconds)).median;
  // Host memory for rows that come is made ready in some of them, which a median does not show.
  const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / kTimed;
  const Chunk& middle = times.chunks[kTimed / 2];
  const double peer = layers * prefill_peer_us("A", tokens, rows) * 1e-6 / kTorchShare;
  const double compute = peer == 0.0 ? resident : std::min(resident, peer);
  const double link = static_cast<double>(middle.streamed_bytes) / bench.limits.link_up;
  Row row;
  row.id = "P17";
  row.what = name_of(size);
  row.seconds = spread_of(std::move(seconds));
  row.bytes = middle.streamed_bytes + middle.published_bytes;
  row.value = row.seconds.median / std::max(compute, link);
  row.unit = "x";
  row.better = Better::lower;
  row.floor = group_pages == kPlanned ? 1.10 : 0.0;
  row.goal = group_pages == kPlanned ? 1.03 : 0.0;
  row.check = times.check;
  row.details = {{"resident_us", resident * 1e6},
                 {"torch_over_0.6_us", peer * 1e6},
                 {"link_us", link * 1e6},
                 {"mean_us", mean * 1e6},
                 {"over_own_compute", row.seconds.median / std::max(resident, link)},
                 {"ring_pages", times.plan.ring_slots}};
  const auto& layout = bench.pages.of("A").layout();
  const std::uint64_t history_pages = layers * (middle.context / kPageTokens);
  return {row,
          once(row,
               " rows down",
               middle.published_bytes,
               std::uint64_t{layers} * rows * (layout.k_token_bytes + layout.v_token_bytes)),
          once(row, " pages up", middle.streamed_pages, history_pages)};
}

// Groups of 16 MiB to the device while others go the other way, through the copy table.
std::vector<Row> both_ways(const Bench& bench) {
  const BothWays ways =
      take(bench::both_ways(bench.rig.backend(), std::uint64_t{16} << 20, bench.small ? 2 : 64),
           "copying both ways");
  const auto bytes = static_cast<double>(ways.bytes);
  Row row;
  row.id = "P17";
  row.what = "up beside down";
  row.seconds = ways.up;
  row.bytes = ways.bytes;
  row.value = bytes / ways.up.median / bench.limits.link_up;
  row.unit = "of L";
  row.floor = 0.9;
  row.goal = 0.0;
  row.check = fmt::format("memcmp of {} bytes each way", row.bytes);
  row.details = {{"up_of_alone", ways.up_alone.median / ways.up.median},
                 {"down_of_alone", ways.down_alone.median / ways.down.median},
                 {"gbytes_s", bytes / ways.up.median * 1e-9}};
  return {row};
}

}  // namespace

void add_chunks(std::vector<Task>& tasks) {
  // All layers of geometry A share what a chunk costs the host, which counts where chunks are
  // short.
  for (const Size size : {Size{32 * k, 256, 16, kPlanned},
                          {32 * k, 256, 16, 32},
                          {32 * k, 512, 16, kPlanned},
                          {32 * k, 512, 16, 32},
                          {32 * k, 2048, 16, kPlanned},
                          {128 * k, 2048, 4, kPlanned},
                          {128 * k, 2048, 4, 32},
                          {1024 * k, 2048, 2, kPlanned}}) {
    tasks.push_back({"P17", name_of(size), [size](const Bench& bench) {
                       return chunk(bench, bench.small ? Size{2048, 256, 4, kPlanned} : size);
                     }});
  }
  tasks.push_back({"P17", "up beside down", both_ways});
}

}  // namespace kvspan::cuda_bench
