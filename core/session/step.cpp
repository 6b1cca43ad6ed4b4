// SPDX-License-Identifier: Apache-2.0
// A step from outside: beginning, fetching groups, committing, priming the next one. Not here: what
// it demands (demand.cpp).
#include "byte_runs.hpp"
#include "calls.hpp"
#include "memory/guarded_call.hpp"
#include "state.hpp"
#include "turns.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

namespace kvspan {

namespace {

// One segment more, or a longer one where it goes on behind the last.
void add_segment(std::vector<kvspan_segment_t>& segments, const kvspan_segment_t& next) {
  if (!segments.empty() && next.rows == 1) {
    kvspan_segment_t& last = segments.back();
    if (last.rows == 1 && last.source == next.source && last.target == next.target &&
        last.source_offset + last.bytes == next.source_offset &&
        last.target_offset + last.bytes == next.target_offset) {
      last.bytes += next.bytes;
      return;
    }
  }
  segments.push_back(next);
}

std::uint32_t most_rows(std::span<const StepRows> rows) {
  std::uint32_t most = 0;
  for (const StepRows& part : rows) {
    most = std::max(most, part.rows);
  }
  return most;
}

Error wrong_step(std::string message) {
  return error_of(Errc::invalid_argument, std::move(message), "session");
}

}  // namespace

Result<void> SessionState::check_step(std::span<const StepRows> rows, Phase phase) const {
  if (rows.empty()) {
    return tl::unexpected(wrong_step("a step needs at least one sequence"));
  }
  const std::uint32_t most = phase_rows(phase);
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const StepRows& part = rows[index];
    const std::string who = "sequence " + std::to_string(part.sequence);
    if (auto known = check_sequence(part.sequence); !known) {
      return known;
    }
    for (std::size_t earlier = 0; earlier < index; ++earlier) {
      if (rows[earlier].sequence == part.sequence) {
        return tl::unexpected(wrong_step(who + " appears twice in one step"));
      }
    }
    if (part.rows == 0 || part.rows > most) {
      return tl::unexpected(wrong_step(who + " brings " + std::to_string(part.rows) +
                                       " rows, but a " + name(phase) + " step takes 1 to " +
                                       std::to_string(most)));
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

void SessionState::drop_primed() {
  counters.primed_pages_dropped += ring->taken();
  prefetch->cancel();
}

// Rows from the midst of a tile, K's and V's, lie in the slot where its first ones would, so that a
// span begins aligned.
void SessionState::add_part(std::vector<kvspan_segment_t>& segments,
                            const PageLayout& layout,
                            const PageUnit& unit,
                            const PagePlaces& places) const {
  const std::uint64_t skipped = unit.first_row / layout.tile_tokens * layout.tile_bytes;
  const std::uint64_t row = unit.first_row % layout.tile_tokens;
  std::uint64_t moved[kByteRunsMax] = {row * layout.k_row_bytes};
  moved[1] = layout.v_tile_bytes == 0 ? 0 : row * layout.v_row_bytes;
  const std::uint64_t* up = moved;
  for (const ByteRun& run : runs_of(layout, unit.first_row, unit.rows)) {
    PagePlaces moved_up = places;
    moved_up.target_offset -= skipped + *up++;
    add_segment(segments, segment_of(moved_up, run));
  }
}

// Whole tiles are one segment, K and V and padding, and pages that are neighbours on both sides are
// one; one submit a group. A part of a page lies in its slot from the first tile that it touches
// on.
Result<std::uint64_t> SessionState::fetch(const PageGroup& group,
                                          const std::vector<std::uint32_t>& slots) {
  SequenceHistory& history = sequences[group.sequence].history;
  const PageLayout& layout = plan.pages[group.layer];
  std::vector<kvspan_segment_t> segments;
  segments.reserve(2 * group.units.size());
  Waits waits;
  waits.measure = options.placement.measures_copies;
  for (std::size_t index = 0; index < group.units.size(); ++index) {
    const PageUnit& unit = group.units[index];
    const auto source = host_page(group.sequence, group.layer, unit.page);
    if (!source) {
      return tl::unexpected(source.error());
    }
    const std::uint64_t target = slots_lease.range().offset + slots[index] * plan.slot_bytes;
    if (unit.rows == page_tokens()) {
      add_segment(segments,
                  {source->memory, parent, source->offset, target, layout.page_bytes, 1, 0, 0});
    } else {
      add_part(segments, layout, unit, {source->memory, source->offset, parent, target});
    }
    waits.moment.merge(history.hazard(group.layer, unit.page).before_read());
    waits.moment.merge(ring->hazard(slots[index]).before_write());
  }
  auto value = copy(LaneId::upload, waits, segments);
  if (!value) {
    return tl::unexpected(std::move(value).error());
  }
  const Moment done = Moment::at(LaneId::upload, *value);
  for (std::size_t index = 0; index < group.units.size(); ++index) {
    history.hazard(group.layer, group.units[index].page).read.merge(done);
    ring->hazard(slots[index]) = Hazard{done, {}};
  }
  return value;
}

// Work behind earlier commits may have failed since: then those commits fell, and the engine must
// know before it hands in rows for positions that are not there any more.
Result<void> SessionState::check_health() {
  if (auto open = turns->check_open(); !open) {
    return open;
  }
  if (failed) {
    std::vector<std::uint64_t> told;
    for (const Sequence& sequence : sequences) {
      told.push_back(sequence.history.committed_tokens());
    }
    if (auto recovered = recover(); !recovered) {
      Error error = std::move(recovered).error();
      return tl::unexpected(cancel_untold.exchange(false) ? cancelled_or(std::move(error)) : error);
    }
    for (std::size_t index = 0; index < told.size(); ++index) {
      if (sequences[index].history.committed_tokens() != told[index] && !cancel_untold.load()) {
        return tl::unexpected(error_of(Errc::wait_failed,
                                       "sequences fell back to their last complete commits when a "
                                       "failure was recovered from; ask for their tokens",
                                       "session"));
      }
    }
  }
  if (auto wanted = check_cancelled(); !wanted) {
    return wanted;
  }
  if (auto healthy = lanes->health(); !healthy) {
    return tl::unexpected(fail_behind(std::move(healthy).error()));
  }
  return {};
}

// Work behind a commit failed.
Error SessionState::fail_behind(Error error) {
  Error failed_step = fail_step(std::move(error));
  Error words =
      told(failed_step.code,
           {failed_step.message,
            "; sequences fell back to their last complete commits, ask for their tokens"});
  failed_step.message = std::move(words.message);
  return failed_step;
}

Result<void> unguarded::begin_step(SessionState& state,
                                   std::span<const StepRows> rows,
                                   Phase phase) {
  if (auto between = state.check_between_steps(); !between) {
    return between;
  }
  if (auto healthy = state.check_health(); !healthy) {
    return healthy;
  }
  if (auto checked = state.check_step(rows, phase); !checked) {
    return checked;
  }
  if (auto entered = state.enter(phase); !entered) {
    return entered;
  }
  Step step;
  step.phase = phase;
  std::uint32_t first_row = 0;
  Moment settled = state.reached();
  for (const StepRows& part : rows) {
    SequenceHistory& history = state.sequences[part.sequence].history;
    const std::uint64_t tokens = history.committed_tokens();
    if (auto retired = state.retire(history, tokens + part.rows, settled); !retired) {
      return tl::unexpected(state.fail_behind(std::move(retired).error()));
    }
    if (auto reserved = history.reserve(*state.host, tokens + part.rows); !reserved) {
      return reserved;
    }
    if (auto refilled = state.refill(part.sequence); !refilled) {
      return tl::unexpected(state.fail_step(std::move(refilled).error()));
    }
    state.sequences[part.sequence].rows = part.rows;
    step.parts.push_back({part.sequence, part.rows, first_row, tokens, tokens});
    first_row += part.rows;
  }
  auto work = state.turns->admit(most_rows(rows), static_cast<std::uint32_t>(rows.size()));
  if (!work) {
    return tl::unexpected(std::move(work).error());
  }
  step.work = std::move(*work);
  const std::uint32_t kept = state.ring->taken();
  std::vector<PageGroup> groups = state.demanded(step.parts, phase, SIZE_MAX);
  step.streams = !groups.empty();
  state.prefetch->demand(std::move(groups), state.demanded_next(step));
  state.counters.primed_pages_dropped += kept - state.ring->taken();
  state.last_phase = phase;
  state.step = std::move(step);
  if (auto pumped = state.prefetch->pump(); !pumped) {
    return tl::unexpected(state.fail_step(std::move(pumped).error()));
  }
  return {};
}

// Behind the checks nothing fails: begin_step() took the room.
Result<void> unguarded::commit(SessionState& state, std::span<const std::uint32_t> accepted) {
  const auto layers = static_cast<std::uint32_t>(state.plan.pages.size());
  if (!state.step || state.step->layers_attended != layers) {
    return tl::unexpected(wrong_step("commit follows the attend of every layer of an open step"));
  }
  Step& step = *state.step;
  if (accepted.size() != step.parts.size()) {
    return tl::unexpected(wrong_step("commit takes one count for each of the step's " +
                                     std::to_string(step.parts.size()) + " sequences"));
  }
  for (std::size_t index = 0; index < accepted.size(); ++index) {
    if (accepted[index] > step.parts[index].rows) {
      return tl::unexpected(wrong_step("sequence " + std::to_string(step.parts[index].sequence) +
                                       " wrote " + std::to_string(step.parts[index].rows) +
                                       " rows; " + std::to_string(accepted[index]) +
                                       " cannot be accepted"));
    }
  }
  if (auto wanted = state.check_cancelled(); !wanted) {
    return wanted;
  }
  const Moment published = step.published;
  const std::uint64_t page = state.page_tokens();
  const Phase phase = step.phase;
  for (std::size_t index = 0; index < accepted.size(); ++index) {
    SequenceHistory& history = state.sequences[step.parts[index].sequence].history;
    history.commit(accepted[index], published);
    const std::uint64_t tokens = history.committed_tokens();
    state.sequences[step.parts[index].sequence].observed_tokens +=
        phase == Phase::prefill ? accepted[index] : 0;
    // Complete pages are fetched from now on like all others; pages of rejected rows hold nothing.
    state.tails->forget_before(step.parts[index].sequence, tokens / page);
    state.tails->forget(step.parts[index].sequence, (tokens + page - 1) / page);
    step.parts[index].first_token = step.parts[index].complete_tokens = tokens;
  }
  const std::vector<StepPart> next = std::move(step.parts);
  state.tails->unpin_all();
  state.step.reset();
  ++state.counters.steps;
  state.decode_steps += phase == Phase::decode ? 1 : 0;
  // The next step most likely has the same sequences: its first groups start now, while the engine
  // does other work.
  const std::uint32_t kept = state.ring->taken();
  const auto prime = [&] {
    // As much as the ring holds: the step's beginning demands all of it.
    state.prefetch->demand(state.demanded(next, phase, state.ring->count()), {});
    state.counters.primed_pages_dropped += kept - state.ring->taken();
    return state.prefetch->pump();
  };
  // Priming is an extra: if it fails, so will the next step, which returns why.
  (void)guarded_call("priming", prime);
  state.reserve_ahead();
  return {};
}

}  // namespace kvspan
