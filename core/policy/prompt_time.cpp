// SPDX-License-Identifier: Apache-2.0
// predict_prompt(): a step of the cost model for each chunk. A chunk that the link delays adds what
// it waits; the work itself is summed without the chunks, so that widths compare exactly.
#include "kvspan/core/policy/prompt_time.hpp"

#include "kvspan/core/policy/step_time.hpp"

#include <algorithm>
#include <utility>

namespace kvspan {

namespace {

constexpr std::uint64_t kCountedChunks = 65536;
constexpr std::uint64_t kTimedChunks = 32;

// A wait below this part of a chunk's work is rounding.
constexpr double kRounding = 1e-9;

// Complete pages [begin, end) of a layer that rows behind `tokens` tokens see.
struct Seen {
  std::uint64_t begin;
  std::uint64_t end;
};

Seen seen(const PromptLoad& load, std::size_t layer, std::uint64_t tokens) {
  const std::uint64_t window = load.layers[layer].window_tokens;
  const std::uint64_t end = tokens / load.page_tokens;
  const std::uint64_t first =
      window == 0 || tokens + 1 <= window ? 0 : (tokens + 1 - window) / load.page_tokens;
  return {std::min(first, end), end};
}

// Of one sequence's chunk behind `tokens` tokens.
std::uint64_t chunk_pages(const PromptLoad& load,
                          const Placement& placement,
                          std::size_t layer,
                          std::uint64_t tokens) {
  const std::uint64_t rolling = load.layers[layer].rolling_pages;
  if (rolling != 0 && placement.resident_pages[layer] >= rolling) {
    return 0;
  }
  const Seen pages = seen(load, layer, tokens);
  return pages.end - std::min(pages.end, std::max(pages.begin, placement.resident_pages[layer]));
}

double token_bytes(const PromptLoad& load, std::size_t layer) {
  return static_cast<double>(load.layers[layer].page_bytes) / static_cast<double>(load.page_tokens);
}

double attend_ns(const PromptLoad& load, double row_bytes) {
  return load.row_bytes_s == 0.0 ? 0.0 : row_bytes / load.row_bytes_s * 1e9;
}

// Tokens that the rows of a prompt see together, all of them or those of the last window.
double seen_by_rows(const PromptLoad& load, std::size_t layer) {
  const auto tokens = static_cast<double>(load.tokens);
  const std::uint64_t window = load.layers[layer].window_tokens;
  if (window == 0 || window >= load.tokens) {
    return tokens * (tokens + 1.0) / 2.0;
  }
  const auto width = static_cast<double>(window);
  return width * (width + 1.0) / 2.0 + (tokens - width) * width;
}

double work_of(const PromptLoad& load) {
  double row_bytes = 0.0;
  for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
    row_bytes += seen_by_rows(load, layer) * token_bytes(load, layer);
  }
  return load.sequences *
         (attend_ns(load, row_bytes) + static_cast<double>(load.tokens) * load.row_ns);
}

// A chunk of `rows` rows as a step. What a row sees of its own chunk and of the begun page is on
// the device and attended with the ring closed: it counts into the gap. Residents that a sliding
// window still sees count as streamed here.
StepTime chunk_step(const PromptLoad& load,
                    const Placement& placement,
                    std::uint64_t rows,
                    std::uint64_t tokens) {
  StepLoad step;
  Placement kept{placement.ring_slots, placement.group_pages, {}};
  const auto row_count = static_cast<double>(rows);
  const double own_tokens =
      (row_count + 1.0) / 2.0 + static_cast<double>(tokens % load.page_tokens);
  for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
    const Seen pages = seen(load, layer, tokens);
    const bool streams = chunk_pages(load, placement, layer, tokens) != 0;
    LayerLoad of;
    of.page_bytes = load.layers[layer].page_bytes;
    of.window_pages = pages.begin == 0 ? 0 : std::max<std::uint64_t>(pages.end - pages.begin, 1);
    of.attend_page_ns = attend_ns(load, row_count * static_cast<double>(of.page_bytes));
    of.gap_ns = load.sequences * row_count *
                (load.row_ns / static_cast<double>(load.layers.size()) +
                 attend_ns(load, own_tokens * token_bytes(load, layer)));
    kept.resident_pages.push_back(streams ? placement.resident_pages[layer] : pages.end);
    step.layers.push_back(of);
  }
  step.sequence_pages.assign(load.sequences, tokens / load.page_tokens);
  step.sequences_max = load.sequences;
  step.link = load.link;
  step.jitter_ns = load.jitter_ns;
  step.wave_ns = load.wave_ns;
  return predict(step, kept);
}

