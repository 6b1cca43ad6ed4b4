// SPDX-License-Identifier: Apache-2.0
// Two sessions a row, one of them resident. Read first: prefill_bench.hpp.
#include "prefill_bench.hpp"

#include "kvspan/bench/decode_steps.hpp"
#include "kvspan/bench/link_rate.hpp"

#include "bench_json.hpp"
#include "calibration.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace kvspan::host {

namespace {

// Groups of at most 8 MiB each way, a twelfth of a second long in all.
Result<bench::BothWays> time_both_ways(const Backend& backend, double link_bytes_s) {
  constexpr std::uint64_t kGroups = 16;
  constexpr std::uint64_t kGrain = 4096;
  const double group = std::clamp(link_bytes_s / 12 / kGroups, 65536.0, 8.0 * (1U << 20));
  return bench::both_ways(backend, static_cast<std::uint64_t>(group) / kGrain * kGrain, kGroups);
}

bench::StepCase chunk_case(const PrefillBenchRequest& request,
                           std::uint64_t context,
                           std::uint32_t rows,
                           std::uint32_t host_percent) {
  const std::uint64_t appended = std::uint64_t{rows} * request.turns.chunks();
  bench::StepCase asked;
  asked.layers = request.layers;
  asked.tokens = context;
  asked.query_type = request.query_type;
  asked.appended = appended;
  asked.rows_max = 1;
  asked.chunk_rows = rows;
  asked.stream.group_pages = request.group_pages;
  const std::uint64_t pages = (context + appended + request.page_tokens - 1) / request.page_tokens;
  const std::uint64_t host = (pages * host_percent + 50) / 100;
  if (host != 0) {
    asked.stream.resident_pages_max = static_cast<std::uint32_t>(pages - host);
  }
  return asked;
}

PrefillBenchRow row_of(bench::ChunkTimes times,
                       const bench::StepCase& asked,
                       double link_bytes_s,
                       const Link& predicted_link) {
  std::vector<double> seconds;
  std::vector<double> resident;
  std::vector<double> link;
  std::vector<double> over;
  std::vector<double> predicted;
  for (const bench::Chunk& chunk : times.chunks) {
    seconds.push_back(chunk.seconds);
    resident.push_back(chunk.resident_seconds);
    link.push_back(static_cast<double>(chunk.streamed_bytes) / link_bytes_s);
    over.push_back(chunk.seconds / std::max(link.back(), chunk.resident_seconds));
    bench::StepCase behind = asked;
    behind.tokens = chunk.context;
    predicted.push_back(
        bench::predicted_seconds(times.plan, behind, predicted_link, chunk.resident_seconds));
  }
  PrefillBenchRow row;
  row.chunk_rows = asked.chunk_rows;
  row.context = asked.tokens;
  row.times = std::move(times);
  row.seconds = bench::spread_of(std::move(seconds));
  row.resident_seconds = bench::spread_of(std::move(resident));
  row.link_seconds = bench::spread_of(std::move(link)).median;
  row.over_bound = bench::spread_of(std::move(over)).median;
  row.predicted_seconds = bench::spread_of(std::move(predicted)).median;
  return row;
}

// The slower of both directions beside each other, of the rate that it has alone.
double beside_of_alone(const bench::BothWays& ways) {
  return std::min(ways.up_alone.median / ways.up.median, ways.down_alone.median / ways.down.median);
}

double gbytes_s(std::uint64_t bytes, const bench::Spread& seconds) {
  return static_cast<double>(bytes) / seconds.median * 1e-9;
}

}  // namespace

Result<PrefillBenchResult> bench_prefill(
    const Backend& backend,
    const PrefillBenchRequest& request,
    const std::function<void(const PrefillBenchResult&)>& told_link,
    const std::function<void(const PrefillBenchRow&)>& told) {
  const auto pages = bench::RandomPages::create(request.layer, request.page_tokens, 256);
  if (!pages) {
    return tl::unexpected(pages.error());
  }
  const auto link = bench::link_rate(backend);
  if (!link) {
    return tl::unexpected(link.error());
  }
  auto both = time_both_ways(backend, *link);
  if (!both) {
    return tl::unexpected(std::move(both).error());
  }
  PrefillBenchResult result{*link, *both, {}};
  told_link(result);
  for (const std::uint64_t context : request.contexts) {
    for (const std::uint32_t rows : request.chunk_rows) {
      for (const std::uint32_t percent : request.host_percent) {
        bench::StepCase asked = chunk_case(request, context, rows, percent);
        asked.stream.link_bytes_s = static_cast<std::uint64_t>(*link);
        if (request.calibration) {
          apply_calibration(*request.calibration, asked.stream);
        }
        const auto arena = bench::arena_for(backend, *pages, asked);
        if (!arena) {
          return tl::unexpected(arena.error());
        }
        asked.arena_bytes = *arena;
        auto times = bench::time_chunks(backend, *pages, asked, request.turns);
        if (!times) {
          return tl::unexpected(std::move(times).error());
        }
        PrefillBenchRow row =
            row_of(std::move(*times),
                   asked,
                   *link,
                   request.calibration ? request.calibration->upload : Link{0.0, *link});
        row.host_percent = percent;
        told(row);
        result.rows.push_back(std::move(row));
      }
    }
  }
  return result;
}

