// SPDX-License-Identifier: Apache-2.0
// A layer's attention: resident run, ring waves, tail, in ascending order; splits advance over what
// is there, finished splits fold, at the end the outputs. One sequence after another on the compute
// lane.
#include "sequence_call.hpp"
#include "state.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvspan {

namespace {

// Submits one sequence's attention of one layer.
class LayerAttention {
 public:
  LayerAttention(SessionState& state,
                 std::uint32_t layer,
                 const AttendRows& rows,
                 const StepPart& part,
                 const kvspan_attention_shape_t& shape)
      : state_(state),
        layer_(layer),
        rows_(rows),
        shape_(shape),
        caps_(state.caps(layer, state.step->phase)),
        call_(state.options.geometry.layers[layer],
              caps_,
              part,
              {state.parent,
               state.states_lease.range().offset,
               state.accumulators_lease.range().offset,
               state.step->phase == Phase::prefill ? state.plan.prefill_splits_in_flight
                                                   : state.plan.decode_splits_in_flight}) {}

  // Advances every split over the piece's tokens and folds those that are complete. Returns the
  // compute lane's value behind which the piece is read; 0 when no row sees any of it.
  [[nodiscard]] Result<std::uint64_t> over(const Piece& piece) {
    const kvspan_span_t span = span_of(piece);
    const std::vector<kvspan_entry_t> entries = call_.entries(rows_, span);
    const std::vector<std::vector<SplitPart>> parts = call_.parts(piece);
    std::size_t rounds = 0;
    for (const std::vector<SplitPart>& of_entry : parts) {
      const std::size_t each = call_.splits_in_flight();
      rounds = std::max(rounds, (of_entry.size() + each - 1) / each);
    }
    std::uint64_t read = 0;
    for (std::size_t round = 0; round < rounds; ++round) {
      auto value = advance(entries, parts, round, piece.ready);
      if (!value) {
        return value;
      }
      read = *value;
    }
    return read;
  }

  // Writes the outputs. Returns the compute lane's value that completes them.
  [[nodiscard]] Result<std::uint64_t> finish() {
    const kvspan_span_t none{};
    std::vector<kvspan_entry_t> entries = call_.entries(rows_, none);
    for (kvspan_entry_t& entry : entries) {
      entry.spans = nullptr;
      entry.span_count = 0;
    }
    const kvspan_attention_args_t args = args_of(entries);
    return submit({},
                  [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
                    return state_.calls->finish(
                        queue, args, caps_, call_.accumulators().data(), submit, error);
                  });
  }

 private:
  template <class Call>
  Result<std::uint64_t> submit(const Waits& waits, const Call& call) {
    return state_.lanes->submit(LaneId::compute, waits, call);
  }

  // Round `round` of the parts: as many splits of each entry as may be open at once, then their
  // folds.
  Result<std::uint64_t> advance(const std::vector<kvspan_entry_t>& entries,
                                const std::vector<std::vector<SplitPart>>& parts,
                                std::size_t round,
                                const Moment& ready) {
    std::vector<kvspan_advance_item_t> items;
    std::vector<kvspan_fold_item_t> folds;
    for (std::size_t entry = 0; entry < parts.size(); ++entry) {
      const std::size_t begin = round * call_.splits_in_flight();
      const std::size_t end = std::min(parts[entry].size(), begin + call_.splits_in_flight());
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
        if (part.last) {
          folds.push_back(call_.fold_item(entry, part.split));
        }
      }
    }
    const kvspan_attention_args_t args = args_of(entries);
    Waits waits;
    waits.moment = ready;
    waits.points = rows_.ready;
    auto value = submit(
        waits, [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
          return state_.calls->advance(queue, args, caps_, items, submit, error);
        });
    if (!value || folds.empty()) {
      return value;
    }
    return submit({},
                  [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
                    return state_.calls->fold(queue, args, caps_, folds, submit, error);
                  });
  }

