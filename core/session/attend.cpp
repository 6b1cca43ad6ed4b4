// SPDX-License-Identifier: Apache-2.0
// A layer's attention. Where everything visible is on the device, or will be once the copies under
// way have ended, one submit does all of it. Else the resident run first, then a wave a group as
// groups arrive, the tail with the last of them; then the splits fold in ascending order. One
// sequence after another on the compute lane.
#include "calls.hpp"
#include "sequence_call.hpp"
#include "state.hpp"
#include "wave.hpp"

#include <algorithm>
#include <utility>

namespace kvspan {

// Submits one sequence's attention of one layer.
class LayerAttention {
 public:
  LayerAttention(SessionState& state,
                 std::uint32_t layer,
                 const AttendRows& rows,
                 const StepPart& part)
      : state_(state),
        rows_(rows),
        asked_(state.asked(layer, state.step->phase)),
        call_(state.options.geometry.layers[layer],
              asked_.caps,
              part,
              {state.parent,
               state.states.offset,
               state.accumulators.offset,
               state.step->phase == Phase::decode ? state.plan.decode_splits_in_flight
                                                  : state.plan.prefill_splits_in_flight}),
        all_open_(call_.all_open()) {}

  // Everything at once: `wave` holds all that any row sees. Returns the compute lane's value that
  // completes the outputs.
  [[nodiscard]] Result<std::uint64_t> run(const Wave& wave) {
    const std::vector<kvspan_entry_t> entries = call_.entries(rows_, wave.spans());
    kvspan_attention_args_t args = args_of(entries);
    args.workspace = state_.run_workspace();
    return submit(waits_for(wave.ready()),
                  [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
                    return state_.calls->run(queue, args, asked_.caps, submit, error);
                  });
  }

  // Advances every split over the wave's tokens. Returns the compute lane's value behind which the
  // wave is read; 0 when no row sees any of it.
  [[nodiscard]] Result<std::uint64_t> over(const Wave& wave) {
    const std::vector<kvspan_entry_t> entries = call_.entries(rows_, wave.spans());
    const std::vector<std::vector<SplitPart>> parts = call_.parts(wave.runs());
    const std::size_t each = splits_a_submit();
    std::size_t rounds = 0;
    for (const std::vector<SplitPart>& of_entry : parts) {
      rounds = std::max(rounds, (of_entry.size() + each - 1) / each);
    }
    std::uint64_t read = 0;
    for (std::size_t round = 0; round < rounds; ++round) {
      auto value = advance(entries, parts, round, wave.ready());
      if (!value) {
        return value;
      }
      read = *value;
    }
    return read;
  }

  // Folds what is still open and writes the outputs. Returns the compute lane's value that
  // completes them.
  [[nodiscard]] Result<std::uint64_t> finish() {
    const std::vector<kvspan_entry_t> entries = call_.entries(rows_, {});
    const kvspan_attention_args_t args = args_of(entries);
    if (all_open_) {
      if (auto folded = fold_all(args); !folded) {
        return tl::unexpected(std::move(folded).error());
      }
    }
    return submit({},
                  [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
                    return state_.calls->finish(
                        queue, args, asked_.caps, call_.accumulators().data(), submit, error);
                  });
  }

 private:
  template <class Call>
  Result<std::uint64_t> submit(const Waits& waits, const Call& call) {
    return state_.lanes->submit(LaneId::compute, waits, call);
  }

  [[nodiscard]] Waits waits_for(const Moment& ready) const {
    Waits waits;
    waits.moment = ready;
    waits.points = rows_.ready;
    return waits;
  }

  // Of each entry: as many as may be open at once and as a submit takes.
  [[nodiscard]] std::size_t splits_a_submit() const {
    const std::size_t taken =
        asked_.shape.items_max / std::max<std::size_t>(call_.entry_count(), 1);
    return std::clamp<std::size_t>(call_.splits_in_flight(), 1, std::max<std::size_t>(taken, 1));
  }

  Result<std::uint64_t> fold(const kvspan_attention_args_t& args,
                             const std::vector<kvspan_fold_item_t>& folds) {
    return submit({},
                  [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
                    return state_.calls->fold(queue, args, asked_.caps, folds, submit, error);
                  });
  }

