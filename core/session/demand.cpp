// SPDX-License-Identifier: Apache-2.0
// What the ring carries for a step: which pages, in which order, in which groups. Not here:
// fetching them (step.cpp).
#include "state.hpp"

#include <algorithm>
#include <utility>

namespace kvspan {

namespace {

// Splits that a group of decode feeds at least. Of each it brings neighbours, which lie behind each
// other on the host mostly, and in the ring: one entry of a copy, and entries are what a copy costs
// the host. Fewer splits would keep too few blocks busy in a wave. Prefill has few splits: there a
// group takes as many pages of each as of the others, which come to be neighbours anyhow.
constexpr std::uint32_t kSplitsAGroup = 8;

// Neighbours of a split that a group brings.
std::uint32_t run_of(std::uint32_t group_pages) {
  return std::max(group_pages / kSplitsAGroup, 1U);
}

// Rows times splits that a group of prefill feeds. Wide chunks keep a device busy with few splits,
// and a wave reads and writes the states of each that it feeds: the fewer, the longer it walks for
// that. 2,048 rows of geometry A are 384 blocks a split, three for each multiprocessor of the card
// that this was measured on.
constexpr std::uint32_t kRowsAGroup = 2048;

std::uint32_t splits_at_once(std::uint32_t rows) {
  return std::max(kRowsAGroup / std::max(rows, 1U), 1U);
}

// Units of each group. Prefill's are alike, the larger ones first: behind a small last one, which
// takes nearly as long as a large one, the next group's copy would wait for the slots of the one
// before it, while the link rests. In decode a wave is short beside its copy, and groups alike
// measured worse behind long gaps (docs/measuring).
std::vector<std::size_t> group_sizes(std::size_t units, std::uint32_t most, Phase phase) {
  const std::size_t count = (units + most - 1) / most;
  std::vector<std::size_t> sizes(count, most);
  if (phase == Phase::prefill) {
    for (std::size_t group = 0; group < count; ++group) {
      sizes[group] = units / count + (group < units % count ? 1 : 0);
    }
  } else if (count != 0) {
    sizes.back() = units - (count - 1) * most;
  }
  return sizes;
}

// Those of each split ascend, and so do those of a group, so that neighbours are one entry of a
// copy.
void put_in_order(std::vector<PageUnit>& group) {
  std::sort(group.begin(), group.end(), [](const PageUnit& a, const PageUnit& b) {
    return a.page != b.page ? a.page < b.page : a.first_row < b.first_row;
  });
}

}  // namespace

// The first token that any row of a step sees: 0 without a window.
std::uint64_t SessionState::first_visible_token(std::size_t layer,
                                                std::uint64_t first_token) const {
  const std::uint64_t window = options.geometry.layers[layer].window_tokens;
  const std::uint64_t end = first_token + 1;
  return window == 0 || end <= window ? 0 : end - window;
}

std::uint64_t SessionState::first_visible_page(std::size_t layer, std::uint64_t first_token) const {
  return first_visible_token(layer, first_token) / page_tokens();
}

// The part's rows by their split length in this layer.
std::vector<RowGroup> SessionState::groups_of(std::uint32_t layer,
                                              const StepPart& part,
                                              Phase phase) const {
  const kvspan_attention_caps_t& caps = asked(layer, phase).caps;
  return row_groups({part.first_token,
                     part.rows,
                     options.geometry.layers[layer].window_tokens,
                     caps.split_count,
                     caps.span_granule,
                     phase == Phase::decode ? caps.span_granule : page_tokens()});
}

// S of the part's rows in this layer where pages are fetched round robin over the splits; 0 where
// one page after another is right: rows with different S would need different orders, and splits
// that cannot all be open are walked in turn.
std::uint64_t SessionState::order_split_tokens(std::uint32_t layer,
                                               const StepPart& part,
                                               Phase phase) const {
  const std::uint32_t in_flight =
      phase == Phase::decode ? plan.decode_splits_in_flight : plan.prefill_splits_in_flight;
  if (in_flight < 2) {
    return 0;
  }
  const std::vector<RowGroup> groups = groups_of(layer, part, phase);
  return groups.size() == 1 && split_count(groups.front()) <= in_flight
             ? groups.front().split_tokens
             : 0;
}

// Pages of a copy, of a part that has so many. One that the ring holds twice is attended in one
// submit when the last of it is there (fits_at_once()): then nobody waits for a first group, and
// each copy takes the host as long as a larger one, with an engine waiting behind it.
std::uint32_t SessionState::copied_pages(std::size_t units) const {
  return (units <= pages_at_once(plan) ? kAtOnceGroups : 1) * plan.group_pages;
}

// What the ring carries, layer by layer, for steps of these parts: complete pages that are not
// resident. Up to the end of the part that brings the `enough`th unit.
std::vector<PageGroup> SessionState::demanded(const std::vector<StepPart>& parts,
                                              Phase phase,
                                              std::size_t enough) const {
  std::vector<PageGroup> groups;
  std::size_t count = 0;
  for (std::uint32_t layer = 0; layer < plan.pages.size(); ++layer) {
    for (const StepPart& part : parts) {
      if (count >= enough) {
        return groups;
      }
      const PageRange pages = streamed_pages(layer, part);
      const std::uint64_t complete = std::min(pages.end, part.complete_tokens / page_tokens());
      const std::vector<PageUnit> units =
          page_order({pages.begin,
                      std::max(pages.begin, complete),
                      page_tokens(),
                      order_split_tokens(layer, part, phase),
                      first_visible_token(layer, part.first_token),
                      phase == Phase::decode ? run_of(plan.group_pages) : 1,
                      phase == Phase::decode ? 0 : splits_at_once(part.rows)});
      count += units.size();
      auto from = units.begin();
      for (const std::size_t size : group_sizes(units.size(), copied_pages(units.size()), phase)) {
        const auto end = from + static_cast<std::ptrdiff_t>(size);
        groups.push_back({part.sequence, layer, end == units.end(), {from, end}});
        from = end;
        if (phase == Phase::prefill) {
          put_in_order(groups.back().units);
        }
      }
    }
  }
  return groups;
}

// The first groups of the step after this one, as far as they fit the ring and hold nothing that
// this step writes: most likely it has the same sequences, whose rows are all accepted. A group
// that this step's pages join is left to commit(): fetched without them it would be fetched again.
std::vector<PageGroup> SessionState::demanded_next(const Step& of) const {
  std::vector<StepPart> parts = of.parts;
  std::vector<std::uint64_t> known_pages(sequences.size(), 0);
  for (StepPart& part : parts) {
    known_pages[part.sequence] = part.complete_tokens / page_tokens();
    part.complete_tokens = part.first_token += part.rows;
  }
  std::vector<PageGroup> groups = demanded(parts, of.phase, ring->count());
  const auto joined = std::find_if(groups.begin(), groups.end(), [&](const PageGroup& group) {
    return std::any_of(group.units.begin(), group.units.end(), [&](const PageUnit& unit) {
      return unit.page >= known_pages[group.sequence];
    });
  });
  groups.erase(joined, groups.end());
  std::size_t units = 0;
  std::size_t kept = 0;
  while (kept < groups.size() && units < ring->count()) {
    units += groups[kept++].units.size();
  }
  groups.resize(kept);
  return groups;
}

}  // namespace kvspan
