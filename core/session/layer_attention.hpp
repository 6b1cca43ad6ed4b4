// SPDX-License-Identifier: Apache-2.0
// One sequence's attention of one layer as calls of the backend: everything in one, or advances
// over waves, folds and the end. Private to core/session. Read next: attend.cpp (who decides
// which).
#pragma once

#include "sequence_call.hpp"
#include "state.hpp"
#include "wave.hpp"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

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
                                                  : state.plan.prefill_splits_in_flight},
              state.groups_of(layer, part, state.step->phase)),
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

  // Advances every split over `tokens`, ascending runs that the wave's spans hold. Returns the
  // compute lane's value behind which the wave is read; 0 when no row sees any of it.
  [[nodiscard]] Result<std::uint64_t> over(const Wave& wave, std::span<const Tokens> tokens) {
    const std::vector<kvspan_entry_t> entries = call_.entries(rows_, wave.spans());
    const std::vector<std::vector<SplitPart>> parts = call_.parts(tokens);
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

  // S of all rows, where their splits may advance in any order; else 0.
  [[nodiscard]] std::uint64_t free_split_tokens() const {
    return all_open_ && call_.entry_count() == 1 ? call_.group(0).split_tokens : 0;
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

}  // namespace kvspan