// Of the chunk behind `tokens` tokens, of all sequences and layers.
double waves_ns(const PromptLoad& load, const Placement& placement, std::uint64_t tokens) {
  const std::uint64_t group = std::max(placement.group_pages, 1U);
  std::uint64_t waves = 0;
  for (std::size_t layer = 0; layer < load.layers.size() && load.wave_ns != 0.0; ++layer) {
    const std::uint64_t pages = load.sequences * chunk_pages(load, placement, layer, tokens);
    waves += (pages + group - 1) / group;
  }
  return static_cast<double>(waves) * load.wave_ns;
}

// Calls visit(first token, chunks that this one stands for): all of `chunks`, or `most` of them
// spread evenly.
template <class Visit>
void visit_chunks(std::uint64_t chunks,
                  std::uint64_t rows,
                  std::uint64_t most,
                  const Visit& visit) {
  const std::uint64_t count = std::min(chunks, most);
  if (count == 0) {
    return;
  }
  const double each = static_cast<double>(chunks) / static_cast<double>(count);
  for (std::uint64_t index = 0; index < count; ++index) {
    const std::uint64_t chunk =
        count == chunks
            ? index
            : std::min(chunks - 1,
                       static_cast<std::uint64_t>((static_cast<double>(index) + 0.5) * each));
    visit(chunk * rows, each);
  }
}

// Of estimates that may pass 64 bits: the largest number then.
std::uint64_t added(std::uint64_t bytes, double more) {
  constexpr double kMost = 9e18;
  return static_cast<std::uint64_t>(std::min(kMost, static_cast<double>(bytes) + more));
}

void count_traffic(const PromptLoad& load,
                   const Placement& placement,
                   std::uint32_t rows,
                   PromptTime& out) {
  const std::uint32_t group = std::max(placement.group_pages, 1U);
  const std::uint64_t pages = (load.tokens + load.page_tokens - 1) / load.page_tokens;
  std::uint64_t counted = 0;  // of the last layer that was counted
  double each = 1.0;
  for (std::size_t layer = 0; layer < load.layers.size(); ++layer) {
    const std::uint64_t page_bytes = load.layers[layer].page_bytes;
    const bool counted_already =
        layer != 0 && load.layers[layer].window_tokens == load.layers[layer - 1].window_tokens &&
        placement.resident_pages[layer] == placement.resident_pages[layer - 1];
    counted = counted_already ? counted : 0;
    visit_chunks(counted_already ? 0 : out.chunks,
                 rows,
                 kCountedChunks,
                 [&](std::uint64_t tokens, double stands_for) {
                   counted += chunk_pages(load, placement, layer, tokens);
                   each = stands_for;
                 });
    const double streamed = load.sequences * static_cast<double>(counted) * each;
    out.up_bytes = out.chunks <= kCountedChunks
                       ? out.up_bytes + load.sequences * counted * page_bytes
                       : added(out.up_bytes, streamed * static_cast<double>(page_bytes));
    out.down_bytes += load.sequences * pages * page_bytes;
    out.link_ns += streamed * link_page_ns(load.link, page_bytes, group);
  }
}

// Rings in groups: two at least, and a third that comes while the ring is closed; more where rows
// keep it closed for long. Nothing tried here depends on the pool, so that a larger one has every
// placement of a smaller one, with at least its residents.
constexpr std::uint32_t kRingGroups[] = {2, 3, 4, 6, 10, 20, 50};

// Numbers of layers that stream are tried in this many steps; the others are wholly resident.
constexpr std::size_t kSpilledSteps = 4;

// The history at its end, for resident_runs().
StepLoad whole_history(const PromptLoad& load, std::uint32_t rows) {
  StepLoad out;
  const std::uint64_t pages = (load.tokens + load.page_tokens - 1) / load.page_tokens;
  for (const PromptLayer& layer : load.layers) {
    LayerLoad of;
    of.page_bytes = layer.page_bytes;
    if (layer.window_tokens != 0 && layer.window_tokens < load.tokens) {
      of.window_pages =
          (layer.window_tokens + rows - 2 + load.page_tokens - 1) / load.page_tokens + 1;
    }
    of.rolling_pages = layer.rolling_pages;
    out.layers.push_back(of);
  }
  out.sequence_pages.assign(load.sequences, pages);
  out.sequences_max = load.sequences;
  return out;
}

