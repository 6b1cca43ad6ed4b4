// SPDX-License-Identifier: Apache-2.0
// One session a context and share, all widths in it; one resident session a context to compare
// with. Read first: decode_bench.hpp.
#include "decode_bench.hpp"

#include "kvspan/bench/link_rate.hpp"

#include "bench_json.hpp"
#include "calibration.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace kvspan::host {

namespace {

bench::StepCase step_case(const DecodeBenchRequest& request, std::uint64_t context) {
  bench::StepCase asked;
  asked.layers = request.layers;
  asked.tokens = context;
  asked.query_type = request.query_type;
  asked.rows_max = *std::max_element(request.widths.begin(), request.widths.end());
  asked.appended = 0;
  for (const std::uint32_t width : request.widths) {
    asked.appended += std::uint64_t{width} * (request.timed_steps + 1);
  }
  asked.stream = request.stream;
  asked.wait_each_layer = request.wait_each_layer || request.stream.gap_ns != 0;
  asked.gap_seconds = static_cast<double>(request.stream.gap_ns) * 1e-9;
  asked.submission_thread = request.submission_thread;
  return asked;
}

std::vector<bench::Steps> steps_of(const DecodeBenchRequest& request) {
  std::vector<bench::Steps> steps;
  for (const std::uint32_t width : request.widths) {
    steps.push_back({width, static_cast<int>(request.timed_steps)});
  }
  return steps;
}

// The placement is by what is known of the device: its calibration, else the measured rate alone.
void tell_of_link(const DecodeBenchRequest& request, double link_bytes_s, StreamOptions& stream) {
  stream.link_bytes_s = static_cast<std::uint64_t>(link_bytes_s);
  if (request.calibration) {
    apply_calibration(*request.calibration, stream);
  }
}

// Seconds that the step cannot be shorter than: the link's, or those of attention.
double bound_seconds(const DecodeBenchRow& row, double link_bytes_s) {
  return std::max(static_cast<double>(row.times.bytes) / link_bytes_s, row.resident_seconds.median);
}

double of_link(const DecodeBenchRow& row, double link_bytes_s) {
  return static_cast<double>(row.times.bytes) / row.times.seconds.median / link_bytes_s;
}

Result<bench::DecodeTimes> time_share(const Backend& backend,
                                      const bench::RandomPages& pages,
                                      bench::StepCase asked,
                                      std::uint32_t host_percent,
                                      const std::vector<bench::Steps>& steps) {
  const std::uint64_t page = pages.layout().page_tokens;
  const std::uint64_t all = (asked.tokens + asked.appended + page - 1) / page;
  const std::uint64_t host = (all * host_percent + 50) / 100;
  if (host != 0) {
    asked.stream.resident_pages_max = static_cast<std::uint32_t>(all - host);
  }
  const auto arena = bench::arena_for(backend, pages, asked);
  if (!arena) {
    return tl::unexpected(arena.error());
  }
  asked.arena_bytes = *arena;
  return bench::time_steps(backend, pages, asked, steps);
}

}  // namespace