  [[nodiscard]] kvspan_span_t span_of(const Piece& piece) const {
    const PageLayout& page = state_.plan.pages[layer_];
    kvspan_span_t span{};
    span.first_token = piece.first_token;
    span.token_count = piece.tokens;
    span.k.memory = state_.parent;
    span.k.offset = piece.offset;
    span.k.page_stride = piece.page_stride;
    span.k.row_stride = page.k_token_bytes;
    span.k.head_stride = page.k_row_bytes;
    span.k.page_tokens = page.page_tokens;
    if (!piece.page_list.empty()) {
      span.k.page_list = piece.page_list.data();
      span.k.page_count = static_cast<std::uint32_t>(piece.page_list.size());
    }
    if (state_.options.geometry.layers[layer_].v_in_k) {
      return span;
    }
    span.v = span.k;
    span.v.offset = piece.offset + page.v_offset;
    span.v.row_stride = page.v_token_bytes;
    span.v.head_stride = page.v_row_bytes;
    return span;
  }

  [[nodiscard]] kvspan_attention_args_t args_of(const std::vector<kvspan_entry_t>& entries) const {
    kvspan_attention_args_t args{};
    args.struct_size = sizeof args;
    args.entry_count = static_cast<std::uint32_t>(entries.size());
    args.shape = &shape_;
    args.entries = entries.data();
    args.scale = rows_.scale;
    args.soft_cap = rows_.soft_cap;
    args.sinks = rows_.sinks;
    args.slopes = rows_.slopes;
    args.workspace = state_.workspace_lease.range();
    return args;
  }

  SessionState& state_;
  std::uint32_t layer_;
  const AttendRows& rows_;
  const kvspan_attention_shape_t& shape_;
  const kvspan_attention_caps_t& caps_;
  SequenceCall call_;
};

// The resident run of a sequence's layer, as far as it holds visible tokens.
Piece resident_piece(SessionState& state, std::uint32_t layer, const StepPart& part) {
  const std::uint64_t page = state.page_tokens();
  const std::uint64_t total = part.first_token + part.rows;
  const std::uint64_t first = state.first_visible_page(layer, part.first_token);
  const std::uint64_t end =
      std::min<std::uint64_t>(state.plan.resident_pages[layer], (total + page - 1) / page);
  Piece piece;
  if (first >= end) {
    return piece;
  }
  piece.first_token = first * page;
  piece.tokens = std::min(end * page, total) - piece.first_token;
  piece.offset = state.resident_page(part.sequence, layer, first).offset;
  piece.page_stride = state.plan.pages[layer].page_bytes;
  for (std::uint64_t at = first; at < end; ++at) {
    piece.ready.merge(state.resident_page(part.sequence, layer, at).hazard->before_read());
  }
  state.counters.attended_pages += end - first;
  state.counters.resident_attended_pages += end - first;
  return piece;
}

Piece ring_piece(SessionState& state, const FetchedGroup& fetched) {
  const std::uint64_t page = state.page_tokens();
  Piece piece;
  piece.first_token = fetched.group.first_page * page;
  piece.tokens = fetched.group.pages * page;
  piece.offset = state.slots_lease.range().offset;
  piece.page_stride = state.plan.slot_bytes;
  piece.page_list = fetched.slots;
  piece.ready = Moment::at(LaneId::upload, fetched.ready);
  state.counters.attended_pages += fetched.group.pages;
  state.counters.streamed_pages += fetched.group.pages;
  state.counters.streamed_bytes +=
      fetched.group.pages * state.plan.pages[fetched.group.layer].page_bytes;
  return piece;
}

