// SPDX-License-Identifier: Apache-2.0
// predict(): one number is carried from layer to layer, how far the link is ahead of attention.
#include "kvspan/core/policy/step_time.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvspan {

namespace {

// A layer in the model's terms.
struct Stage {
  double closed_ns = 0.0;       // nobody takes pages from the ring: the gap, what is resident
  double open_ns = 0.0;         // attention of the streamed pages, were they all there
  double link_ns = 0.0;         // of the streamed pages
  double first_group_ns = 0.0;  // of the link, until attention of streamed pages can begin
  double last_wave_ns = 0.0;    // attention of the last group, after its last page came
  std::uint64_t pages = 0;      // streamed
  double ahead_most_ns = 0.0;   // link time of the pages from here on that the ring holds
};

// A cycle that begins with the link this far ahead; `waited` says whether attention ever did.
struct Cycle {
  double step_ns = 0.0;
  double ahead_ns = 0.0;
  bool waited = false;
};

Cycle run_cycle(const std::vector<Stage>& stages, double ahead_ns) {
  Cycle out{0.0, ahead_ns, false};
  for (std::size_t index = 0; index < stages.size(); ++index) {
    const Stage& stage = stages[index];
    const Stage& next = stages[(index + 1) % stages.size()];
    const double before = std::min(stage.ahead_most_ns, out.ahead_ns + stage.closed_ns);
    const double missing = stage.link_ns - before;
    // Copies and waves overlap group by group: either the last wave follows the last copy, or all
    // waves follow the first copy.
    const double first_missing = std::max(0.0, stage.first_group_ns - before);
    const double late =
        missing > 0.0 ? std::max(missing + stage.last_wave_ns, first_missing + stage.open_ns) : 0.0;
    const bool waits = late > stage.open_ns;
    const double lasts = waits ? late : stage.open_ns;
    out.step_ns += stage.closed_ns + lasts;
    out.ahead_ns = std::min(next.ahead_most_ns, lasts - missing);
    out.waited = out.waited || waits;
  }
  return out;
}

// Equal steps in a steady state. From a link that is not ahead the state only rises from cycle to
// cycle, and a wait fixes it for all that follows, so that it settles after a cycle a layer at
// most.
double steady_ns(const std::vector<Stage>& stages) {
  Cycle cycle{0.0, 0.0, false};
  for (std::size_t round = 0; round <= stages.size() + 1; ++round) {
    const double began_ns = cycle.ahead_ns;
    cycle = run_cycle(stages, began_ns);
    if (!cycle.waited || cycle.ahead_ns == began_ns) {
      break;
    }
  }
  return cycle.step_ns;
}

// Link time of the next `slots` pages from each layer on, at most those of a step: a window over
// the layers, once around, whose end only moves forward.
void set_ahead(std::vector<Stage>& stages, std::uint64_t slots) {
  const std::size_t layers = stages.size();
  std::uint64_t step_pages = 0;
  double step_link_ns = 0.0;
  for (const Stage& stage : stages) {
    step_pages += stage.pages;
    step_link_ns += stage.link_ns;
  }
  std::uint64_t inside = 0;  // pages of the layers [first, end)
  double inside_ns = 0.0;
  std::size_t end = 0;
  for (std::size_t first = 0; first < layers; ++first) {
    while (end < first + layers && inside + stages[end % layers].pages <= slots) {
      inside += stages[end % layers].pages;
      inside_ns += stages[end % layers].link_ns;
      ++end;
    }
    Stage& stage = stages[first];
    if (slots >= step_pages) {
      stage.ahead_most_ns = step_link_ns;
    } else {
      const Stage& cut = stages[end % layers];  // has more pages than there are slots left
      stage.ahead_most_ns = inside_ns + cut.link_ns * static_cast<double>(slots - inside) /
                                            static_cast<double>(cut.pages);
    }
    if (end == first) {
      ++end;
    } else {
      inside -= stage.pages;
      inside_ns = inside == 0 ? 0.0 : inside_ns - stage.link_ns;
    }
  }
}

std::uint64_t groups_of(std::uint64_t pages, std::uint32_t group_pages) {
  return (pages + group_pages - 1) / group_pages;
}

// Pages that the link brings in a time, rounded up; what only rounding adds is none.
std::uint64_t pages_in(double time_ns, double page_ns) {
  const double pages = std::min(time_ns / page_ns, static_cast<double>(UINT32_MAX));
  return static_cast<std::uint64_t>(std::ceil(pages * (1.0 - kSameTime)));
}

// What a layer streams, and how.
struct Stream {
  std::uint64_t pages;
  std::uint32_t group;
  double fastest_page_ns;  // of any layer
};

// Resident pages are attended first, with the ring closed. Where attention of a page takes longer
// than the link's, only as long as the link's counts as closed: that is exact where the link is the
// slower one, and keeps a page that becomes resident from ever costing more than it saves.
Stage stage_of(const StepLoad& load, const LayerLoad& layer, const Stream& stream) {
  std::uint64_t visible = 0;
  for (const std::uint64_t pages : load.sequence_pages) {
    visible += visible_of(layer, pages);
  }
  const auto resident = static_cast<double>(visible - stream.pages);
  const auto streamed = static_cast<double>(stream.pages);
  const double page_ns = link_page_ns(load.link, layer.page_bytes, stream.group);
  const double closed_page_ns = std::min(layer.attend_page_ns, stream.fastest_page_ns);
  Stage stage;
  stage.pages = stream.pages;
  stage.closed_ns = layer.gap_ns + resident * closed_page_ns;
  stage.open_ns = streamed * layer.attend_page_ns +
                  resident * (layer.attend_page_ns - closed_page_ns) +
                  static_cast<double>(groups_of(stream.pages, stream.group)) * load.wave_ns;
  stage.link_ns = streamed * page_ns;
  if (stream.pages != 0) {
    const auto first = static_cast<double>(std::min<std::uint64_t>(stream.group, stream.pages));
    stage.first_group_ns = first * page_ns;
    stage.last_wave_ns = load.wave_ns + first * layer.attend_page_ns;
  }
  return stage;
}

double fastest_page(const StepLoad& load, std::uint32_t group) {
  double page_ns = link_page_ns(load.link, load.layers.front().page_bytes, group);
  for (const LayerLoad& layer : load.layers) {
    page_ns = std::min(page_ns, link_page_ns(load.link, layer.page_bytes, group));
  }
  return page_ns;
}

std::vector<Stage> stages_of(const StepLoad& load,
                             const Placement& placement,
                             std::uint32_t group) {
  std::vector<Stage> stages;
  stages.reserve(load.layers.size());
  const double fastest_page_ns = fastest_page(load, group);
  for (std::size_t index = 0; index < load.layers.size(); ++index) {
    const std::uint64_t streamed = streamed_pages(load, placement, index);
    stages.push_back(stage_of(load, load.layers[index], {streamed, group, fastest_page_ns}));
  }
  return stages;
}

}  // namespace