std::string prefill_bench_heading(const PrefillBenchResult& result) {
  const bench::BothWays& ways = result.both_ways;
  return fmt::format(
      "up {:.3f} GB/s alone, {:.3f} beside down; down {:.3f} alone, {:.3f} beside up\n"
      "{:>8} {:>6} {:>5} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8}\n",
      gbytes_s(ways.bytes, ways.up_alone),
      gbytes_s(ways.bytes, ways.up),
      gbytes_s(ways.bytes, ways.down_alone),
      gbytes_s(ways.bytes, ways.down),
      "context",
      "rows",
      "host%",
      "MB up",
      "MB down",
      "ms min",
      "median",
      "max",
      "resident",
      "link",
      "predicted",
      "x bound");
}

std::string prefill_bench_line(const PrefillBenchRow& row) {
  const bench::Chunk& last = row.times.chunks.back();
  return fmt::format(
      "{:>8} {:>6} {:>5} {:>10.2f} {:>10.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} "
      "{:>8.3f}\n",
      row.context,
      row.chunk_rows,
      row.host_percent,
      static_cast<double>(last.streamed_bytes) * 1e-6,
      static_cast<double>(last.published_bytes) * 1e-6,
      row.seconds.min * 1e3,
      row.seconds.median * 1e3,
      row.seconds.max * 1e3,
      row.resident_seconds.median * 1e3,
      row.link_seconds * 1e3,
      row.predicted_seconds * 1e3,
      row.over_bound);
}

nlohmann::ordered_json prefill_bench_json(const PrefillBenchRequest& request,
                                          const PrefillBenchResult& result) {
  nlohmann::ordered_json out;
  out["geometry"] = geometry_json(request.layer, request.layers, request.page_tokens);
  out["calibration"] = calibration_json(request.calibration);
  out["link_bytes_s"] = result.link_bytes_s;
  const bench::BothWays& ways = result.both_ways;
  out["both_ways"] = {{"bytes", ways.bytes},
                      {"up_alone_seconds", spread_json(ways.up_alone)},
                      {"down_alone_seconds", spread_json(ways.down_alone)},
                      {"up_seconds", spread_json(ways.up)},
                      {"down_seconds", spread_json(ways.down)},
                      {"of_alone", beside_of_alone(ways)}};
  out["rows"] = nlohmann::ordered_json::array();
  for (const PrefillBenchRow& row : result.rows) {
    const Plan& plan = row.times.plan;
    nlohmann::ordered_json chunks = nlohmann::ordered_json::array();
    for (const bench::Chunk& chunk : row.times.chunks) {
      chunks.push_back({{"context", chunk.context},
                        {"seconds", chunk.seconds},
                        {"resident_seconds", chunk.resident_seconds},
                        {"streamed_bytes", chunk.streamed_bytes},
                        {"streamed_pages", chunk.streamed_pages},
                        {"published_bytes", chunk.published_bytes}});
    }
    out["rows"].push_back({{"context", row.context},
                           {"chunk_rows", row.chunk_rows},
                           {"host_percent", row.host_percent},
                           {"arena_bytes", plan.regions.total_bytes()},
                           {"resident_pages", plan.resident_pages.front()},
                           {"ring_pages", plan.ring_slots},
                           {"group_pages", plan.group_pages},
                           {"seconds", spread_json(row.seconds)},
                           {"resident_seconds", spread_json(row.resident_seconds)},
                           {"link_seconds", row.link_seconds},
                           {"predicted_seconds", row.predicted_seconds},
                           {"over_bound", row.over_bound},
                           {"check", row.times.check},
                           {"chunks", std::move(chunks)}});
  }
  return out;
}

}  // namespace kvspan::host