Result<DecodeBenchResult> bench_decode(const Backend& backend,
                                       const DecodeBenchRequest& request,
                                       const DecodeBenchListener& told) {
  const auto pages = bench::RandomPages::create(request.layer, request.page_tokens, 256);
  if (!pages) {
    return tl::unexpected(pages.error());
  }
  const auto link = bench::link_rate(backend);
  if (!link) {
    return tl::unexpected(link.error());
  }
  DecodeBenchResult result{*link, {}, {}};
  const Link predicted_link = request.calibration ? request.calibration->upload : Link{0.0, *link};
  const std::vector<bench::Steps> steps = steps_of(request);
  if (request.arenas != 0) {
    bench::StepCase asked = step_case(request, request.contexts.front());
    tell_of_link(request, *link, asked.stream);
    auto arenas = sweep_arenas(
        backend, *pages, asked, steps.front(), request.arenas, [&](const SweepPoint& point) {
          told.arena(point, *link);
        });
    if (!arenas) {
      return tl::unexpected(std::move(arenas).error());
    }
    result.arenas = std::move(*arenas);
    return result;
  }
  for (const std::uint64_t context : request.contexts) {
    bench::StepCase asked = step_case(request, context);
    tell_of_link(request, *link, asked.stream);
    const auto resident = bench::time_resident(backend, *pages, asked, steps);
    if (!resident) {
      return tl::unexpected(resident.error());
    }
    for (const std::uint32_t percent : request.host_percent) {
      auto times = time_share(backend, *pages, asked, percent, steps);
      if (!times) {
        return tl::unexpected(std::move(times).error());
      }
      for (std::size_t index = 0; index < steps.size(); ++index) {
        auto same = bench::compare(times->steps[index], resident->steps[index]);
        if (!same) {
          return tl::unexpected(std::move(same).error());
        }
        const double resident_median = resident->steps[index].seconds.median;
        DecodeBenchRow row{
            context,
            percent,
            times->plan.regions.total_bytes(),
            times->plan.resident_pages.front(),
            times->plan.ring_slots,
            times->plan.group_pages,
            std::move(times->steps[index]),
            resident->steps[index].seconds,
            bench::predicted_seconds(times->plan, asked, predicted_link, resident_median),
            std::move(*same)};
        told.row(row, *link);
        result.rows.push_back(std::move(row));
      }
    }
  }
  return result;
}

std::string decode_bench_heading() {
  return fmt::format("{:>8} {:>4} {:>5} {:>10} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8}\n",
                     "context",
                     "rows",
                     "host%",
                     "MB a step",
                     "ms min",
                     "median",
                     "max",
                     "GB/s",
                     "of link",
                     "x bound",
                     "CPU us/p");
}

std::string decode_bench_line(const DecodeBenchRow& row, double link_bytes_s) {
  const bench::StepTimes& times = row.times;
  return fmt::format(
      "{:>8} {:>4} {:>5} {:>10.2f} {:>9.3f} {:>9.3f} {:>9.3f} {:>8.2f} {:>8.3f} {:>8.3f} "
      "{:>8.2f}\n",
      row.context,
      times.rows,
      row.host_percent,
      static_cast<double>(times.bytes) * 1e-6,
      times.seconds.min * 1e3,
      times.seconds.median * 1e3,
      times.seconds.max * 1e3,
      static_cast<double>(times.bytes) / times.seconds.median * 1e-9,
      of_link(row, link_bytes_s),
      times.seconds.median / bound_seconds(row, link_bytes_s),
      times.cpu.process * 1e6);
}

nlohmann::ordered_json decode_bench_json(const DecodeBenchRequest& request,
                                         const DecodeBenchResult& result) {
  nlohmann::ordered_json out;
  out["geometry"] = geometry_json(request.layer, request.layers, request.page_tokens);
  out["gap_ns"] = request.stream.gap_ns;
  out["waits_each_layer"] = request.wait_each_layer || request.stream.gap_ns != 0;
  out["submission_thread"] = request.submission_thread;
  out["calibration"] = calibration_json(request.calibration);
  out["link_bytes_s"] = result.link_bytes_s;
  if (request.arenas != 0) {
    out["arenas"] = sweep_json(result.arenas);
    return out;
  }
  out["rows"] = nlohmann::ordered_json::array();
  for (const DecodeBenchRow& row : result.rows) {
    const bench::StepTimes& times = row.times;
    out["rows"].push_back(
        {{"context", row.context},
         {"rows", times.rows},
         {"host_percent", row.host_percent},
         {"arena_bytes", row.arena_bytes},
         {"resident_pages", row.resident_pages},
         {"ring_pages", row.ring_pages},
         {"group_pages", row.group_pages},
         {"streamed_bytes", times.bytes},
         {"streamed_pages", times.pages},
         {"seconds", spread_json(times.seconds)},
         {"resident_seconds", spread_json(row.resident_seconds)},
         {"predicted_seconds", row.predicted_seconds},
         {"of_link", of_link(row, result.link_bytes_s)},
         {"over_bound", times.seconds.median / bound_seconds(row, result.link_bytes_s)},
         {"cpu_seconds_a_page", times.cpu.process},
         {"engine_cpu_seconds_a_page", times.cpu.thread},
         {"check", row.check}});
  }
  return out;
}

}  // namespace kvspan::host
