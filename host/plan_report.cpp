// SPDX-License-Identifier: Apache-2.0
// Read first: plan_report.hpp.
#include "plan_report.hpp"

#include "amount.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>

namespace kvspan::host {

namespace {

std::uint64_t all_resident_pages(const Plan& plan) {
  return std::accumulate(plan.resident_pages.begin(), plan.resident_pages.end(), std::uint64_t{0});
}

nlohmann::ordered_json step_json(const Plan& plan) {
  nlohmann::ordered_json out;
  out["step_ns"] = plan.predicted.step_ns;
  out["link_ns"] = plan.predicted.link_ns;
  out["compute_ns"] = plan.predicted.compute_ns;
  out["streamed_bytes"] = plan.predicted.streamed_bytes;
  out["ring_pages"] = plan.ring_slots;
  out["resident_pages"] = plan.resident_pages;
  return out;
}

nlohmann::ordered_json ring_json(const RingNeed& ring) {
  nlohmann::ordered_json out;
  out["pages"] = ring.pages;
  out["gap_ns"] = ring.gap_ns;
  out["gap_pages"] = ring.gap_pages;
  out["attention_ns"] = ring.attention_ns;
  out["attention_pages"] = ring.attention_pages;
  out["jitter_pages"] = ring.jitter_pages;
  return out;
}

nlohmann::ordered_json prompt_json(const PromptPlan& prompt) {
  nlohmann::ordered_json out;
  out["chunks"] = prompt.time.chunks;
  out["time_ns"] = prompt.time.time_ns;
  out["work_ns"] = prompt.time.work_ns;
  out["link_ns"] = prompt.time.link_ns;
  out["up_bytes"] = prompt.time.up_bytes;
  out["down_bytes"] = prompt.time.down_bytes;
  out["ring_pages"] = prompt.placement.ring_slots;
  out["resident_pages"] = prompt.placement.resident_pages;
  out["as_placed"]["time_ns"] = prompt.as_placed.time_ns;
  out["as_placed"]["up_bytes"] = prompt.as_placed.up_bytes;
  out["limit"] = name(prompt.limit);
  out["why"] = prompt.why;
  return out;
}

// A whole prompt: what it moves and takes, and why its chunks are what they are.
std::string prompt_text(const PromptPlan& prompt) {
  if (prompt.time.chunks == 0) {
    return "";
  }
  const auto line = [](const char* label, const PromptTime& time) {
    return fmt::format(
        "{:<21}{} chunks, {} up and {} down, {:.3f} s; the link needs {:.3f} s, all "
        "other work {:.3f} s\n",
        label,
        time.chunks,
        bytes_text(time.up_bytes),
        bytes_text(time.down_bytes),
        time.time_ns * 1e-9,
        time.link_ns * 1e-9,
        time.work_ns * 1e-9);
  };
  return line("whole prompt", prompt.time) + line("  placed for decode", prompt.as_placed) +
         fmt::format("chunk                {}\n", prompt.why);
}

std::string bytes_line(const std::string& label, std::uint64_t size, const std::string& more) {
  return fmt::format("{:<21}{:>16} bytes ({}){}\n", label, size, bytes_text(size), more);
}

std::string step_line(const std::string& label, const Plan& plan) {
  return fmt::format("{:<21}{:.3f} ms a step, {:.2f} a second; {} pages of ring, {} resident, {}\n",
                     label,
                     plan.predicted.step_ns * 1e-6,
                     1e9 / plan.predicted.step_ns,
                     plan.ring_slots,
                     all_resident_pages(plan),
                     bytes_text(plan.predicted.streamed_bytes) + " streamed");
}

// What the ring is for, in pages. Where the other work rules the link rests anyway.
std::string ring_text(const PlanReport& report) {
  const Plan& plan = report.plan;
  const RingNeed& ring = report.ring;
  if (plan.predicted.link_ns <= plan.predicted.compute_ns) {
    return fmt::format(
        "The ring has {} pages in groups of {}: with more the other work would not wait less\n",
        plan.ring_slots,
        plan.group_pages);
  }
  return fmt::format(
      "The ring has {} pages in groups of {}. The link never rests with {}: two groups at least, "
      "or "
      "one and {} for the gap of {:.3f} ms, {} for {:.3f} ms of attention beside it, {} for "
      "jitter; "
      "{}\n",
      plan.ring_slots,
      plan.group_pages,
      ring.pages,
      ring.gap_pages,
      ring.gap_ns * 1e-6,
      ring.attention_pages,
      ring.attention_ns * 1e-6,
      ring.jitter_pages,
      plan.ring_slots < ring.pages ? "the others are worth more resident"
                                   : "what is left is better resident");
}

// Which of link and everything else rules, and what the ring is made of.
std::string why_text(const PlanReport& report) {
  const Plan& plan = report.plan;
  const StepTime& step = plan.predicted;
  if (plan.mode == PlanMode::resident) {
    return "why                  everything is resident: nothing streams\n";
  }
  const double most_ns = std::max(step.link_ns, step.compute_ns);
  std::string out = fmt::format(
      "why                  the link needs {:.3f} ms a step, all other work {:.3f} ms: the {} "
      "rules",
      step.link_ns * 1e-6,
      step.compute_ns * 1e-6,
      step.link_ns > step.compute_ns ? "link" : "other work");
  if (step.step_ns > 1.005 * most_ns) {
    out += fmt::format(
        ", and for {:.3f} ms each waits for the other: the arena has no room for a "
        "ring that covers the gaps",
        (step.step_ns - most_ns) * 1e-6);
  }
  out += ".\n                     " + ring_text(report);
  return out;
}

// Layers that are alike in everything that is printed, in a line; nothing where all are.
std::string layers_text(const Plan& plan) {
  const auto alike = [&plan](std::size_t a, std::size_t b) {
    return plan.pages[a].page_bytes == plan.pages[b].page_bytes &&
           plan.visible_pages[a] == plan.visible_pages[b] &&
           plan.resident_pages[a] == plan.resident_pages[b];
  };
  std::string out;
  std::size_t first = 0;
  for (std::size_t layer = 1; layer <= plan.pages.size(); ++layer) {
    if (layer != plan.pages.size() && alike(first, layer)) {
      continue;
    }
    out += fmt::format("  layers {:<12} pages of {} bytes, {} seen by a step, {} resident\n",
                       fmt::format("{}-{}", first, layer - 1),
                       plan.pages[first].page_bytes,
                       plan.visible_pages[first],
                       plan.resident_pages[first]);
    first = layer;
  }
  const bool one_line = std::count(out.begin(), out.end(), '\n') == 1;
  return one_line ? "" : out;
}

std::string policy_text(const PlanReport& report) {
  if (report.plan.predicted.step_ns == 0.0) {
    return "";
  }
  std::string out = step_line("predicted", report.plan) + why_text(report);
  if (report.overlap) {
    out += step_line("overlap rule", *report.overlap);
  }
  return out;
}

std::string headroom_text(const Headroom& spare) {
  if (spare.device_bytes == INT64_MAX) {
    return "";
  }
  return fmt::format("headroom             {:>16} bytes of device memory{}\n",
                     spare.device_bytes,
                     spare.warning()
                         ? " WARNING: the driver may move device memory to the host, which is slow "
                           "and no error; give a smaller arena or free some"
                         : "");
}

}  // namespace

nlohmann::ordered_json plan_json(const PlanReport& report) {
  const Plan& plan = report.plan;
  nlohmann::ordered_json out;
  out["mode"] = name(plan.mode);
  out["arena_bytes"] = plan.total_bytes();
  out["minimum_arena_bytes"] = plan.minimum_arena_bytes;
  out["host_bytes"] = plan.history_bytes;
  out["pinned_bytes"] = plan.pinned_bytes;
  out["prefill_rows"] = plan.prefill_rows;
  out["page_bytes"] = plan.pages.front().page_bytes;
  out["layer_page_bytes"] = nlohmann::ordered_json::array();
  for (const PageLayout& page : plan.pages) {
    out["layer_page_bytes"].push_back(page.page_bytes);
  }
  out["ring_pages"] = plan.ring_slots;
  out["tail_pages"] = plan.tail_slots;
  out["group_pages"] = plan.group_pages;
  out["resident_pages"] = plan.resident_pages;
  out["visible_pages"] = plan.visible_pages;
  out["pages_a_layer"] = plan.pages_a_sequence;
  for (const PhaseBudget& phase : plan.phases) {
    for (const PlanComponent& component : phase.components) {
      out["phases"][phase.name][component.name] = component.size_bytes;
    }
  }
  if (plan.predicted.step_ns != 0.0) {
    out["predicted"] = step_json(plan);
    out["ring_need"] = ring_json(report.ring);
  }
  if (plan.prompt.time.chunks != 0) {
    out["prompt"] = prompt_json(plan.prompt);
  }
  if (report.overlap) {
    out["overlap"] = step_json(*report.overlap);
  }
  if (!report.arena_rule.empty()) {
    out["arena_rule"] = report.arena_rule;
  }
  if (report.spare && report.spare->device_bytes != INT64_MAX) {
    out["headroom_bytes"] = report.spare->device_bytes;
    out["warning"] = report.spare->warning();
  }
  return out;
}

std::string plan_text(const PlanReport& report) {
  const Plan& plan = report.plan;
  std::string out = fmt::format("mode                 {}\n", name(plan.mode));
  out += bytes_line("minimum arena", plan.minimum_arena_bytes, "");
  out += bytes_line(report.minimum ? "this plan, minimum" : "this plan", plan.total_bytes(), "");
  if (!report.arena_rule.empty()) {
    out += fmt::format("arena rule           {}\n", report.arena_rule);
  }
  if (report.spare) {
    out += headroom_text(*report.spare);
  }
  out += bytes_line("host history", plan.history_bytes, "");
  out += bytes_line("pinned for it",
                    plan.pinned_bytes,
                    fmt::format(", {} at a time", bytes_text(plan.pinned_chunk_bytes)));
  out += fmt::format("prefill chunk        {:>16} rows\n", plan.prefill_rows);
  out += fmt::format(
      "pages                {} resident + {} ring + {} tail slots; a sequence has {} a layer\n",
      all_resident_pages(plan),
      plan.ring_slots,
      plan.tail_slots,
      plan.pages_a_sequence);
  out += layers_text(plan);
  out += policy_text(report);
  out += prompt_text(plan.prompt);
  for (const PhaseBudget& phase : plan.phases) {
    out += fmt::format("{:<20} {:>16} bytes needed\n", phase.name, phase.needed_bytes());
    for (const PlanComponent& component : phase.components) {
      if (component.size_bytes != 0) {
        out += fmt::format("  {:<18} {:>16} bytes\n", component.name, component.size_bytes);
      }
    }
  }
  return out;
}

}  // namespace kvspan::host