// No placement of the pool takes less: every page that could be resident is, and each chunk lasts
// as long as its link or its work. Where residents are dealt out otherwise, less than a page a
// layer is left over.
double least_ns(const PromptLoad& load,
                const Pool& pool,
                std::uint32_t rows,
                const StepLoad& history) {
  const std::size_t layers = load.layers.size();
  const Placement all{2,
                      kPromptGroupMax,
                      resident_runs(history,
                                    std::vector<bool>(layers, true),
                                    pool.bytes + layers * load.sequences * pool.slot_bytes)};
  double more_ns = 0.0;
  const std::uint64_t chunks = (load.tokens + rows - 1) / rows;
  visit_chunks(chunks, rows, kTimedChunks, [&](std::uint64_t tokens, double stands_for) {
    const std::uint64_t taken = std::min<std::uint64_t>(rows, load.tokens - tokens);
    const StepTime step = chunk_step(load, all, taken, tokens);
    const double wait_ns = std::max(0.0, step.link_ns - step.compute_ns * (1.0 + kRounding));
    more_ns += stands_for * (waves_ns(load, all, tokens) + wait_ns);
  });
  return work_of(load) + more_ns;
}

// Tries placements of one pool.
class Tries {
 public:
  Tries(const PromptLoad& load, const Pool& pool, std::uint32_t rows)
      : load_(load), pool_(pool), rows_(rows), history_(whole_history(load, rows)) {}

  [[nodiscard]] const StepLoad& history() const { return history_; }

  void look() {
    for (std::uint32_t group = kPromptGroupMax; group >= 1; group /= 2) {
      for (const std::uint32_t groups : kRingGroups) {
        const std::uint32_t slots = groups * group;
        for (std::size_t step = kSpilledSteps; step >= 1; --step) {
          if (best && best->time.covered() && load_.wave_ns == 0.0) {
            return;
          }
          consider(group, slots, step);
        }
      }
    }
  }

  std::optional<PromptPlacement> best;

 private:
  void consider(std::uint32_t group, std::uint32_t slots, std::size_t step) {
    if (pool_.bytes / pool_.slot_bytes < slots) {
      return;
    }
    const std::size_t layers = load_.layers.size();
    const std::size_t spilled = (step * layers + kSpilledSteps - 1) / kSpilledSteps;
    Placement placement{
        slots,
        group,
        resident_runs(
            history_, spaced_layers(layers, spilled), pool_.bytes - slots * pool_.slot_bytes)};
    if (placement.resident_pages.empty()) {
      return;
    }
    const PromptTime time = predict_prompt(load_, placement, rows_);
    if (!best || time.time_ns < best->time.time_ns) {
      best = PromptPlacement{std::move(placement), time};
    }
  }

  const PromptLoad& load_;
  const Pool& pool_;
  std::uint32_t rows_;
  StepLoad history_;
};

}  // namespace

std::optional<PromptPlacement> best_prompt_placement(const PromptLoad& load,
                                                     const Pool& pool,
                                                     std::uint32_t rows,
                                                     double most_ns) {
  Tries tries(load, pool, rows);
  if (least_ns(load, pool, rows, tries.history()) > most_ns) {
    return std::nullopt;
  }
  tries.look();
  return tries.best && tries.best->time.time_ns <= most_ns ? std::move(tries.best) : std::nullopt;
}

PromptTime predict_prompt(const PromptLoad& load, const Placement& placement, std::uint32_t rows) {
  PromptTime out;
  out.chunks = (load.tokens + rows - 1) / rows;
  out.work_ns = work_of(load);
  count_traffic(load, placement, rows, out);
  double waits_ns = 0.0;
  visit_chunks(out.chunks, rows, kTimedChunks, [&](std::uint64_t tokens, double stands_for) {
    const std::uint64_t taken = std::min<std::uint64_t>(rows, load.tokens - tokens);
    const StepTime step = chunk_step(load, placement, taken, tokens);
    const double wait_ns = step.step_ns - step.compute_ns;
    waits_ns += wait_ns > kRounding * step.compute_ns ? stands_for * wait_ns : 0.0;
    out.waves_ns += stands_for * waves_ns(load, placement, tokens);
  });
  const std::uint64_t whole = std::max<std::uint64_t>(load.tokens / rows, 1);
  const StepTime last =
      chunk_step(load, placement, std::min<std::uint64_t>(rows, load.tokens), (whole - 1) * rows);
  out.last_link_ns = last.link_ns;
  out.last_work_ns = last.compute_ns;
  out.time_ns = std::max(out.work_ns + out.waves_ns + waits_ns, out.link_ns);
  return out;
}

}  // namespace kvspan
