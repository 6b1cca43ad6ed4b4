// SPDX-License-Identifier: Apache-2.0
// P2, P3, P15, P18: decode through core with every page of the history on the host. P4: the same
// while the engine has other work between layers.
#include "kvspan/bench/decode_steps.hpp"

#include "rows.hpp"
#include "spin_work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

namespace kvspan::cuda_bench {

namespace {

using bench::DecodeTimes;
using bench::StepCase;
using bench::Steps;
using bench::StepTimes;

constexpr std::uint64_t k = 1024;
constexpr std::uint64_t kArenaBytes = std::uint64_t{64} << 30;  // bounded by what is asked for

StepCase on_host(std::uint64_t tokens, std::uint32_t group) {
  StepCase asked;
  asked.tokens = tokens;
  asked.arena_bytes = kArenaBytes;
  asked.stream.group_pages = group;
  asked.stream.resident_pages_max = 0;
  return asked;
}

Row row_of(const StepTimes& times, const Plan& plan) {
  Row row;
  row.seconds = times.seconds;
  row.bytes = times.bytes;
  row.details = {{"gbytes_s", static_cast<double>(times.bytes) / times.seconds.median * 1e-9},
                 {"cpu_us_page_process", times.cpu.process * 1e6},
                 {"cpu_us_page_thread", times.cpu.thread * 1e6},
                 {"ring_pages", plan.ring_slots},
                 {"group_pages", plan.group_pages}};
  return row;
}

void add_cpu_rows(const Row& measured, const StepTimes& times, std::vector<Row>& rows) {
  const auto add = [&](const char* who, double seconds, double floor, double goal) {
    Row row = measured;
    row.id = "P15";
    row.what += who;
    row.value = seconds * 1e6;
    row.unit = "us a page";
    row.better = Better::lower;
    row.floor = floor;
    row.goal = goal;
    rows.push_back(row);
  };
  add(" CPU all", times.cpu.process, 2.8, 1.6);
  add(" CPU engine", times.cpu.thread, 0.3, 0.1);
}

// From the last outputs of a step to the first submit of the next: what this program's own thread
// takes to wake, to compare and to begin, 0.1 to 0.4 ms as the device's clock showed. The ring
// covers it.
constexpr std::uint64_t kTurnNs = 400'000;

std::string name_of(const StepCase& asked) {
  return fmt::format("{}K groups of {}{}{}",
                     asked.tokens / k,
                     asked.stream.group_pages,
                     asked.wait_each_layer ? " waits" : "",
                     asked.submission_thread ? " core's thread" : "");
}

std::vector<Row> streamed(const Bench& bench, StepCase asked, bool cpu) {
  asked.stream.jitter_ns = kTurnNs;
  asked.stream.link_bytes_s = static_cast<std::uint64_t>(bench.limits.link_up);
  const std::vector<Steps> steps = {{1, 9}, {2, 7}, {4, 7}, {8, 7}};
  const DecodeTimes times = timed(bench, asked, steps);
  const DecodeTimes resident = timed_resident(bench, asked, steps);
  std::vector<Row> rows;
  for (std::size_t index = 0; index < times.steps.size(); ++index) {
    const StepTimes& measured = times.steps[index];
    const bool near = asked.tokens <= 8 * k;
    Row row = row_of(measured, times.plan);
    row.id = near ? "P3" : "P2";
    row.what = fmt::format("A w{} {}", measured.rows, name_of(asked));
    row.value =
        static_cast<double>(measured.bytes) / measured.seconds.median / bench.limits.link_up;
    row.unit = "of L";
    row.floor = near ? 0.92 : 0.94;
    row.goal = near ? 0.955 : 0.97;
    row.check = same(measured, resident.steps[index]);
    rows.push_back(row);
    if (cpu && index == 0) {
      add_cpu_rows(row, measured, rows);
    }
  }
  return rows;
}

std::vector<Row> widths(const Bench& bench) {
  StepCase asked = on_host(32 * k, 32);
  asked.rows_max = 64;
  asked.appended = 1024;
  const std::vector<Steps> steps = {{1, 9}, {2, 7}, {4, 7}, {8, 7}, {16, 7}, {49, 3}};
  const DecodeTimes times = timed(bench, asked, steps);
  const DecodeTimes resident = timed_resident(bench, asked, steps);
  std::vector<Row> rows;
  for (std::size_t index = 1; index < times.steps.size(); ++index) {
    const StepTimes& measured = times.steps[index];
    Row row = row_of(measured, times.plan);
    row.id = "P18";
    row.what = fmt::format("A 32K step w{} over w1", measured.rows);
    row.value = measured.seconds.median / times.steps.front().seconds.median;
    row.unit = "x";
    row.better = Better::lower;
    row.floor = measured.rows <= 16 ? 1.05 : 0.0;
    row.goal = measured.rows <= 16 ? 1.02 : 0.0;
    row.check = same(measured, resident.steps[index]);
    row.details.emplace_back(
        "bytes_over_w1",
        static_cast<double>(measured.bytes) / static_cast<double>(times.steps.front().bytes));
    rows.push_back(row);
  }
  return rows;
}

// Whose work is between two layers: kernels behind the outputs on a stream of the engine's, its
// host far ahead; or the host's own, which reads each layer's outputs first.
enum class Gap { on_device, on_host };

std::string name_of(double gap_seconds, Gap gap) {
  return fmt::format(
      "32K gaps of {} ms{}", gap_seconds * 1e3, gap == Gap::on_device ? "" : " of the host");
}

std::vector<Row> gaps(const Bench& bench, double gap_seconds, Gap gap) {
  std::unique_ptr<SpinWork> work;
  StepCase asked = on_host(32 * k, 32);
  if (gap == Gap::on_device) {
    work = std::make_unique<SpinWork>(bench.rig, gap_seconds);
    asked.other_work = work.get();
  } else {
    asked.wait_each_layer = true;
    asked.gap_seconds = gap_seconds;
  }
  asked.stream.gap_ns = static_cast<std::uint64_t>(gap_seconds * 1e9);
  asked.stream.jitter_ns = gap == Gap::on_device ? kTurnNs : 100'000;
  asked.stream.link_bytes_s = static_cast<std::uint64_t>(bench.limits.link_up);
  const std::vector<Steps> steps = {{1, 7}, {4, 7}};
  const DecodeTimes times = timed(bench, asked, steps);
  const DecodeTimes resident = timed_resident(bench, asked, steps);
  std::vector<Row> rows;
  for (std::size_t index = 0; index < steps.size(); ++index) {
    const StepTimes& measured = times.steps[index];
    Row row = row_of(measured, times.plan);
    const double link = static_cast<double>(measured.bytes) / bench.limits.link_up;
    const double others = asked.layers * gap_seconds + resident.steps[index].seconds.median;
    row.id = "P4";
    row.what = fmt::format("A w{} {}", measured.rows, name_of(gap_seconds, gap));
    row.value = measured.seconds.median / std::max(link, others);
    row.unit = "x";
    row.better = Better::lower;
    row.floor = 1.08;
    row.goal = 1.03;
    row.check = same(measured, resident.steps[index]);
    row.details.emplace_back("link_us", link * 1e6);
    row.details.emplace_back("gaps_and_attention_us", others * 1e6);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace

void add_streaming(std::vector<Task>& tasks) {
  const auto add = [&](const char* ids, const StepCase& asked, bool cpu) {
    tasks.push_back({ids, fmt::format("A {}", name_of(asked)), [=](const Bench& bench) {
                       return streamed(bench, asked, cpu);
                     }});
  };
  add("P2 P15", on_host(32 * k, 32), true);
  add("P2 P15", on_host(32 * k, 16), true);
  StepCase waits = on_host(32 * k, 32);
  waits.wait_each_layer = true;
  add("P2", waits, false);
  add("P2 P15", on_host(128 * k, 32), true);
  add("P2", on_host(256 * k, 32), false);
  StepCase longest = on_host(1024 * k, 32);
  longest.layers = 4;  // 7 GB of history
  add("P2", longest, false);
  for (const std::uint64_t tokens : {32 * k, 128 * k}) {
    for (const std::uint32_t group : {32U, 16U}) {
      StepCase by_thread = on_host(tokens, group);
      by_thread.submission_thread = true;
      add("P2 P15", by_thread, true);
    }
  }
  add("P3", on_host(8 * k, 16), false);
  add("P3", on_host(8 * k, 32), false);
  tasks.push_back({"P18", "A 32K widths", widths});
}

void add_gaps(std::vector<Task>& tasks) {
  for (const Gap gap : {Gap::on_device, Gap::on_host}) {
    for (const double seconds : {0.1e-3, 0.4e-3, 1.5e-3}) {
      tasks.push_back({"P4",
                       fmt::format("A w1 {}", name_of(seconds, gap)),
                       [=](const Bench& bench) { return gaps(bench, seconds, gap); }});
    }
  }
}

}  // namespace kvspan::cuda_bench
