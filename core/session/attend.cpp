// SPDX-License-Identifier: Apache-2.0
// A layer's attention. Where everything visible is on the device, or will be once the copies under
// way have ended, one submit does all of it. Else a wave a group as groups arrive, the residents
// dealt out over them or before them, the tail with the last; then the splits fold in ascending
// order. One sequence after another on the compute lane.
#include "calls.hpp"
#include "deal.hpp"
#include "layer_attention.hpp"
#include "state.hpp"
#include "wave.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace kvspan {

// The whole part is attended by one submit, behind the last of its copies, where the ring holds it
// beside as much again and beside the part that follows: then the link goes on filling while that
// submit waits and while it runs, and nothing is lost by beginning late. Waves cost a submit each,
// and keep few blocks busy where few splits stream.
bool SessionState::fits_at_once(std::uint32_t layer, const PartAhead& ahead) const {
  // Spans: resident runs, the first streamed page, the tail, and two for each cut tile.
  return ahead.units + std::max(ahead.units, ahead.next_units) <= ring->count() &&
         ahead.units <= pages_at_once(plan) &&
         2 * ahead.cut_units + 1 + tail_lists_max(options) + resident_runs_max(options) <=
             asked(layer, step->phase).shape.spans_max;
}

Wave SessionState::wave_of(std::uint32_t layer, std::size_t slots_max) const {
  return {plan.pages[layer],
          options.geometry.layers[layer].v_in_k,
          parent,
          slots_max,
          asked(layer, step->phase).caps.span_pages_max};
}

// Everything that the rows see in one submit.
Result<std::uint64_t> SessionState::attend_at_once(LayerAttention& attention,
                                                   std::uint32_t layer,
                                                   const StepPart& part) {
  std::vector<FetchedGroup> groups;
  std::size_t slots = tail_pages(part.rows, page_tokens());
  if (streams(layer, part)) {
    do {
      auto fetched = prefetch->next(part.sequence, layer);
      if (!fetched) {
        return tl::unexpected(std::move(fetched).error());
      }
      slots += fetched->slots.size();
      groups.push_back(std::move(*fetched));
    } while (!groups.back().group.last);
  }
  Wave wave = wave_of(layer, slots);
  add_resident(wave, layer, part);
  add_groups(wave, groups);
  if (auto added = add_tail(wave, layer, part); !added) {
    return tl::unexpected(std::move(added).error());
  }
  auto done = attention.run(wave);
  if (!done) {
    return done;
  }
  read_resident(layer, part, *done);
  read_tail(layer, part, *done);
  for (const FetchedGroup& group : groups) {
    prefetch->release(group, Moment::at(LaneId::compute, *done));
  }
  if (auto pumped = prefetch->pump(); !pumped) {
    return tl::unexpected(std::move(pumped).error());
  }
  return done;
}

// Nothing where residents come first: splits must advance one after another, or there is one wave.
std::optional<Deal> SessionState::dealt(const LayerAttention& attention,
                                        std::uint32_t layer,
                                        const StepPart& part,
                                        std::uint64_t waves) const {
  const PageRange pages = resident_range(layer, part);
  const std::uint64_t split = attention.free_split_tokens();
  if (pages.begin == pages.end || waves < 2 || split == 0) {
    return std::nullopt;
  }
  return Deal({pages.begin * page_tokens(), pages.end * page_tokens()},
              split,
              asked(layer, step->phase).caps.span_granule,
              waves);
}

// Everything that is resident, behind its copies.
Result<void> SessionState::attend_resident(LayerAttention& attention,
                                           std::uint32_t layer,
                                           const StepPart& part) {
  Wave resident = wave_of(layer, 0);
  add_resident(resident, layer, part);
  if (resident.empty()) {
    return {};
  }
  auto read = attention.over(resident, resident.runs());
  if (!read) {
    return tl::unexpected(std::move(read).error());
  }
  read_resident(layer, part, *read);
  return {};
}

// A group's tokens, the tail with the last, and the wave's piece of the residents: spans name all
// of those, so that few do for many pieces.
Result<std::uint64_t> SessionState::attend_wave(LayerAttention& attention,
                                                std::uint32_t layer,
                                                const StepPart& part,
                                                const FetchedGroup& fetched,
                                                std::optional<Deal>& deal) {
  const std::size_t tails_max = tail_pages(part.rows, page_tokens());
  Wave wave = wave_of(layer, fetched.slots.size() + tails_max);
  const PageRange resident = resident_range(layer, part);
  if (deal) {
    map_resident(wave, layer, part, resident);
  }
  add_groups(wave, {&fetched, 1});
  if (fetched.group.last) {
    if (auto added = add_tail(wave, layer, part); !added) {
      return tl::unexpected(std::move(added).error());
    }
  }
  if (!deal) {
    return attention.over(wave, wave.runs());
  }
  const std::uint64_t resident_end = resident.end * page_tokens();
  const std::vector<Tokens> pieces = deal->next(walked({}, wave.runs(), resident_end));
  for (const Tokens& piece : pieces) {
    meet_resident(wave, layer, part, piece);
  }
  return attention.over(wave, walked(pieces, wave.runs(), resident_end));
}

