// SPDX-License-Identifier: Apache-2.0
// Read first: proof.hpp.
#include "proof.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace kvspan::cuda_proof {

namespace {

using cuda_bench::Failure;
using cuda_bench::take;

constexpr std::uint32_t kLayers = 3;
constexpr std::uint32_t kPages = 96;  // a layer; the page behind them is begun
constexpr std::uint64_t kAppended = 64;
constexpr std::uint32_t kPercents[] = {0, 10, 50, 90, 100};
constexpr std::uint32_t kWidths[] = {1, 5};

using Outputs = std::vector<std::vector<float>>;  // [width]

EngineCase engine_case(const Material& material, const Text& text) {
  EngineCase with;
  with.layers = kLayers;
  with.context_tokens = text.loaded_tokens + kAppended;
  with.prefill_rows = 16;
  // Room for every ring beside all pages: a gap of so many pages at a made-up rate.
  with.stream.link_bytes_s = 1'000'000'000;
  with.stream.gap_ns = 2ULL * kPages * material.pages().layout().page_bytes;
  return with;
}

// A step of every width, from the text's end each time.
Outputs steps(Engine& engine, SequenceId sequence, std::uint64_t begin) {
  Outputs out;
  for (const std::uint32_t rows : kWidths) {
    take(engine.session().truncate(sequence, begin), "truncating");
    take(engine.step(sequence, rows, Phase::decode), "a step");
    out.push_back(engine.outputs());
  }
  take(engine.session().truncate(sequence, begin), "truncating");
  return out;
}

class Comparing {
 public:
  Comparing(const Material& material, const Text& text, const Outputs& expected, Counts& out)
      : material_(material), text_(text), expected_(expected), out_(out) {}

  // Steps where the engine is now; their bytes and the pages that they streamed.
  void compare(Engine& engine, SequenceId sequence) {
    const Plan& plan = engine.session().plan();
    const std::string name = fmt::format("groups of {}, {} pages resident, a ring of {} slots",
                                         plan.group_pages,
                                         plan.resident_pages.front(),
                                         plan.ring_slots);
    const std::uint64_t before = engine.session().counters().streamed_pages;
    const std::uint64_t expected_pages = engine.pages_to_stream(sequence) * std::size(kWidths);
    const Outputs seen = steps(engine, sequence, text_.loaded_tokens);
    const std::uint64_t pages = engine.session().counters().streamed_pages - before;
    if (pages != expected_pages) {
      throw Failure(
          fmt::format("{}: {} pages streamed, {} are not resident", name, pages, expected_pages));
    }
    for (std::size_t width = 0; width < seen.size(); ++width) {
      const std::vector<float>& want = expected_[width];
      if (seen[width].size() != want.size() ||
          std::memcmp(seen[width].data(), want.data(), want.size() * sizeof(float)) != 0) {
        throw Failure(fmt::format("{}: other bits with {} rows", name, kWidths[width]));
      }
      add("bytes_compared", want.size() * sizeof(float));
    }
    add("streamed_pages", pages);
    const std::uint64_t of_layer = expected_pages / std::size(kWidths) / kLayers;
    add("rings_that_wrapped", of_layer > plan.ring_slots ? 1 : 0);
    add("rings_that_groups_do_not_divide", plan.ring_slots % plan.group_pages != 0 ? 1 : 0);
  }

  void add(const char* what, std::uint64_t more) {
    out_[what] = out_.value(what, std::uint64_t{0}) + more;
  }

 private:
  const Material& material_;
  Text text_;
  const Outputs& expected_;
  Counts& out_;
};

// Every size of a group, in one session that is placed anew.
void by_placing(const Rig& rig, const Material& material, const Text& text, Comparing& comparing) {
  EngineCase with = engine_case(material, text);
  with.moves = true;
  with.stream.group_pages = kGroupPagesMax;
  with.stream.resident_pages_max = kPages;
  Engine engine(rig, material, with);
  const SequenceId sequence = engine.add(text);
  for (std::uint32_t group = 1; group <= kGroupPagesMax; ++group) {
    for (const std::uint32_t percent : kPercents) {
      const std::uint32_t least = std::max(2U, group);
      for (const std::uint32_t ring : {least, 2 * group + 1, 3 * group - 1, kPages + group}) {
        Placement placement{std::max(least, ring), group, {}};
        placement.resident_pages.assign(kLayers, (kPages * percent + 50) / 100);
        take(engine.session().place(placement), "placing");
        comparing.compare(engine, sequence);
        comparing.add("placements", 1);
      }
    }
    comparing.add("group_sizes", 1);
  }
}

// What a plan makes of the stream's options, in sessions of their own.
void by_opening(const Rig& rig, const Material& material, const Text& text, Comparing& comparing) {
  for (const std::uint32_t group : {1U, 3U, 16U, 32U}) {
    for (const std::uint32_t percent : kPercents) {
      EngineCase with;
      with.layers = kLayers;
      with.context_tokens = text.loaded_tokens + kAppended;
      with.prefill_rows = 16;
      if (percent != 100) {
        with.stream.group_pages = group;
        with.stream.resident_pages_max = (kPages * percent + 50) / 100;
      }
      Engine engine(rig, material, with);
      comparing.compare(engine, engine.add(text));
      comparing.add("sessions_opened", 1);
    }
  }
}

}  // namespace

void prove_placement(const Asked& asked, Counts& out) {
  const Rig rig(asked.plugin);
  const Material material = Material::make(asked.small);
  const Text text{2, kPages * material.page_tokens() + material.page_tokens() / 3};
  out["compared"] = "memcmp of all outputs with the resident run, and pages counted";
  Outputs expected;
  {
    EngineCase resident;
    resident.layers = kLayers;
    resident.context_tokens = text.loaded_tokens + kAppended;
    resident.prefill_rows = 16;
    Engine engine(rig, material, resident);
    if (engine.session().plan().mode != PlanMode::resident) {
      throw Failure("the run to compare with is not resident");
    }
    expected = steps(engine, engine.add(text), text.loaded_tokens);
  }
  Comparing comparing(material, text, expected, out);
  by_placing(rig, material, text, comparing);
  by_opening(rig, material, text, comparing);
  if (out.value("rings_that_wrapped", 0U) == 0 ||
      out.value("rings_that_groups_do_not_divide", 0U) == 0) {
    throw Failure("no ring wrapped");
  }
}

}  // namespace kvspan::cuda_proof
