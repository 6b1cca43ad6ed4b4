// SPDX-License-Identifier: Apache-2.0
// Summaries: figures that were counted, and advice that follows from them.
#include "generation_report.hpp"

#include "amount.hpp"
#include "calibration.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace kvspan::host {

namespace {

std::uint64_t resident_pages(const Plan& plan) {
  return std::accumulate(plan.resident_pages.begin(), plan.resident_pages.end(), std::uint64_t{0});
}

std::uint64_t total_pages(const Plan& plan) {
  return static_cast<std::uint64_t>(plan.pages_a_sequence) * plan.pages.size();
}

double per(double amount, double count) {
  return count > 0.0 ? amount / count : 0.0;
}

std::uint64_t streamed_bytes_a_token(const GenerationResult& run) {
  return run.decode_steps == 0 ? 0 : run.decode_streamed_bytes / run.decode_steps;
}

// What one more page a layer costs, and what all of it would.
std::string advice(const Plan& plan) {
  if (plan.mode == PlanMode::resident) {
    return "";
  }
  const std::uint64_t row_bytes = std::accumulate(
      plan.pages.begin(),
      plan.pages.end(),
      std::uint64_t{0},
      [](std::uint64_t sum, const PageLayout& page) { return sum + page.page_bytes; });
  const std::uint64_t missing =
      total_pages(plan) - std::min(total_pages(plan), resident_pages(plan));
  return fmt::format(
      "to stream less: {} more of --arena keep one more page of every layer resident, about {} "
      "keep "
      "everything; q8_0 or q4_0 K and V need less",
      bytes_text(row_bytes),
      bytes_text(missing * plan.slot_bytes));
}

std::string verification_text(const Verification& verified) {
  if (verified.interrupted) {
    return "interrupted";
  }
  if (verified.equal) {
    return fmt::format(
        "equal: {} ids and their logits are the resident run's, bit for bit (both in "
        "chunks of {} rows)",
        verified.compared_tokens,
        verified.chunk_rows);
  }
  return fmt::format("DIFFERENT from the resident run at generated token {}",
                     verified.first_difference);
}

// FNV-1a, 64 bits, over the bytes of every logit: two runs with the same hash had the same logits.
// Source of the constants: draft-eastlake-fnv, section 5.
std::string logits_hash(const std::vector<float>& logits) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(logits.data());
  for (std::size_t i = 0; i < logits.size() * sizeof(float); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3U;
  }
  return fmt::format("{:016x}", hash);
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
                     resident.logits.data() + at * vocabulary,
                     vocabulary * sizeof(float)) == 0) {
    ++at;
  }
  result.compared_tokens = count;
  result.first_difference = at;
  result.equal = !resident.interrupted && count != 0 && at == count &&
                 streamed.ids.size() == resident.ids.size() &&
                 streamed.plan.prefill_rows == resident.plan.prefill_rows;
  return result;
}

std::string generation_summary(const GenerationReport& report) {
  const GenerationResult& run = report.run;
  const Plan& plan = run.plan;
  std::string out;
  const auto line = [&out](std::string_view label, const std::string& text) {
    out += fmt::format("{:<11}{}\n", label, text);
  };
  out += run.interrupted ? "\ninterrupted at a commit\n" : "\n";
  line("ids", fmt::format("{}", fmt::join(run.ids, " ")));
  line("mode",
       fmt::format("{}, prefill in chunks of {} rows, plugin {}",
                   name(plan.mode),
                   plan.prefill_rows,
                   report.plugin));
  line("rate",
       fmt::format("prefill {:.1f} s; decode {:.1f} tok/s",
                   run.prefill_seconds,
                   per(static_cast<double>(run.decode_steps), run.decode_seconds)));
  line("pages",
       fmt::format("{} of {} resident; ring {} slots, tails {} slots of {} bytes",
                   resident_pages(plan),
                   total_pages(plan),
                   plan.ring_slots,
                   plan.tail_slots,
                   plan.slot_bytes));
  line("placement",
       report.calibration
           ? fmt::format("for a link of {:.2f} GB/s, {:.0f} ns a copy; attention of {:.2f} GB/s",
                         report.calibration->upload.bytes_s * 1e-9,
                         report.calibration->upload.copy_ns,
                         report.calibration->attend_bytes_s * 1e-9)
           : "by default values; `kvspan bench link` measures the link for --calibration FILE");
  line("streamed",
       fmt::format("{} a generated token ({} bytes); {} in all, {} of it tails again",
                   bytes_text(streamed_bytes_a_token(run)),
                   streamed_bytes_a_token(run),
                   bytes_text(run.counters.streamed_bytes + run.counters.refetched_tail_bytes),
                   bytes_text(run.counters.refetched_tail_bytes)));
  line("device",
       fmt::format("high-water {} bytes{}; host history {}",
                   run.counters.device_bytes_high_water,
                   report.arena_bytes == kWholeHistoryArena
                       ? std::string()
                       : fmt::format(" of an arena of {} bytes", report.arena_bytes),
                   bytes_text(run.counters.host_bytes)));
  if (report.verified) {
    line("verify", verification_text(*report.verified));
  }
  const std::string hint = advice(plan);
  return hint.empty() ? out : out + hint + "\n";
}

nlohmann::ordered_json generation_json(const GenerationReport& report) {
  const GenerationResult& run = report.run;
  const Counters& counters = run.counters;
  nlohmann::ordered_json out;
  out["schema"] = 1;
  out["plugin"] = report.plugin;
  out["text"] = report.text;
  out["ids"] = run.ids;
  out["logits_hash"] = logits_hash(run.logits);
  out["interrupted"] = run.interrupted;
  out["history_tokens"] = run.history_tokens;
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
  out["calibration"] = calibration_json(report.calibration);
  out["predicted_step_ns"] = run.plan.predicted.step_ns;
  out["streamed_bytes_a_token"] = streamed_bytes_a_token(run);
  out["streamed_bytes"] = counters.streamed_bytes;
  out["streamed_pages"] = counters.streamed_pages;
  out["refetched_tail_bytes"] = counters.refetched_tail_bytes;
  out["published_bytes"] = counters.published_bytes;
  out["prefill_seconds"] = run.prefill_seconds;
  out["decode_tokens_a_second"] = per(static_cast<double>(run.decode_steps), run.decode_seconds);
  if (report.verified) {
    out["verify"] = {{"equal", report.verified->equal},
                     {"interrupted", report.verified->interrupted},
                     {"compared_tokens", report.verified->compared_tokens},
                     {"first_difference", report.verified->first_difference},
                     {"chunk_rows", report.verified->chunk_rows}};
  }
  return out;
}

}  // namespace kvspan::host
