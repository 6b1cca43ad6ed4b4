// SPDX-License-Identifier: Apache-2.0
// P2, P3: decode through core with every page of the history on the host.
#include "rows.hpp"
#include "streamed.hpp"

#include <fmt/format.h>

#include <cstring>

namespace kvspan::cuda_bench {

namespace {

// Every output of a step against the same step with everything resident, bit for bit. The steps
// before it made the same history in both.
std::string same_as_resident(const Bench& bench, StreamCase asked, std::span<const float> outputs) {
  asked.stream = {};
  asked.arena_bytes = std::uint64_t{64} << 30;
  Streamed resident(bench.rig, bench.pages.of(asked.geometry), asked);
  if (resident.session().plan().mode != PlanMode::resident) {
    throw Failure("the run to compare with is not resident");
  }
  (void)resident.step();
  const std::vector<float> expected = resident.outputs();
  if (expected.size() != outputs.size() ||
      std::memcmp(expected.data(), outputs.data(), outputs.size_bytes()) != 0) {
    throw Failure("outputs differ from the resident run");
  }
  for (const float value : expected) {
    if (!(value >= -1.5F && value <= 1.5F)) {
      throw Failure("an output is not a mean of values between -1 and 1");
    }
  }
  return fmt::format("memcmp of {} outputs with resident", outputs.size());
}

struct Measured {
  Row row;
  std::vector<float> first_outputs;
};

// The session ends here: a device is prepared for another only when nothing of it is in flight.
Measured measure(const Bench& bench, const StreamCase& asked) {
  constexpr int kSteps = 9;
  Streamed engine(bench.rig, bench.pages.of(asked.geometry), asked);
  Measured out;
  (void)engine.step();
  out.first_outputs = engine.outputs();
  std::vector<double> seconds;
  const Counters before = engine.session().counters();
  const CpuTime cpu_before = cpu_time();
  for (int step = 0; step < kSteps; ++step) {
    seconds.push_back(engine.step());
  }
  const CpuTime cpu_after = cpu_time();
  const Counters after = engine.session().counters();
  Row& row = out.row;
  row.seconds = spread_of(seconds);
  row.bytes = (after.streamed_bytes - before.streamed_bytes) / kSteps;
  const auto pages = static_cast<double>(after.streamed_pages - before.streamed_pages);
  row.details = {{"gbytes_s", static_cast<double>(row.bytes) / row.seconds.median * 1e-9},
                 {"cpu_us_page_process", (cpu_after.process - cpu_before.process) / pages * 1e6},
                 {"cpu_us_page_thread", (cpu_after.thread - cpu_before.thread) / pages * 1e6},
                 {"ring_pages", engine.session().plan().ring_slots},
                 {"group_pages", engine.session().plan().group_pages}};
  return out;
}

Row streamed(const Bench& bench, const StreamCase& asked, double floor, double goal) {
  Measured measured = measure(bench, asked);
  Row& row = measured.row;
  const std::uint64_t expected = asked.tokens / kPageTokens * asked.layers *
                                 bench.pages.of(asked.geometry).layout().page_bytes;
  if (row.bytes != expected) {
    throw Failure(fmt::format("{} bytes streamed a step, {} are on the host", row.bytes, expected));
  }
  row.value = static_cast<double>(row.bytes) / row.seconds.median / bench.limits.link_up;
  row.unit = "of L";
  row.floor = floor;
  row.goal = goal;
  row.check = same_as_resident(bench, asked, measured.first_outputs);
  return row;
}

}  // namespace

void add_streamed(std::vector<Task>& tasks) {
  const auto add = [&](const char* id,
                       std::uint64_t tokens,
                       std::uint32_t width,
                       std::uint32_t group,
                       bool wait,
                       double floor,
                       double goal) {
    StreamCase asked;
    asked.tokens = tokens;
    asked.rows = width;
    asked.wait_each_layer = wait;
    asked.stream.group_pages = group;
    asked.stream.resident_pages_max = 0;
    tasks.push_back(
        {id,
         fmt::format(
             "A w{} {}K groups of {}{}", width, tokens / 1024, group, wait ? " waits a layer" : ""),
         [=](const Bench& bench) { return streamed(bench, asked, floor, goal); }});
  };
  constexpr std::uint64_t k = 1024;
  add("P2", 32 * k, 1, 16, false, 0.94, 0.97);
  add("P2", 32 * k, 1, 32, false, 0.94, 0.97);
  add("P2", 32 * k, 1, 32, true, 0.94, 0.97);
  add("P2", 128 * k, 1, 32, false, 0.94, 0.97);
}

}  // namespace kvspan::cuda_bench