// A wave a group, each with its piece of the residents, or behind all of them. The slots of the
// last wave are filled again behind the submit that completes the outputs: somebody may wait for
// those, and copies take the host long.
Result<std::uint64_t> SessionState::attend_in_waves(LayerAttention& attention,
                                                    std::uint32_t layer,
                                                    const StepPart& part,
                                                    std::uint64_t waves) {
  std::optional<Deal> deal = dealt(attention, layer, part, waves);
  if (!deal) {
    if (auto attended = attend_resident(attention, layer, part); !attended) {
      return tl::unexpected(std::move(attended).error());
    }
  }
  for (;;) {
    auto fetched = prefetch->next(part.sequence, layer);
    if (!fetched) {
      return tl::unexpected(std::move(fetched).error());
    }
    auto read = attend_wave(attention, layer, part, *fetched, deal);
    if (!read) {
      return read;
    }
    prefetch->release(*fetched, Moment::at(LaneId::compute, *read));
    if (fetched->group.last) {
      if (deal) {
        read_resident(layer, part, *read);
      }
      read_tail(layer, part, *read);
      break;
    }
    if (auto pumped = prefetch->pump(); !pumped) {
      return tl::unexpected(std::move(pumped).error());
    }
  }
  auto done = attention.finish();
  if (!done) {
    return done;
  }
  if (auto pumped = prefetch->pump(); !pumped) {
    return tl::unexpected(std::move(pumped).error());
  }
  return done;
}

// Pages below the begun one that are not resident come through the ring, in the order in which they
// were demanded.
Result<std::uint64_t> SessionState::attend_sequence(std::uint32_t layer,
                                                    const AttendRows& rows,
                                                    const StepPart& part) {
  LayerAttention attention(*this, layer, rows, part);
  if (!streams(layer, part)) {
    return attend_at_once(attention, layer, part);
  }
  const PartAhead ahead = prefetch->part_ahead(plan.pages[layer].tile_tokens);
  return fits_at_once(layer, ahead) ? attend_at_once(attention, layer, part)
                                    : attend_in_waves(attention, layer, part, ahead.groups);
}

Result<kvspan_point_t> unguarded::attend(SessionState& state,
                                         std::uint32_t layer,
                                         const AttendRows& rows) {
  const bool in_order =
      state.step && state.step->layers_written == layer + 1 && state.step->layers_attended == layer;
  if (!in_order) {
    return tl::unexpected(error_of(Errc::invalid_argument,
                                   "layer " + std::to_string(layer) +
                                       " cannot be attended now: write it first, in an open step",
                                   "session"));
  }
  const std::vector<StepPart> parts = state.step->parts;
  const std::uint64_t lse_bytes = (parts.back().first_row + std::uint64_t{parts.back().rows}) *
                                  state.options.geometry.layers[layer].q_heads * sizeof(float);
  if (rows.lse.memory != nullptr && rows.lse.bytes < lse_bytes) {
    return tl::unexpected(error_of(Errc::invalid_argument,
                                   "the range for lse has " + std::to_string(rows.lse.bytes) +
                                       " bytes; the step's rows take " + std::to_string(lse_bytes) +
                                       ": give as many",
                                   "session"));
  }
  std::uint64_t value = 0;
  for (const StepPart& part : parts) {
    auto done = state.attend_sequence(layer, rows, part);
    if (!done) {
      return tl::unexpected(state.fail_step(std::move(done).error()));
    }
    value = *done;
  }
  ++state.step->layers_attended;
  if (state.step->phase == Phase::prefill) {
    // Prefill tails serve the running layer only: their host copies are under way.
    state.tails->unpin_all();
  }
  state.reserve_beside(layer);
  return state.lanes->point(LaneId::compute, value);
}

// A point of the compute lane, as it is or was, for a value that some submit got.
Result<void> SessionState::check_own(const kvspan_point_t& point) const {
  const kvspan_point_t newest = lanes->point(LaneId::compute, lanes->last(LaneId::compute));
  const bool own = point.fence == newest.fence && point.value > past_points.end();
  if ((own && point.value <= newest.value) ||
      past_points.answer(point) != PastPoints::Answer::unknown) {
    return {};
  }
  const std::string value = std::to_string(point.value);
  return tl::unexpected(error_of(
      Errc::invalid_argument,
      own ? "no work of the session signals value " + value + ": its last is " +
                std::to_string(newest.value) + "; wait for points that attend() returned"
          : "the point of value " + value +
                " is not one that attend() of this session returned, or from before more than " +
                std::to_string(PastPoints::kRecoveriesMax) +
                " failures; wait for it where it came from",
      "point"));
}

Result<void> unguarded::wait(SessionState& state, const kvspan_point_t& point) {
  if (auto own = state.check_own(point); !own) {
    return own;
  }
  if (auto wanted = state.check_cancelled(); !wanted) {
    return wanted;
  }
  const PastPoints::Answer past = state.past_points.answer(point);
  if (past == PastPoints::Answer::reached) {
    return {};
  }
  if (past == PastPoints::Answer::lost) {
    return tl::unexpected(error_of(Errc::wait_failed,
                                   "the work behind this point was given up by a failure that an "
                                   "earlier call told; its outputs are undefined",
                                   "session"));
  }
  if (auto reached = state.lanes->wait(LaneId::compute, point.value); !reached) {
    return tl::unexpected(state.fail_step(std::move(reached).error()));
  }
  return {};
}

}  // namespace kvspan
