// SPDX-License-Identifier: Apache-2.0
// A step from outside: what it demands, beginning, fetching groups, committing, priming the next
// one.
#include "state.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {

namespace {

Error refuse(std::string message) {
  return Error{Errc::invalid_argument, std::move(message), 0, 0, 0, "session"};
}

}  // namespace

Result<void> SessionState::check_step(std::span<const StepRows> rows, Phase phase) const {
  if (rows.empty()) {
    return tl::unexpected(refuse("a step needs at least one sequence"));
  }
  const std::uint32_t most = phase_rows(phase);
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const StepRows& part = rows[index];
    const std::string who = "sequence " + std::to_string(part.sequence);
    if (part.sequence >= sequences.size() || !sequences[part.sequence].live) {
      return tl::unexpected(Error{Errc::not_found, "there is no " + who, 0, 0, 0, "session"});
    }
    for (std::size_t earlier = 0; earlier < index; ++earlier) {
      if (rows[earlier].sequence == part.sequence) {
        return tl::unexpected(refuse(who + " appears twice in one step"));
      }
    }
    if (part.rows == 0 || part.rows > most) {
      return tl::unexpected(refuse(who + " brings " + std::to_string(part.rows) + " rows, but a " +
                                   name(phase) + " step takes 1 to " + std::to_string(most)));
    }
    const std::uint64_t tokens = sequences[part.sequence].history.committed_tokens();
    const std::uint64_t needed = tokens + part.rows;
    if (needed > options.context_tokens) {
      return tl::unexpected(Error{Errc::too_large,
                                  who + " has " + std::to_string(tokens) +
                                      " tokens and cannot take " + std::to_string(part.rows) +
                                      " more: the context is " +
                                      std::to_string(options.context_tokens),
                                  needed,
                                  options.context_tokens,
                                  needed - options.context_tokens,
                                  "context"});
    }
  }
  return {};
}

// The first page that any row of a step sees: 0 without a window.
std::uint64_t SessionState::first_visible_page(std::size_t layer, std::uint64_t first_token) const {
  const std::uint64_t window = options.geometry.layers[layer].window_tokens;
  const std::uint64_t end = first_token + 1;
  return window == 0 || end <= window ? 0 : (end - window) / page_tokens();
}

// Complete pages behind the resident ones, layer by layer: what the ring carries. The begun page is
// a tail.
std::vector<PageGroup> SessionState::demanded(const std::vector<StepPart>& parts) const {
  std::vector<PageGroup> groups;
  for (std::uint32_t layer = 0; layer < plan.pages.size(); ++layer) {
    for (const StepPart& part : parts) {
      const std::uint64_t end = part.first_token / page_tokens();
      std::uint64_t page = std::max<std::uint64_t>(plan.resident_pages[layer],
                                                   first_visible_page(layer, part.first_token));
      while (page < end) {
        const auto pages =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(plan.group_pages, end - page));
        groups.push_back({part.sequence, layer, page, pages});
        page += pages;
      }
    }
  }
  return groups;
}

void SessionState::drop_primed() {
  counters.primed_pages_dropped += ring->taken();
  prefetch->cancel();
}

// A page's K and V are adjacent on both sides, padding included: one segment a page, one submit a
// group.
Result<std::uint64_t> SessionState::fetch(const PageGroup& group,
                                          const std::vector<std::uint32_t>& slots) {
  SequenceHistory& history = sequences[group.sequence].history;
  std::vector<kvspan_segment_t> segments;
  Waits waits;
  for (std::uint32_t index = 0; index < group.pages; ++index) {
    const std::uint64_t page = group.first_page + index;
    const HostPage source = host->page(history.block(page), group.layer);
    kvspan_segment_t segment{};
    segment.source = source.memory;
    segment.source_offset = source.offset;
    segment.target = parent;
    segment.target_offset = slots_lease.range().offset + slots[index] * plan.slot_bytes;
    segment.bytes = plan.pages[group.layer].page_bytes;
    segment.rows = 1;
    segments.push_back(segment);
    waits.moment.merge(history.hazard(group.layer, page).before_read());
    waits.moment.merge(ring->hazard(slots[index]).before_write());
  }
  auto value = copy(LaneId::upload, waits, segments);
  if (!value) {
    return tl::unexpected(std::move(value).error());
  }
  const Moment done = Moment::at(LaneId::upload, *value);
  for (std::uint32_t index = 0; index < group.pages; ++index) {
    history.hazard(group.layer, group.first_page + index).read.merge(done);
    ring->hazard(slots[index]) = Hazard{done, {}};
  }
  return value;
}