// The begun page and those after it, in their tail slots.
Result<Piece> tail_piece(SessionState& state, std::uint32_t layer, const StepPart& part) {
  const std::uint64_t page = state.page_tokens();
  const std::uint64_t total = part.first_token + part.rows;
  const std::uint64_t first =
      std::max<std::uint64_t>(state.plan.resident_pages[layer], part.first_token / page);
  const std::uint64_t end = (total + page - 1) / page;
  Piece piece;
  if (first >= end) {
    return piece;
  }
  piece.first_token = first * page;
  piece.tokens = total - piece.first_token;
  piece.offset = state.slots_lease.range().offset;
  piece.page_stride = state.plan.slot_bytes;
  for (std::uint64_t at = first; at < end; ++at) {
    const auto slot = state.tails->find({part.sequence, layer, at});
    if (!slot) {
      return tl::unexpected(Error{Errc::internal,
                                  "the tail page " + std::to_string(at) + " of layer " +
                                      std::to_string(layer) + " left the device; report this bug",
                                  0,
                                  0,
                                  0,
                                  "tails"});
    }
    piece.page_list.push_back(*slot);
    piece.ready.merge(state.tails->hazard(*slot).before_read());
  }
  state.counters.attended_pages += end - first;
  return piece;
}

}  // namespace

// Pages below the begun one that are not resident come through the ring, in the order in which they
// were demanded.
Result<std::uint64_t> SessionState::attend_sequence(std::uint32_t layer,
                                                    const AttendRows& rows,
                                                    const StepPart& part) {
  const kvspan_attention_shape_t shape =
      attention_shape(options, layer, step->phase, phase_rows(step->phase));
  LayerAttention attention(*this, layer, rows, part, shape);
  const Piece resident = resident_piece(*this, layer, part);
  if (resident.tokens != 0) {
    auto read = attention.over(resident);
    if (!read) {
      return read;
    }
    const Moment moment = Moment::at(LaneId::compute, *read);
    const std::uint64_t first = resident.first_token / page_tokens();
    for (std::uint64_t page = first; page * page_tokens() < resident.first_token + resident.tokens;
         ++page) {
      resident_page(part.sequence, layer, page).hazard->read.merge(moment);
    }
  }
  const std::uint64_t first_streamed = std::max<std::uint64_t>(
      plan.resident_pages[layer], first_visible_page(layer, part.first_token));
  for (std::uint64_t page = first_streamed; page < part.first_token / page_tokens();) {
    auto fetched = prefetch->next();
    if (!fetched) {
      return tl::unexpected(std::move(fetched).error());
    }
    auto read = attention.over(ring_piece(*this, *fetched));
    if (!read) {
      return read;
    }
    prefetch->release(*fetched, Moment::at(LaneId::compute, *read));
    if (auto pumped = prefetch->pump(); !pumped) {
      return tl::unexpected(std::move(pumped).error());
    }
    page += fetched->group.pages;
  }
  auto tail = tail_piece(*this, layer, part);
  if (!tail) {
    return tl::unexpected(std::move(tail).error());
  }
  if (tail->tokens != 0) {
    auto read = attention.over(*tail);
    if (!read) {
      return read;
    }
    for (const std::uint32_t slot : tail->page_list) {
      tails->hazard(slot).read.merge(Moment::at(LaneId::compute, *read));
    }
  }
  return attention.finish();
}

Result<kvspan_point_t> Session::attend(std::uint32_t layer, const AttendRows& rows) {
  SessionState& state = *state_;
  const bool in_order =
      state.step && state.step->layers_written == layer + 1 && state.step->layers_attended == layer;
  if (!in_order) {
    return tl::unexpected(Error{Errc::invalid_argument,
                                "layer " + std::to_string(layer) +
                                    " cannot be attended now: write it first, in an open step",
                                0,
                                0,
                                0,
                                "session"});
  }
  std::uint64_t value = 0;
  const std::vector<StepPart> parts = state.step->parts;
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

Result<void> Session::wait(const kvspan_point_t& point) {
  SessionState& state = *state_;
  if (auto reached = state.lanes->wait(LaneId::compute, point.value); !reached) {
    return tl::unexpected(state.fail_step(std::move(reached).error()));
  }
  return {};
}

}  // namespace kvspan
