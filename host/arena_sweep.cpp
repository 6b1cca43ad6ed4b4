// SPDX-License-Identifier: Apache-2.0
// Read first: arena_sweep.hpp.
#include "arena_sweep.hpp"

#include "bench_json.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace kvspan::host {

namespace {

Result<std::uint64_t> smallest_arena(const Backend& backend,
                                     const bench::RandomPages& pages,
                                     const bench::StepCase& asked) {
  PlanRequest request = plan_request(backend, bench::session_options(pages, asked));
  request.arena_bytes = 0;
  const auto least = plan(request);
  return least ? Result<std::uint64_t>(least->minimum_arena_bytes) : tl::unexpected(least.error());
}

// K/V bytes a second that the resident steps attended.
std::uint64_t attended_bytes_s(const bench::RandomPages& pages,
                               const bench::StepCase& asked,
                               double resident_seconds) {
  const std::uint64_t complete = asked.tokens / pages.layout().page_tokens;
  return static_cast<std::uint64_t>(
      static_cast<double>(complete * asked.layers * pages.layout().page_bytes) / resident_seconds);
}

SweepPoint point_of(bench::DecodeTimes times, const std::vector<SweepPoint>& before) {
  const Plan& plan = times.plan;
  SweepPoint point{plan.regions.total_bytes(),
                   plan.resident_pages.front(),
                   plan.ring_slots,
                   plan.group_pages,
                   plan.predicted.step_ns * 1e-9,
                   1.0,
                   1.0,
                   std::move(times.steps.front()),
                   {}};
  if (!before.empty()) {
    point.over_before = point.times.seconds.median / before.back().times.seconds.median;
    point.predicted_over_before = point.predicted_seconds / before.back().predicted_seconds;
  }
  return point;
}

}  // namespace

Result<std::vector<SweepPoint>> sweep_arenas(const Backend& backend,
                                             const bench::RandomPages& pages,
                                             const bench::StepCase& asked,
                                             const bench::Steps& steps,
                                             std::uint32_t points,
                                             const std::function<void(const SweepPoint&)>& told) {
  const auto resident_case = bench::resident_case(backend, pages, asked);
  const auto resident = bench::time_resident(backend, pages, asked, {steps});
  if (!resident || !resident_case) {
    return tl::unexpected(resident ? resident_case.error() : resident.error());
  }
  bench::StepCase with = asked;
  if (with.stream.attend_bytes_s == 0) {  // no calibration
    with.stream.attend_bytes_s =
        attended_bytes_s(pages, asked, resident->steps.front().seconds.median);
  }
  const auto least = smallest_arena(backend, pages, with);
  if (!least) {
    return tl::unexpected(least.error());
  }
  std::vector<SweepPoint> out;
  for (std::uint32_t index = 0; index < points; ++index) {
    with.arena_bytes = *least + (resident_case->arena_bytes - *least) * index / (points - 1);
    auto times = bench::time_steps(backend, pages, with, {steps});
    if (!times) {
      return tl::unexpected(std::move(times).error());
    }
    SweepPoint point = point_of(std::move(*times), out);
    auto same = bench::compare(point.times, resident->steps.front());
    if (!same) {
      return tl::unexpected(std::move(same).error());
    }
    point.check = std::move(*same);
    told(point);
    out.push_back(std::move(point));
  }
  return out;
}

std::string sweep_heading() {
  return fmt::format("{:>12} {:>8} {:>6} {:>10} {:>9} {:>9} {:>9} {:>9} {:>8}\n",
                     "arena bytes",
                     "resident",
                     "ring",
                     "MB a step",
                     "ms min",
                     "median",
                     "max",
                     "predicted",
                     "x before");
}

std::string sweep_line(const SweepPoint& point) {
  return fmt::format("{:>12} {:>8} {:>6} {:>10.2f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>8.3f}\n",
                     point.arena_bytes,
                     point.resident_pages,
                     point.ring_pages,
                     static_cast<double>(point.times.bytes) * 1e-6,
                     point.times.seconds.min * 1e3,
                     point.times.seconds.median * 1e3,
                     point.times.seconds.max * 1e3,
                     point.predicted_seconds * 1e3,
                     point.over_before);
}

nlohmann::ordered_json sweep_json(const std::vector<SweepPoint>& points) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const SweepPoint& point : points) {
    out.push_back({{"arena_bytes", point.arena_bytes},
                   {"resident_pages", point.resident_pages},
                   {"ring_pages", point.ring_pages},
                   {"group_pages", point.group_pages},
                   {"streamed_bytes", point.times.bytes},
                   {"streamed_pages", point.times.pages},
                   {"seconds", spread_json(point.times.seconds)},
                   {"predicted_seconds", point.predicted_seconds},
                   {"over_before", point.over_before},
                   {"predicted_over_before", point.predicted_over_before},
                   {"check", point.check}});
  }
  return out;
}

}  // namespace kvspan::host
