// SPDX-License-Identifier: Apache-2.0
// What core itself costs: steps of a decode, and chunks of a prompt, over a backend that does
// nothing, with arguments checked and without. Prints microseconds a layer, nanoseconds a streamed
// page, and how long a device that has finished one step waits for the next one's first work.
#include "kvspan/bench/null_backend.hpp"
#include "kvspan/bench/spread.hpp"
#include "kvspan/core/session/session.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

using namespace kvspan;

constexpr std::uint32_t kLayers = 16;
constexpr int kSteps = 200;
constexpr int kChunks = 9;

struct Case {
  std::uint64_t tokens;
  std::uint32_t rows;
  std::uint32_t group_pages;
  std::uint32_t resident_pages_max;
  Phase phase;
  Checks checks;
};

using bench::Clock;
using bench::seconds_since;

// Of the median step.
struct Cost {
  double seconds = 0.0;
  double between_seconds = 0.0;  // from the last attend to the next step's first write
  std::uint64_t pages = 0;
};

Cost cost_of(const Backend& backend, const Case& asked) {
  const int steps = asked.phase == Phase::prefill ? kChunks : kSteps;
  const std::uint32_t chunk = asked.phase == Phase::prefill ? asked.rows : 16;
  SessionOptions options;
  options.geometry.layers.assign(
      kLayers, LayerGeometry{KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 256, 256, 4, 24});
  options.context_tokens = asked.tokens + asked.rows * (static_cast<std::uint64_t>(steps) + 8);
  options.prefill_rows_max = chunk;
  options.prefill_rows_fixed = chunk;
  options.decode_rows = std::min(asked.rows, 16U);
  options.arena_bytes = 8ULL << 30;
  options.stream.group_pages = asked.group_pages;
  options.stream.resident_pages_max = asked.resident_pages_max;
  options.checks = asked.checks;
  auto session = Session::open(backend, options);
  if (!session) {
    std::printf("%s\n", session.error().message.c_str());
    return {};
  }
  const SequenceId sequence = *session->add_sequence();
  (void)session->load(
      sequence,
      asked.tokens,
      [](std::uint32_t, std::uint64_t, std::span<std::byte>) -> Result<void> { return {}; });
  auto memory = backend.allocate(KVSPAN_MEMORY_DEVICE, 64U << 20);
  kvspan_rows_t rows{};
  rows.memory = memory->get();
  rows.row_stride = 24 * 256 * sizeof(float);
  rows.head_stride = 256 * sizeof(float);
  std::vector<double> seconds;
  std::vector<double> between;
  const std::uint64_t before = session->counters().streamed_pages;
  Clock::time_point attended = Clock::now();
  for (int step = 0; step < steps; ++step) {
    const auto start = Clock::now();
    const StepRows part{sequence, asked.rows};
    bool good = session->begin_step({&part, 1}, asked.phase).has_value();
    between.push_back(seconds_since(attended));
    for (std::uint32_t layer = 0; layer < kLayers && good; ++layer) {
      good = session->write(layer, {rows, rows, {}}).has_value();
      AttendRows attend;
      attend.q = rows;
      attend.out = rows;
      attend.out.offset = 32U << 20;
      attend.scale = 1.0F;
      good = good && session->attend(layer, attend).has_value();
    }
    attended = Clock::now();
    good = good && session->commit({&asked.rows, 1}).has_value();
    seconds.push_back(seconds_since(start));
    if (!good) {
      std::printf("a step failed\n");
      return {};
    }
  }
  const std::uint64_t pages = session->counters().streamed_pages - before;
  return {bench::spread_of(std::move(seconds)).median,
          bench::spread_of(std::move(between)).median,
          pages / static_cast<std::uint64_t>(steps)};
}

}  // namespace

int main() {
  const Backend backend = kvspan::bench::null_backend();
  for (const Checks checks : {Checks::calls, Checks::none}) {
    std::printf("%s\n", checks == Checks::calls ? "arguments checked" : "unchecked");
    for (const Case& asked : {Case{8192, 1, 32, UINT32_MAX, Phase::decode, checks},
                              Case{8192, 1, 32, 0, Phase::decode, checks},
                              Case{32768, 1, 32, 0, Phase::decode, checks},
                              Case{32768, 8, 32, 0, Phase::decode, checks},
                              Case{33500, 1, 32, 0, Phase::decode, checks},
                              Case{131072, 1, 32, 0, Phase::decode, checks},
                              Case{131072, 1, 16, 0, Phase::decode, checks},
                              Case{32768, 256, 32, 0, Phase::prefill, checks},
                              Case{32768, 256, 64, 0, Phase::prefill, checks},
                              Case{32768, 2048, 32, 0, Phase::prefill, checks},
                              Case{131072, 2048, 32, 0, Phase::prefill, checks}}) {
      const Cost cost = cost_of(backend, asked);
      std::printf(
          "%-7s %6llu tokens w%-4u groups of %2u, %6llu pages: %7.2f us a layer, %6.0f ns a "
          "page, %6.1f us between steps\n",
          name(asked.phase),
          static_cast<unsigned long long>(asked.tokens),
          asked.rows,
          asked.group_pages,
          static_cast<unsigned long long>(cost.pages),
          cost.seconds / kLayers * 1e6,
          cost.pages == 0 ? 0.0 : cost.seconds / static_cast<double>(cost.pages) * 1e9,
          cost.between_seconds * 1e6);
    }
  }
  return 0;
}