double link_page_ns(const Link& link, std::uint64_t page_bytes, std::uint32_t group_pages) {
  return link.copy_ns / group_pages + static_cast<double>(page_bytes) / link.bytes_s * 1e9;
}

StepTime predict(const StepLoad& load, const Placement& placement) {
  StepTime out;
  const std::uint32_t group = std::max(placement.group_pages, 1U);
  std::vector<Stage> stages = stages_of(load, placement, group);
  for (std::size_t index = 0; index < stages.size(); ++index) {
    out.streamed_bytes += stages[index].pages * load.layers[index].page_bytes;
    out.link_ns += stages[index].link_ns;
    out.compute_ns += stages[index].closed_ns + stages[index].open_ns;
  }
  // A group is read while the link goes on. The second one that a ring has is part of what the link
  // fills while nobody takes pages: a replay of every group says so (docs/adr/0022).
  const std::uint64_t kept = group + pages_in(load.jitter_ns, fastest_page(load, group));
  const std::uint64_t slots = placement.ring_slots;
  set_ahead(stages, slots - std::min(slots, kept));
  for (const Stage& stage : stages) {
    out.ahead_ns = std::max(out.ahead_ns, stage.ahead_most_ns);
  }
  out.step_ns = out.streamed_bytes == 0 ? out.compute_ns : steady_ns(stages);
  // The sum of a cycle's parts rounds otherwise than the sums above.
  out.step_ns = std::max({out.step_ns, out.link_ns, out.compute_ns});
  return out;
}

RingNeed ring_need(const StepLoad& load, const Placement& placement) {
  const std::uint32_t group = std::max(placement.group_pages, 1U);
  const std::vector<Stage> stages = stages_of(load, placement, group);
  RingNeed worst;
  double page_ns = std::numeric_limits<double>::infinity();  // of layers that stream
  for (std::size_t first = 0; first < stages.size(); ++first) {
    const Stage& waits = stages[first];
    if (waits.pages == 0) {
      continue;
    }
    page_ns = std::min(page_ns, link_page_ns(load.link, load.layers[first].page_bytes, group));
    // Behind the wait the link is ahead by the last wave, or by all that followed the first group.
    RingNeed need;
    need.attention_ns =
        std::max(waits.last_wave_ns, waits.first_group_ns + waits.open_ns - waits.link_ns);
    for (std::size_t further = 1; further <= stages.size(); ++further) {
      const std::size_t index = (first + further) % stages.size();
      const Stage& stage = stages[index];
      need.gap_ns += load.layers[index].gap_ns;
      need.attention_ns += stage.closed_ns - load.layers[index].gap_ns;
      if (stage.pages != 0 && need.time_ns() > worst.time_ns()) {
        worst = need;
      }
      need.attention_ns += stage.open_ns - stage.link_ns;
    }
  }
  if (!std::isinf(page_ns)) {
    const std::uint64_t idle_pages = pages_in(worst.time_ns(), page_ns);
    worst.gap_pages = pages_in(worst.gap_ns, page_ns);
    worst.attention_pages =
        static_cast<std::int64_t>(idle_pages) - static_cast<std::int64_t>(worst.gap_pages);
    worst.jitter_pages = pages_in(load.jitter_ns, fastest_page(load, group));
    worst.pages = std::max<std::uint64_t>(2ULL * group, group + idle_pages + worst.jitter_pages);
  }
  return worst;
}

}  // namespace kvspan
