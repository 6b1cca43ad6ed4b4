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

double predicted_seconds(const Plan& plan,
                         const StepCase& asked,
                         const Link& link,
                         double resident_seconds) {
  const std::uint64_t complete = asked.tokens / plan.pages.front().page_tokens;
  StepLoad load;
  for (const PageLayout& page : plan.pages) {
    LayerLoad layer;
    layer.page_bytes = page.page_bytes;
    layer.gap_ns = asked.gap_seconds * 1e9;
    layer.attend_page_ns =
        resident_seconds * 1e9 /
        static_cast<double>(plan.pages.size() * std::max<std::uint64_t>(complete, 1));
    load.layers.push_back(layer);
  }
  load.sequence_pages = {complete};
  load.link = link;
  return predict(load, placement_of(plan)).step_ns * 1e-9;
}

Result<DecodeTimes> time_resident(const Backend& backend,
                                  const RandomPages& pages,
                                  const StepCase& asked,
                                  const std::vector<Steps>& steps) {
  const auto resident = resident_case(backend, pages, asked);
  return resident ? time_steps(backend, pages, *resident, steps) : tl::unexpected(resident.error());
}

Result<std::string> compare(const StepTimes& streamed, const StepTimes& resident) {
  return compare_outputs(streamed.outputs, resident.outputs);
}

Result<std::string> compare_outputs(const std::vector<float>& streamed,
                                    const std::vector<float>& resident) {
  const std::vector<float>& outputs = streamed;
  if (outputs.empty() || outputs.size() != resident.size() ||
      std::memcmp(outputs.data(), resident.data(), outputs.size() * sizeof(float)) != 0) {
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
