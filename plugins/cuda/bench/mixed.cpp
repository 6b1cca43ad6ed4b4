// SPDX-License-Identifier: Apache-2.0
// P5, P13, P22: a part of the history is resident, the rest streams.
#include "kvspan/bench/decode_steps.hpp"

#include "rows.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvspan::cuda_bench {

namespace {

using bench::DecodeTimes;
using bench::StepCase;
using bench::Steps;
using bench::StepTimes;

constexpr std::uint64_t k = 1024;
constexpr std::uint64_t kArenaBytes = std::uint64_t{64} << 30;  // bounded by what is asked for
constexpr std::uint64_t kHeadlinePages = 5484;

std::uint64_t layer_pages(std::uint64_t tokens) {
  return tokens / kPageTokens;
}

// P13: time over the larger of what the link needs and what attention needs.
std::vector<Row> mixed(const Bench& bench, std::uint64_t tokens, std::uint32_t host_percent) {
  StepCase asked;
  asked.tokens = tokens;
  asked.arena_bytes = kArenaBytes;
  asked.stream.group_pages = 32;
  const std::uint64_t host = (layer_pages(tokens) * host_percent + 50) / 100;
  asked.stream.resident_pages_max = static_cast<std::uint32_t>(layer_pages(tokens) - host);
  const std::vector<Steps> steps = {{1, 7}, {4, 7}, {8, 7}};
  const DecodeTimes resident = timed_resident(bench, asked, steps);
  // Nobody takes pages from the ring while resident ones are attended: it covers that time of the
  // widest step, as the policy does where it places pages itself.
  const double attended = resident.steps.back().seconds.median / asked.layers;
  const double resident_share =
      1.0 - static_cast<double>(host) / static_cast<double>(layer_pages(tokens));
  asked.stream.gap_ns = static_cast<std::uint64_t>(attended * resident_share * 1e9);
  asked.stream.jitter_ns = 100'000;
  asked.stream.link_bytes_s = static_cast<std::uint64_t>(bench.limits.link_up);
  const DecodeTimes times = timed(bench, asked, steps);
  std::vector<Row> rows;
  for (std::size_t index = 0; index < steps.size(); ++index) {
    const StepTimes& measured = times.steps[index];
    const double link = static_cast<double>(measured.bytes) / bench.limits.link_up;
    const double attention = resident.steps[index].seconds.median;
    Row row;
    row.id = "P13";
    row.what = fmt::format("A w{} {}K {} % on the host", measured.rows, tokens / k, host_percent);
    row.seconds = measured.seconds;
    row.bytes = measured.bytes;
    row.value = measured.seconds.median / std::max(link, attention);
    row.unit = "x";
    row.better = Better::lower;
    row.floor = host_percent >= 10 ? 1.15 : 0.0;
    row.goal = host_percent >= 10 ? 1.05 : 0.0;
    row.check = same(measured, resident.steps[index]);
    row.details = {{"link_us", link * 1e6},
                   {"resident_us", attention * 1e6},
                   {"ring_pages", times.plan.ring_slots}};
    rows.push_back(row);
  }
  return rows;
}

// P5: 262,144 tokens in 16 layers with 5,484 pages of arena in all.
std::vector<Row> headline(const Bench& bench) {
  StepCase asked;
  asked.tokens = 256 * k;
  asked.rows_max = 4;
  asked.appended = 255;  // in the page that is begun
  asked.arena_bytes = kHeadlinePages * bench.pages.of("A").layout().page_bytes;
  asked.stream.group_pages = 32;
  const std::vector<Steps> steps = {{1, 7}, {4, 7}};
  const DecodeTimes times = timed(bench, asked, steps);
  const DecodeTimes resident = timed_resident(bench, asked, steps);
  const Plan& plan = times.plan;
  const std::uint64_t page_bytes = plan.pages.front().page_bytes;
  const std::uint64_t scratch =
      plan.regions.total_bytes() - plan.regions.resident_bytes - plan.regions.slots_bytes;
  const std::uint64_t states = (scratch + page_bytes - 1) / page_bytes;
  const std::uint64_t streamed_at_best =
      16 * layer_pages(asked.tokens) - (kHeadlinePages - 2 * plan.group_pages - 16 - states);
  std::vector<Row> rows;
  for (std::size_t index = 0; index < steps.size(); ++index) {
    const StepTimes& measured = times.steps[index];
    Row row;
    row.id = "P5";
    row.what = fmt::format("headline w{} pages over the fewest", measured.rows);
    row.seconds = measured.seconds;
    row.bytes = measured.bytes;
    row.value = static_cast<double>(measured.pages) / static_cast<double>(streamed_at_best);
    row.unit = "x";
    row.better = Better::lower;
    row.floor = 1.02;
    row.goal = 1.0;
    row.check = same(measured, resident.steps[index]);
    row.details = {{"pages_a_step", static_cast<double>(measured.pages)},
                   {"fewest_pages", static_cast<double>(streamed_at_best)},
                   {"steps_s", 1.0 / measured.seconds.median},
                   {"tokens_s", measured.rows / measured.seconds.median}};
    rows.push_back(row);
    row.what = fmt::format("headline w{} rate", measured.rows);
    row.value =
        static_cast<double>(measured.bytes) / measured.seconds.median / bench.limits.link_up;
    row.unit = "of L";
    row.better = Better::higher;
    row.floor = 0.94;
    row.goal = 0.97;
    rows.push_back(row);
  }
  return rows;
}

// P22: ten arenas from nothing resident to everything, each no slower than the one before.
std::vector<Row> sweep(const Bench& bench) {
  constexpr std::uint64_t kTokens = 32 * k;
  constexpr std::uint32_t kPoints = 10;
  const std::vector<Steps> steps = {{1, 7}};
  StepCase asked;
  asked.tokens = kTokens;
  asked.arena_bytes = kArenaBytes;
  const DecodeTimes resident = timed_resident(bench, asked, steps);
  std::vector<Row> rows;
  double before = 0.0;
  for (std::uint32_t point = 0; point < kPoints; ++point) {
    // The arena that holds this share of the pages beside what streams them.
    const std::uint64_t pages = layer_pages(kTokens) * asked.layers * point / (kPoints - 1);
    const std::uint64_t page_bytes = bench.pages.of("A").layout().page_bytes;
    asked.arena_bytes = point + 1 == kPoints ? std::uint64_t{64} << 30
                                             : (pages + 64 + 40) * page_bytes + (64U << 20);
    const DecodeTimes times = timed(bench, asked, steps);
    const StepTimes& measured = times.steps.front();
    Row row;
    row.id = "P22";
    row.what = fmt::format("A w1 32K arena {} of {} over before", point + 1, kPoints);
    row.seconds = measured.seconds;
    row.bytes = measured.bytes;
    row.value = before == 0.0 ? 1.0 : measured.seconds.median / before;
    row.unit = "x";
    row.better = Better::lower;
    row.floor = 1.02;
    row.goal = 1.0;
    row.check = same(measured, resident.steps.front());
    row.details = {{"arena_bytes", static_cast<double>(times.plan.regions.total_bytes())},
                   {"resident_pages_a_layer", times.plan.resident_pages.front()},
                   {"ring_pages", times.plan.ring_slots}};
    rows.push_back(row);
    before = measured.seconds.median;
  }
  return rows;
}

}  // namespace

void add_mixed(std::vector<Task>& tasks) {
  for (const std::uint32_t percent : {10U, 25U, 50U}) {
    tasks.push_back({"P13",
                     fmt::format("A 128K {} % on the host", percent),
                     [=](const Bench& bench) { return mixed(bench, 128 * k, percent); }});
  }
  tasks.push_back({"P5", "headline replay", headline});
  tasks.push_back({"P22", "A w1 32K arenas", sweep});
}

}  // namespace kvspan::cuda_bench
