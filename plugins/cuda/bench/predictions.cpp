// SPDX-License-Identifier: Apache-2.0
// P24: the step time that plan() predicts against the one that is measured, over configurations
// drawn by a seed. The model's numbers are measured first, in this process, on other configurations
// than those: the link's by copies alone (as `kvspan bench link` does) and by streamed steps.
#include "kvspan/bench/copy_samples.hpp"
#include "kvspan/bench/decode_steps.hpp"

#include "rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

namespace kvspan::cuda_bench {

namespace {

using bench::DecodeTimes;
using bench::StepCase;
using bench::Steps;
using bench::StepTimes;

constexpr std::uint64_t kArenaBytes = std::uint64_t{64} << 30;  // bounded by what is asked for
constexpr std::uint64_t kSeed = 24;
constexpr std::uint32_t kConfigurations = 20;
constexpr std::uint64_t kAppended = 64;
constexpr double kJitterSeconds = 100e-6;
constexpr std::uint32_t kWidths[] = {1, 2, 4, 8};
constexpr double kGaps[] = {0.0, 0.1e-3, 0.4e-3, 1.5e-3};  // seconds

// What is known of attention with so many rows.
struct Attention {
  double layer_seconds = 0.0;  // of a layer beside its bytes: calls, folds, the engine's waiting
  double bytes_s = 0.0;
  double wave_seconds = 0.0;  // of a fetched group that is attended alone
};

struct Model {
  Link by_copies;                                // alone
  Link by_steps;                                 // as steps stream
  std::map<std::uint32_t, Attention> attention;  // [rows]
};

// An engine that waits for each layer, at the end of its context.
StepCase at_end(std::uint64_t tokens) {
  StepCase asked;
  asked.tokens = tokens - kAppended;
  asked.appended = kAppended;
  asked.arena_bytes = kArenaBytes;
  asked.wait_each_layer = true;
  return asked;
}

std::uint64_t pages_of(std::uint64_t tokens) {
  return tokens / kPageTokens;
}

// The line through two lengths of a resident history, for every width.
std::map<std::uint32_t, Attention> attention(const Bench& bench,
                                             std::uint64_t near,
                                             std::uint64_t far) {
  std::vector<Steps> steps;
  for (const std::uint32_t rows : kWidths) {
    steps.push_back({rows, 3});
  }
  const auto times_of = [&](std::uint64_t tokens) {
    StepCase asked = at_end(tokens);
    return timed(bench, asked, steps);
  };
  const DecodeTimes short_times = times_of(near);
  const DecodeTimes long_times = times_of(far);
  const double page_bytes = static_cast<double>(bench.pages.of("A").layout().page_bytes);
  std::map<std::uint32_t, Attention> out;
  for (std::size_t index = 0; index < steps.size(); ++index) {
    const double layers = StepCase{}.layers;
    const double a = short_times.steps[index].seconds.median / layers;
    const double b = long_times.steps[index].seconds.median / layers;
    const double bytes = static_cast<double>(pages_of(far) - pages_of(near)) * page_bytes;
    Attention& of = out[steps[index].rows];
    of.bytes_s = bytes / std::max(b - a, 1e-9);
    of.layer_seconds =
        std::max(0.0, a - static_cast<double>(pages_of(near)) * page_bytes / of.bytes_s);
  }
  return out;
}

// What a wave costs beside its bytes: steps whose gaps are longer than their link's time, in groups
// of two sizes. The ring must hold less than two layers, or there are no waves.
void add_waves(const Bench& bench,
               std::uint64_t tokens,
               double gap_seconds,
               std::map<std::uint32_t, Attention>& attention) {
  std::vector<Steps> steps;
  for (const std::uint32_t rows : kWidths) {
    steps.push_back({rows, 3});
  }
  const auto times_of = [&](std::uint32_t group) {
    StepCase asked = at_end(tokens);
    asked.gap_seconds = gap_seconds;
    asked.stream.group_pages = group;
    asked.stream.resident_pages_max = 0;
    return timed(bench, asked, steps);
  };
  constexpr std::uint32_t kSmall = 4;
  constexpr std::uint32_t kLarge = 16;
  const DecodeTimes small = times_of(kSmall);
  const DecodeTimes large = times_of(kLarge);
  const auto pages = static_cast<double>(pages_of(tokens) * StepCase{}.layers);
  const double waves = pages / kSmall - pages / kLarge;
  for (std::size_t index = 0; index < steps.size(); ++index) {
    const double longer = small.steps[index].seconds.median - large.steps[index].seconds.median;
    attention[steps[index].rows].wave_seconds = std::max(0.0, longer / waves);
  }
}

// The line through the time of a page in groups of two sizes: what a group costs, and the rate.
Link link_by_steps(const Bench& bench, std::uint64_t tokens) {
  const auto page_seconds = [&](std::uint32_t group) {
    StepCase asked = at_end(tokens);
    asked.stream.group_pages = group;
    asked.stream.resident_pages_max = 0;
    const DecodeTimes times = timed(bench, asked, {{1, 5}});
    const StepTimes& step = times.steps.front();
    return step.seconds.median / static_cast<double>(std::max<std::uint64_t>(step.pages, 1));
  };
  const double small = page_seconds(8);
  const double large = page_seconds(32);
  const double copy = std::max(0.0, (small - large) / (1.0 / 8 - 1.0 / 32));
  const auto bytes = static_cast<double>(bench.pages.of("A").layout().page_bytes);
  return {copy * 1e9, bytes / std::max(large - copy / 32, 1e-9)};
}

Model calibrated(const Bench& bench) {
  Model out;
  out.by_copies = take(bench::calibrate(bench.rig.backend()), "timing copies").upload;
  out.attention = bench.small ? attention(bench, 512, 1024) : attention(bench, 16384, 98304);
  add_waves(bench, bench.small ? 1024 : 49152, 1.6e-3, out.attention);
  out.by_steps = link_by_steps(bench, bench.small ? 1024 : 49152);
  return out;
}

struct Configuration {
  std::uint64_t tokens = 0;
  std::uint32_t rows = 1;
  double gap_seconds = 0.0;
  double share = 0.0;  // of the pages, about, that the arena holds
};

Configuration drawn(std::mt19937_64& random, bool small) {
  const auto below = [&](std::uint64_t bound) { return random() % bound; };
  Configuration out;
  // 16K to 128K tokens, as often between 16K and 32K as between 64K and 128K.
  const double doublings = static_cast<double>(below(3001)) / 1000.0;
  const auto pages = static_cast<std::uint64_t>((small ? 2.0 : 64.0) * std::exp2(doublings));
  out.tokens = pages * kPageTokens;
  out.rows = kWidths[below(std::size(kWidths))];
  out.gap_seconds = kGaps[below(std::size(kGaps))];
  out.share = static_cast<double>(below(101)) / 100.0;
  return out;
}

StreamOptions stream_of(const Model& model, const Link& link, const Configuration& with) {
  const Attention& attention = model.attention.at(with.rows);
  StreamOptions stream;
  stream.gap_ns = static_cast<std::uint64_t>((with.gap_seconds + attention.layer_seconds) * 1e9);
  stream.jitter_ns = static_cast<std::uint64_t>(kJitterSeconds * 1e9);
  stream.link_bytes_s = static_cast<std::uint64_t>(link.bytes_s);
  stream.copy_ns = static_cast<std::uint64_t>(link.copy_ns);
  stream.attend_bytes_s = static_cast<std::uint64_t>(attention.bytes_s);
  stream.wave_ns = static_cast<std::uint64_t>(attention.wave_seconds * 1e9);
  return stream;
}

// What plan() says of the same arena with another link; the placement may be another one too.
double predicted_seconds(const Bench& bench, const StepCase& asked, const StreamOptions& stream) {
  StepCase with = asked;
  with.stream = stream;
  PlanRequest request =
      plan_request(bench.rig.backend(), session_options(bench.pages.of("A"), with));
  request.arena_bytes = asked.arena_bytes;
  return take(plan(request), "planning").predicted.step_ns * 1e-9;
}

// Told, not judged: its value is predicted over measured.
Row measured(const Bench& bench, const Model& model, const Configuration& with) {
  StepCase asked = at_end(with.tokens);
  asked.gap_seconds = with.gap_seconds;
  asked.stream = stream_of(model, model.by_steps, with);
  PlanRequest least =
      plan_request(bench.rig.backend(), session_options(bench.pages.of("A"), asked));
  least.arena_bytes = 0;
  const std::uint64_t minimum = take(plan(least), "planning").minimum_arena_bytes;
  const std::uint64_t pages_bytes =
      asked.layers * pages_of(with.tokens) * bench.pages.of("A").layout().page_bytes;
  asked.arena_bytes =
      minimum + static_cast<std::uint64_t>(with.share * static_cast<double>(pages_bytes));
  const std::vector<Steps> steps = {{with.rows, 5}};
  const DecodeTimes times = timed(bench, asked, steps);
  const DecodeTimes resident = timed_resident(bench, asked, steps);
  const StepTimes& step = times.steps.front();
  const double predicted = times.plan.predicted.step_ns * 1e-9;
  const double by_copies = predicted_seconds(bench, asked, stream_of(model, model.by_copies, with));
  Row row;
  row.id = "P24";
  row.what = fmt::format("A w{} {} pages a layer {:.0f} % gap {} ms",
                         with.rows,
                         pages_of(with.tokens),
                         with.share * 100.0,
                         with.gap_seconds * 1e3);
  row.seconds = step.seconds;
  row.bytes = step.bytes;
  row.value = predicted / step.seconds.median;
  row.unit = "predicted";
  row.better = Better::lower;
  row.check = same(step, resident.steps.front());
  row.details = {{"predicted_us", predicted * 1e6},
                 {"by_copies_us", by_copies * 1e6},
                 {"predicted_link_us", times.plan.predicted.link_ns * 1e-3},
                 {"predicted_compute_us", times.plan.predicted.compute_ns * 1e-3},
                 {"resident_us", resident.steps.front().seconds.median * 1e6},
                 {"resident_pages_a_layer", times.plan.resident_pages.front()},
                 {"ring_pages", times.plan.ring_slots},
                 {"group_pages", times.plan.group_pages}};
  return row;
}

// In percent, of a detail's prediction or of the row's own.
std::vector<double> errors_of(const std::vector<Row>& rows, const char* detail) {
  std::vector<double> out;
  for (const Row& row : rows) {
    double predicted = row.value * row.seconds.median * 1e6;
    for (const auto& [name, value] : row.details) {
      predicted = name == detail ? value : predicted;
    }
    out.push_back(std::abs(predicted / (row.seconds.median * 1e6) - 1.0) * 100.0);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Row judged(const char* what, double percent, double floor, double goal) {
  Row row;
  row.id = "P24";
  row.what = fmt::format("{} error of {} seed {}", what, kConfigurations, kSeed);
  row.value = percent;
  row.unit = "%";
  row.better = Better::lower;
  row.floor = floor;
  row.goal = goal;
  row.check = "each configuration's outputs by memcmp with resident";
  return row;
}

std::vector<Row> predictions(const Bench& bench) {
  const Model model = calibrated(bench);
  std::mt19937_64 random(kSeed);
  std::vector<Row> rows;
  for (std::uint32_t index = 0; index < kConfigurations; ++index) {
    rows.push_back(measured(bench, model, drawn(random, bench.small)));
  }
  const std::vector<double> errors = errors_of(rows, "predicted_us");
  const std::vector<double> by_copies = errors_of(rows, "by_copies_us");
  const auto median = [](const std::vector<double>& sorted) {
    return (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
  };
  Row middle = judged("median", median(errors), 5.0, 3.0);
  middle.details = {{"with_the_link_by_copies", median(by_copies)},
                    {"link_by_copies_gbytes_s", model.by_copies.bytes_s * 1e-9},
                    {"link_by_copies_copy_us", model.by_copies.copy_ns * 1e-3},
                    {"link_by_steps_gbytes_s", model.by_steps.bytes_s * 1e-9},
                    {"link_by_steps_copy_us", model.by_steps.copy_ns * 1e-3}};
  for (const auto& [width, of] : model.attention) {
    middle.details.emplace_back(fmt::format("attend_w{}_gbytes_s", width), of.bytes_s * 1e-9);
    middle.details.emplace_back(fmt::format("attend_w{}_layer_us", width), of.layer_seconds * 1e6);
    middle.details.emplace_back(fmt::format("attend_w{}_wave_us", width), of.wave_seconds * 1e6);
  }
  Row worst = judged("worst", errors.back(), 15.0, 8.0);
  worst.details = {{"with_the_link_by_copies", by_copies.back()}};
  rows.push_back(middle);
  rows.push_back(worst);
  return rows;
}

}  // namespace

void add_predictions(std::vector<Task>& tasks) {
  tasks.push_back({"P24", "A predicted steps", predictions});
}

}  // namespace kvspan::cuda_bench
