// SPDX-License-Identifier: Apache-2.0
// Read first: decode_steps.hpp.
#include "kvspan/bench/decode_steps.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvspan::bench {

namespace {

Error wrong(std::string message) {
  return error_of(Errc::internal, std::move(message), "bench");
}

Result<StepTimes> time_width(StepEngine& engine, const Steps& wanted) {
  StepTimes out;
  out.rows = wanted.rows;
  if (auto warm = engine.step(wanted.rows); !warm) {
    return tl::unexpected(std::move(warm).error());
  }
  auto outputs = engine.outputs();
  if (!outputs) {
    return tl::unexpected(std::move(outputs).error());
  }
  out.outputs = std::move(*outputs);
  const Counters before = engine.session().counters();
  const CpuTime cpu_before = cpu_time();
  StepTraffic expected;
  std::vector<double> seconds;
  for (int step = 0; step < wanted.timed; ++step) {
    const StepTraffic traffic = engine.traffic();
    expected.pages += traffic.pages;
    expected.bytes_min += traffic.bytes_min;
    expected.bytes_max += traffic.bytes_max;
    auto took = engine.step(wanted.rows);
    if (!took) {
      return tl::unexpected(std::move(took).error());
    }
    seconds.push_back(*took);
  }
  const CpuTime cpu_after = cpu_time();
  const Counters after = engine.session().counters();
  const std::uint64_t streamed = after.streamed_bytes - before.streamed_bytes;
  const std::uint64_t pages = after.streamed_pages - before.streamed_pages;
  if (pages != expected.pages || streamed < expected.bytes_min || streamed > expected.bytes_max) {
    return tl::unexpected(wrong(std::to_string(pages) + " pages of " + std::to_string(streamed) +
                                " bytes were streamed where " + std::to_string(expected.pages) +
                                " of " + std::to_string(expected.bytes_max) +
                                " bytes are not resident"));
  }
  const auto timed = static_cast<std::uint64_t>(std::max(wanted.timed, 1));
  out.seconds = spread_of(std::move(seconds));
  out.bytes = streamed / timed;
  out.pages = pages / timed;
  if (pages != 0) {
    out.cpu = {(cpu_after.process - cpu_before.process) / static_cast<double>(pages),
               (cpu_after.thread - cpu_before.thread) / static_cast<double>(pages)};
  }
  return out;
}

}  // namespace

Result<DecodeTimes> time_steps(const Backend& backend,
                               const RandomPages& pages,
                               const StepCase& asked,
                               const std::vector<Steps>& steps) {
  auto engine = StepEngine::open(backend, pages, asked);
  if (!engine) {
    return tl::unexpected(std::move(engine).error());
  }
  DecodeTimes times{engine->session().plan(), 0, {}};
  for (const Steps& wanted : steps) {
    auto measured = time_width(*engine, wanted);
    if (!measured) {
      return tl::unexpected(std::move(measured).error());
    }
    times.steps.push_back(std::move(*measured));
  }
  times.device_bytes_high_water = engine->session().counters().device_bytes_high_water;
  return times;
}

Result<DecodeTimes> time_resident(const Backend& backend,
                                  const RandomPages& pages,
                                  const StepCase& asked,
                                  const std::vector<Steps>& steps) {
  StepCase resident = asked;
  resident.stream = {};
  resident.wait_each_layer = false;
  resident.gap_seconds = 0.0;
  const auto arena = arena_for(backend, pages, resident);
  if (!arena) {
    return tl::unexpected(arena.error());
  }
  resident.arena_bytes = *arena;
  auto times = time_steps(backend, pages, resident, steps);
  if (times && times->plan.mode != PlanMode::resident) {
    return tl::unexpected(wrong("the run to compare with is not resident"));
  }
  return times;
}

Result<std::string> compare(const StepTimes& streamed, const StepTimes& resident) {
  const std::vector<float>& outputs = streamed.outputs;
  if (outputs.empty() || outputs.size() != resident.outputs.size() ||
      std::memcmp(outputs.data(), resident.outputs.data(), outputs.size() * sizeof(float)) != 0) {
    return tl::unexpected(wrong("outputs differ from those of the resident run"));
  }
  const bool means = std::all_of(
      outputs.begin(), outputs.end(), [](float value) { return value >= -1.5F && value <= 1.5F; });
  if (!means) {
    return tl::unexpected(wrong("an output is no mean of values between -1 and 1"));
  }
  return "memcmp of " + std::to_string(outputs.size()) + " outputs with resident";
}

}  // namespace kvspan::bench
