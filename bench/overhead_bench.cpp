// SPDX-License-Identifier: Apache-2.0
// What core itself costs: steps of a decode over a backend that does nothing, with arguments
// checked and without. Prints microseconds a layer and nanoseconds a streamed page.
#include "kvspan/bench/null_backend.hpp"
#include "kvspan/core/session/session.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

using namespace kvspan;

constexpr std::uint32_t kLayers = 16;
constexpr int kSteps = 200;

struct Case {
  std::uint64_t tokens;
  std::uint32_t rows;
  std::uint32_t group_pages;
  std::uint32_t resident_pages_max;
  Checks checks;
};

// Seconds of the median step.
double step_seconds(const Backend& backend, const Case& asked, std::uint64_t& pages) {
  SessionOptions options;
  options.geometry.layers.assign(
      kLayers, LayerGeometry{KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 256, 256, 4, 24});
  options.context_tokens = asked.tokens + asked.rows * (kSteps + 8);
  options.prefill_rows_max = 16;
  options.decode_rows = asked.rows;
  options.arena_bytes = 8ULL << 30;
  options.stream.group_pages = asked.group_pages;
  options.stream.resident_pages_max = asked.resident_pages_max;
  options.checks = asked.checks;
  auto session = Session::open(backend, options);
  if (!session) {
    std::printf("%s\n", session.error().message.c_str());
    return 0.0;
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
  const std::uint64_t before = session->counters().streamed_pages;
  for (int step = 0; step < kSteps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    const StepRows part{sequence, asked.rows};
    bool good = session->begin_step({&part, 1}, Phase::decode).has_value();
    for (std::uint32_t layer = 0; layer < kLayers && good; ++layer) {
      good = session->write(layer, {rows, rows, {}}).has_value();
      AttendRows attend;
      attend.q = rows;
      attend.out = rows;
      attend.out.offset = 32U << 20;
      attend.scale = 1.0F;
      good = good && session->attend(layer, attend).has_value();
    }
    good = good && session->commit({&asked.rows, 1}).has_value();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (!good) {
      std::printf("a step failed\n");
      return 0.0;
    }
  }
  pages = (session->counters().streamed_pages - before) / kSteps;
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

int main() {
  const Backend backend = kvspan::bench::null_backend();
  for (const Checks checks : {Checks::calls, Checks::none}) {
    std::printf("%s\n", checks == Checks::calls ? "arguments checked" : "unchecked");
    for (const Case& asked : {Case{8192, 1, 32, UINT32_MAX, checks},
                              Case{8192, 1, 32, 0, checks},
                              Case{32768, 1, 32, 0, checks},
                              Case{32768, 8, 32, 0, checks},
                              Case{33500, 1, 32, 0, checks},
                              Case{131072, 1, 32, 0, checks},
                              Case{131072, 1, 16, 0, checks}}) {
      std::uint64_t pages = 0;
      const double seconds = step_seconds(backend, asked, pages);
      std::printf(
          "%7llu tokens w%u groups of %2u, %6llu pages: %7.2f us a layer, %6.0f ns a page\n",
          static_cast<unsigned long long>(asked.tokens),
          asked.rows,
          asked.group_pages,
          static_cast<unsigned long long>(pages),
          seconds / kLayers * 1e6,
          pages == 0 ? 0.0 : seconds / static_cast<double>(pages) * 1e9);
    }
  }
  return 0;
}
