// SPDX-License-Identifier: Apache-2.0
// Summaries: figures that were counted, and advice that follows from them.
#include "generation_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "amount.hpp"

namespace kvspan::host {

namespace {

std::uint64_t resident_pages(const Plan& plan) {
  return std::accumulate(plan.resident_pages.begin(), plan.resident_pages.end(), std::uint64_t{0});
}

std::uint64_t total_pages(const Plan& plan) {
  return static_cast<std::uint64_t>(plan.pages_a_sequence) * plan.pages.size();
}

double per(double amount, double count) { return count > 0.0 ? amount / count : 0.0; }

std::uint64_t streamed_bytes_a_token(const GenerationResult& run) {
  return run.decode_steps == 0 ? 0 : run.decode_streamed_bytes / run.decode_steps;
}

// What one more page a layer costs, and what all of it would.
std::string advice(const Plan& plan) {
  if (plan.mode == PlanMode::resident) {
    return "";
  }
  const std::uint64_t row_bytes =
      std::accumulate(plan.pages.begin(), plan.pages.end(), std::uint64_t{0},
                      [](std::uint64_t sum, const PageLayout& page) { return sum + page.page_bytes; });
  const std::uint64_t missing = total_pages(plan) - std::min(total_pages(plan), resident_pages(plan));
  return fmt::format(
      "to stream less: {} more of --arena keep one more page of every layer resident, about {} keep "
      "everything; q8_0 or q4_0 K and V need less",
      bytes_text(row_bytes), bytes_text(missing * plan.slot_bytes));
}

}  // namespace

Verification compare(const GenerationResult& streamed, const GenerationResult& resident) {
  Verification result;
  result.interrupted = resident.interrupted;
  result.chunk_rows = streamed.plan.prefill_rows;
  const std::size_t count = std::min(streamed.ids.size(), resident.ids.size());
  const std::size_t vocabulary = count == 0 ? 0 : streamed.logits.size() / streamed.ids.size();
  std::size_t at = 0;
  while (at < count && streamed.ids[at] == resident.ids[at] &&
         std::memcmp(streamed.logits.data() + at * vocabulary,
                     resident.logits.data() + at * vocabulary, vocabulary * sizeof(float)) == 0) {
    ++at;
  }
  result.compared_tokens = count;
  result.first_difference = at;
  result.equal = count != 0 && at == count && streamed.ids.size() == resident.ids.size() &&
                 streamed.plan.prefill_rows == resident.plan.prefill_rows;
  return result;
}

void print_generation(const GenerationReport& report, TextOutput output) {
  const GenerationResult& run = report.run;
  const Plan& plan = run.plan;
  if (output == TextOutput::text) {
    std::fwrite(report.text.data(), 1, report.text.size(), stdout);
    if (!report.text.ends_with('\n')) {
      std::fputc('\n', stdout);
    }
    std::fflush(stdout);
  }
  fmt::print(stderr, "\n{}ids        {}\n", run.interrupted ? "interrupted at a commit\n" : "",
             fmt::join(run.ids, " "));
  fmt::print(stderr, "mode       {}, prefill in chunks of {} rows, plugin {}\n", name(plan.mode),
             plan.prefill_rows, report.plugin);
  fmt::print(stderr, "rate       prefill {:.1f} s; decode {:.1f} tok/s\n", run.prefill_seconds,
             per(static_cast<double>(run.decode_steps), run.decode_seconds));
  fmt::print(stderr, "pages      {} of {} resident; ring {} slots, tails {} slots of {} bytes\n",
             resident_pages(plan), total_pages(plan), plan.ring_slots, plan.tail_slots,
             plan.slot_bytes);
  fmt::print(stderr, "streamed   {} a generated token ({} bytes); {} in all, {} of it tails again\n",
             bytes_text(streamed_bytes_a_token(run)), streamed_bytes_a_token(run),
             bytes_text(run.counters.streamed_bytes + run.counters.refetched_tail_bytes),
             bytes_text(run.counters.refetched_tail_bytes));
  fmt::print(stderr, "device     high-water {} bytes", run.counters.device_bytes_high_water);
  if (report.arena_bytes != kWholeHistoryArena) {
    fmt::print(stderr, " of an arena of {} bytes", report.arena_bytes);
  }
  fmt::print(stderr, "; host history {}\n", bytes_text(run.counters.host_bytes));
  if (report.verified) {
    const Verification& verified = *report.verified;
    if (verified.interrupted) {
      fmt::print(stderr, "verify     interrupted\n");
    } else if (verified.equal) {
      fmt::print(stderr,
                 "verify     equal: {} ids and their logits are the resident run's, bit for bit "
                 "(both in chunks of {} rows)\n",
                 verified.compared_tokens, verified.chunk_rows);
    } else {
      fmt::print(stderr, "verify     DIFFERENT from the resident run at generated token {}\n",
                 verified.first_difference);
    }
  }
  const std::string hint = advice(plan);
  if (!hint.empty()) {
    fmt::print(stderr, "{}\n", hint);
  }
}

nlohmann::ordered_json generation_json(const GenerationReport& report) {
  const GenerationResult& run = report.run;
  const Counters& counters = run.counters;
  nlohmann::ordered_json out;
  out["schema"] = 1;
  out["plugin"] = report.plugin;
  out["text"] = report.text;
  out["ids"] = run.ids;
  out["interrupted"] = run.interrupted;
  out["mode"] = name(run.plan.mode);
  out["arena_bytes"] = report.arena_bytes == kWholeHistoryArena ? run.plan.regions.total_bytes()
                                                                : report.arena_bytes;
  out["device_bytes_high_water"] = counters.device_bytes_high_water;
  out["minimum_arena_bytes"] = run.plan.minimum_arena_bytes;
  out["host_bytes"] = counters.host_bytes;
  out["prefill_rows"] = run.plan.prefill_rows;
  out["resident_pages"] = resident_pages(run.plan);
  out["total_pages"] = total_pages(run.plan);
  out["ring_pages"] = run.plan.ring_slots;
  out["tail_pages"] = run.plan.tail_slots;
  out["streamed_bytes_a_token"] = streamed_bytes_a_token(run);
  out["streamed_bytes"] = counters.streamed_bytes;
  out["streamed_pages"] = counters.streamed_pages;
  out["refetched_tail_bytes"] = counters.refetched_tail_bytes;
  out["published_bytes"] = counters.published_bytes;
  out["prefill_seconds"] = run.prefill_seconds;
  out["decode_tokens_a_second"] = per(static_cast<double>(run.decode_steps), run.decode_seconds);
  if (report.verified) {
    out["verify"] = {{"equal", report.verified->equal},
                     {"compared_tokens", report.verified->compared_tokens},
                     {"first_difference", report.verified->first_difference},
                     {"chunk_rows", report.verified->chunk_rows}};
  }
  return out;
}

}  // namespace kvspan::host