// Work behind earlier commits may have failed since: then those commits fell, and the engine must
// know before it hands in rows for positions that are not there any more.
Result<void> SessionState::check_health() {
  if (failed) {
    return recover();
  }
  if (lanes->cancel_requested()) {
    return tl::unexpected(fail_step(refuse("cancelled between steps")));
  }
  if (auto healthy = lanes->health(); !healthy) {
    Error error = fail_step(std::move(healthy).error());
    error.message += "; sequences fell back to their last complete commits, ask for their tokens";
    return tl::unexpected(std::move(error));
  }
  return {};
}

Result<void> Session::begin_step(std::span<const StepRows> rows, Phase phase) {
  SessionState& state = *state_;
  if (state.step) {
    return tl::unexpected(
        Error{Errc::busy, "a step is open already; commit or cancel it first", 0, 0, 0, "session"});
  }
  if (auto healthy = state.check_health(); !healthy) {
    return healthy;
  }
  if (auto checked = state.check_step(rows, phase); !checked) {
    return checked;
  }
  Moment reached;
  for (const LaneId lane : {LaneId::compute, LaneId::upload, LaneId::download}) {
    reached.merge(Moment::at(lane, state.lanes->reached(lane)));
  }
  Step step;
  step.phase = phase;
  std::uint32_t first_row = 0;
  for (const StepRows& part : rows) {
    SequenceHistory& history = state.sequences[part.sequence].history;
    history.prove(reached);
    const std::uint64_t tokens = history.committed_tokens();
    if (auto reserved = history.reserve(*state.host, tokens + part.rows); !reserved) {
      return reserved;
    }
    step.parts.push_back({part.sequence, part.rows, first_row, tokens});
    first_row += part.rows;
  }
  const std::uint32_t kept = state.ring->taken();
  state.prefetch->demand(state.demanded(step.parts));
  state.counters.primed_pages_dropped += kept - state.ring->taken();
  state.step = std::move(step);
  if (auto pumped = state.prefetch->pump(); !pumped) {
    return tl::unexpected(state.fail_step(std::move(pumped).error()));
  }
  return {};
}

Result<void> Session::commit(std::span<const std::uint32_t> accepted) {
  SessionState& state = *state_;
  const auto layers = static_cast<std::uint32_t>(state.plan.pages.size());
  if (!state.step || state.step->layers_attended != layers) {
    return tl::unexpected(refuse("commit follows the attend of every layer of an open step"));
  }
  Step& step = *state.step;
  if (accepted.size() != step.parts.size()) {
    return tl::unexpected(refuse("commit takes one count for each of the step's " +
                                 std::to_string(step.parts.size()) + " sequences"));
  }
  for (std::size_t index = 0; index < accepted.size(); ++index) {
    if (accepted[index] > step.parts[index].rows) {
      return tl::unexpected(refuse("sequence " + std::to_string(step.parts[index].sequence) +
                                   " wrote " + std::to_string(step.parts[index].rows) + " rows; " +
                                   std::to_string(accepted[index]) + " cannot be accepted"));
    }
  }
  const Moment published = Moment::at(LaneId::download, step.published);
  const std::uint64_t page = state.page_tokens();
  std::vector<StepPart> next = step.parts;
  for (std::size_t index = 0; index < accepted.size(); ++index) {
    SequenceHistory& history = state.sequences[step.parts[index].sequence].history;
    history.commit(accepted[index], published);
    const std::uint64_t tokens = history.committed_tokens();
    // Complete pages are fetched from now on like all others; pages of rejected rows hold nothing.
    state.tails->forget_before(step.parts[index].sequence, tokens / page);
    state.tails->forget(step.parts[index].sequence, (tokens + page - 1) / page);
    next[index].first_token = tokens;
  }
  state.tails->unpin_all();
  state.step.reset();
  ++state.counters.steps;
  // The next step most likely has the same sequences: its first groups start now, while the engine
  // does other work.
  state.prefetch->demand(state.demanded(next));
  // Priming is an extra: if it fails, so will the next step, which returns why.
  (void)state.prefetch->pump();
  return {};
}

}  // namespace kvspan