  // Round `round` of the parts: as many splits of each entry as may be open at once. Unless all
  // may, those that are complete fold before the next round takes their places.
  Result<std::uint64_t> advance(const std::vector<kvspan_entry_t>& entries,
                                const std::vector<std::vector<SplitPart>>& parts,
                                std::size_t round,
                                const Moment& ready) {
    std::vector<kvspan_advance_item_t> items;
    std::vector<kvspan_fold_item_t> folds;
    const std::size_t each = splits_a_submit();
    for (std::size_t entry = 0; entry < parts.size(); ++entry) {
      const std::size_t begin = round * each;
      const std::size_t end = std::min(parts[entry].size(), begin + each);
      for (std::size_t index = begin; index < end; ++index) {
        const SplitPart& part = parts[entry][index];
        kvspan_advance_item_t item{};
        item.entry = static_cast<std::uint32_t>(entry);
        item.flags = part.first ? KVSPAN_ITEM_FRESH : 0;
        item.split = part.split;
        item.first_token = part.begin;
        item.token_count = part.end - part.begin;
        item.state = call_.state(entry, part.split);
        items.push_back(item);
        if (part.last && !all_open_) {
          folds.push_back(call_.fold_item(entry, part.split));
        }
      }
    }
    const kvspan_attention_args_t args = args_of(entries);
    auto value =
        submit(waits_for(ready),
               [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
                 return state_.calls->advance(queue, args, asked_.caps, items, submit, error);
               });
    return !value || folds.empty() ? value : fold(args, folds);
  }

  Result<void> fold_all(const kvspan_attention_args_t& args) {
    std::vector<kvspan_fold_item_t> folds;
    for (std::size_t entry = 0; entry < call_.entry_count(); ++entry) {
      const RowGroup& group = call_.group(entry);
      const std::uint64_t first = group.visible_begin / group.split_tokens;
      for (std::uint64_t split = first; split < first + split_count(group); ++split) {
        folds.push_back(call_.fold_item(entry, split));
        if (folds.size() == asked_.shape.items_max) {
          if (auto folded = fold(args, folds); !folded) {
            return tl::unexpected(std::move(folded).error());
          }
          folds.clear();
        }
      }
    }
    if (folds.empty()) {
      return {};
    }
    auto folded = fold(args, folds);
    return folded ? Result<void>{} : tl::unexpected(std::move(folded).error());
  }

  [[nodiscard]] kvspan_attention_args_t args_of(const std::vector<kvspan_entry_t>& entries) const {
    kvspan_attention_args_t args{};
    args.struct_size = sizeof args;
    args.entry_count = static_cast<std::uint32_t>(entries.size());
    args.shape = &asked_.shape;
    args.entries = entries.data();
    args.scale = rows_.scale;
    args.soft_cap = rows_.soft_cap;
    args.sinks = rows_.sinks;
    args.slopes = rows_.slopes;
    args.workspace = state_.workspace;
    return args;
  }

  SessionState& state_;
  const AttendRows& rows_;
  const AskedShape& asked_;
  SequenceCall call_;
  const bool all_open_;
};

// The whole part is attended by one submit, behind the last of its copies, where the ring holds it
// beside as much again and beside the part that follows: then the link goes on filling while that
// submit waits and while it runs, and nothing is lost by beginning late. Waves cost a submit each,
// and keep few blocks busy where few splits stream.
bool SessionState::fits_at_once(std::uint32_t layer) const {
  const PartAhead ahead = prefetch->part_ahead(plan.pages[layer].tile_tokens);
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

// The resident run, then a wave a group. The slots of the last wave are filled again behind the
// submit that completes the outputs: somebody may wait for those, and copies take the host long.
Result<std::uint64_t> SessionState::attend_in_waves(LayerAttention& attention,
                                                    std::uint32_t layer,
                                                    const StepPart& part) {
  const std::size_t tails_max = tail_pages(part.rows, page_tokens());
  Wave resident = wave_of(layer, 0);
  add_resident(resident, layer, part);
  if (!resident.empty()) {
    auto read = attention.over(resident);
    if (!read) {
      return read;
    }
    read_resident(layer, part, *read);
  }
  for (;;) {
    auto fetched = prefetch->next(part.sequence, layer);
    if (!fetched) {
      return tl::unexpected(std::move(fetched).error());
    }
    const bool last = fetched->group.last;
    Wave wave = wave_of(layer, fetched->slots.size() + tails_max);
    add_groups(wave, {&*fetched, 1});
    if (last) {
      if (auto added = add_tail(wave, layer, part); !added) {
        return tl::unexpected(std::move(added).error());
      }
    }
    auto read = attention.over(wave);
    if (!read) {
      return read;
    }
    prefetch->release(*fetched, Moment::at(LaneId::compute, *read));
    if (last) {
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
  return !streams(layer, part) || fits_at_once(layer) ? attend_at_once(attention, layer, part)
                                                      : attend_in_waves(attention, layer, part);
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
