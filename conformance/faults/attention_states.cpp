// SPDX-License-Identifier: Apache-2.0
// Faults of split states: FRESH, the fold and its order, neutral states, sinks, bytes outside.
#include "edits.hpp"
#include "fault_list.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvspan::faults {
namespace {

/// Replaces the items of one slot, as with_edited() does.
template <class Item, class Slot>
void edit_items(Layer& layer, Slot& slot, const std::function<bool(std::vector<Item>&)>& edit) {
  slot = [&layer, edit, next = slot](kvspan_queue_t* queue,
                                     const kvspan_attention_args_t* args,
                                     const Item* items,
                                     uint32_t count,
                                     const kvspan_submit_t* submit,
                                     kvspan_error_t* error) {
    return with_edited(layer, items, count, edit, [&](const auto* own, uint32_t left) {
      return next(queue, args, own, left, submit, error);
    });
  };
}

template <class Item>
bool forget_fresh(std::vector<Item>& items) {
  bool changed = false;
  for (Item& item : items) {
    changed = changed || (item.flags & KVSPAN_ITEM_FRESH) != 0;
    item.flags &= ~KVSPAN_ITEM_FRESH;
  }
  return changed;
}

/// Every advance resumes, whatever lies in the state.
void advance_is_never_fresh(Layer& layer) {
  edit_items<kvspan_advance_item_t>(
      layer, layer.calls.advance, forget_fresh<kvspan_advance_item_t>);
}

void fold_is_never_fresh(Layer& layer) {
  edit_items<kvspan_fold_item_t>(layer, layer.calls.fold, forget_fresh<kvspan_fold_item_t>);
}

/// Splits merge as they come: here, backwards.
void fold_runs_backwards(Layer& layer) {
  edit_items<kvspan_fold_item_t>(
      layer, layer.calls.fold, [](std::vector<kvspan_fold_item_t>& items) {
        std::vector<kvspan_state_t> sources;
        for (const kvspan_fold_item_t& item : items) {
          sources.push_back(item.source);
        }
        const bool one = std::all_of(items.begin(), items.end(), [&](const auto& item) {
          return item.accumulator.memory == items[0].accumulator.memory &&
                 item.accumulator.u_offset == items[0].accumulator.u_offset;
        });
        for (std::size_t i = 0; one && i < items.size(); ++i) {
          items[i].source = sources[items.size() - 1 - i];
        }
        return one && items.size() > 1;
      });
}

/// The last split is not folded.
void fold_drops_the_last_split(Layer& layer) {
  edit_items<kvspan_fold_item_t>(
      layer, layer.calls.fold, [](std::vector<kvspan_fold_item_t>& items) {
        const bool more = items.size() > 1 && (items.back().flags & KVSPAN_ITEM_FRESH) == 0;
        if (more) {
          items.pop_back();
        }
        return more;
      });
}

/// exp(-inf - -inf): neutral with neutral is NaN.
void fold_adds_neutral_states(Layer& layer) {
  layer.calls.fold = [&layer, next = layer.calls.fold](kvspan_queue_t* queue,
                                                       const kvspan_attention_args_t* args,
                                                       const kvspan_fold_item_t* items,
                                                       uint32_t count,
                                                       const kvspan_submit_t* submit,
                                                       kvspan_error_t* error) {
    if (!readable(args) || items == nullptr || count == 0) {
      return next(queue, args, items, count, submit, error);
    }
    const Go go = [&](const kvspan_submit_t* own, kvspan_error_t* out) {
      return next(queue, args, items, count, own, out);
    };
    return spoil(layer, queue, submit, error, go, [&] {
      for (uint32_t i = 0; i < count; ++i) {
        const kvspan_state_t& sum = items[i].accumulator;
        const uint64_t bytes = ml_bytes(*args, items[i].entry);
        Bytes ml = read_memory(layer, queue, sum.memory, sum.ml_offset, bytes);
        for (uint64_t at = 0; at + 1 < ml.size() / 4; at += 2) {
          if (std::isinf(load_float(ml, at)) && load_float(ml, at) < 0.0F) {
            store_float(ml, at + 1, std::numeric_limits<float>::quiet_NaN());
            layer.ran();
          }
        }
        write_memory(layer, queue, sum.memory, sum.ml_offset, ml);
      }
    });
  };
}

/// One float behind the state of an item, as a tile that is not cut at the last row.
void advance_writes_behind_its_state(Layer& layer) {
  layer.calls.advance = [&layer, next = layer.calls.advance](kvspan_queue_t* queue,
                                                             const kvspan_attention_args_t* args,
                                                             const kvspan_advance_item_t* items,
                                                             uint32_t count,
                                                             const kvspan_submit_t* submit,
                                                             kvspan_error_t* error) {
    const kvspan_result_t result = next(queue, args, items, count, submit, error);
    if (result != KVSPAN_OK || !readable(args) || count == 0) {
      return result;
    }
    const kvspan_state_t& state = items[count - 1].state;
    const uint64_t behind = state.u_offset + u_bytes(*args, items[count - 1].entry);
    fill_silently(layer, queue, {state.memory, behind, 4}, 0, 4);
    return result;
  };
}

/// u is kept in half precision between advances.
void states_are_kept_in_half(Layer& layer) {
  layer.calls.advance = [&layer, next = layer.calls.advance](kvspan_queue_t* queue,
                                                             const kvspan_attention_args_t* args,
                                                             const kvspan_advance_item_t* items,
                                                             uint32_t count,
                                                             const kvspan_submit_t* submit,
                                                             kvspan_error_t* error) {
    if (!readable(args) || items == nullptr || count == 0) {
      return next(queue, args, items, count, submit, error);
    }
    const Go go = [&](const kvspan_submit_t* own, kvspan_error_t* out) {
      return next(queue, args, items, count, own, out);
    };
    return spoil(layer, queue, submit, error, go, [&] {
      for (uint32_t i = 0; i < count; ++i) {
        const kvspan_state_t& state = items[i].state;
        Bytes u =
            read_memory(layer, queue, state.memory, state.u_offset, u_bytes(*args, items[i].entry));
        round_to_half(u);
        write_memory(layer, queue, state.memory, state.u_offset, u);
        layer.ran();
      }
    });
  };
}

/// Sinks of the call, with ln(times) added: as if each joined the softmax so often.
template <class Call>
kvspan_result_t with_more_sinks(Layer& layer,
                                kvspan_queue_t* queue,
                                const kvspan_attention_args_t* args,
                                const kvspan_submit_t* submit,
                                kvspan_error_t* error,
                                uint64_t times,
                                const Call& call) {
  const bool usable = readable(args) && times > 1 &&
                      (args->shape->options & KVSPAN_OPTION_SINKS) != 0 &&
                      can_do_now(layer, queue, submit);
  Bytes sinks;
  if (usable) {
    const uint64_t bytes = uint64_t{args->shape->q_heads} * 4;
    sinks = read_memory(layer, queue, args->sinks.memory, args->sinks.offset, bytes);
  }
  if (sinks.empty()) {
    return call(args, submit, error);
  }
  for (uint64_t head = 0; head < sinks.size() / 4; ++head) {
    const float more = std::log(static_cast<float>(times));
    store_float(sinks, head, load_float(sinks, head) + more);
  }
  kvspan_memory_t* const memory = make_memory(layer, owner_of(queue)->device, sinks);
  kvspan_attention_args_t changed = *args;
  changed.sinks = {memory, 0, sinks.size()};
  const Go go = [&](const kvspan_submit_t* own, kvspan_error_t* out) {
    return call(&changed, own, out);
  };
  const kvspan_result_t result = spoil(layer, queue, submit, error, go, [&] { layer.ran(); });
  release_memory(layer, memory);
  return result;
}

/// Every split adds the sinks, not finish alone.
void sinks_join_every_split(Layer& layer) {
  layer.calls.run = [&layer, next = layer.calls.run](
                        auto* queue, auto* args, auto* submit, auto* error) {
    uint64_t splits = 1;
    if (readable(args) && args->entries[0].split_tokens != 0) {
      const kvspan_entry_t& entry = args->entries[0];
      splits = (entry.token_total + entry.split_tokens - 1) / entry.split_tokens;
    }
    return with_more_sinks(
        layer, queue, args, submit, error, splits, [&](auto* own, auto* sent, auto* out) {
          return next(queue, own, sent, out);
        });
  };
}

void finish_adds_sinks_twice(Layer& layer) {
  layer.calls.finish = [&layer, next = layer.calls.finish](
                           auto* queue, auto* args, auto* states, auto* submit, auto* error) {
    return with_more_sinks(
        layer, queue, args, submit, error, 2, [&](auto* own, auto* sent, auto* out) {
          return next(queue, own, states, sent, out);
        });
  };
}

constexpr Fault kFaults[] = {
    {"advance_is_never_fresh", advance_is_never_fresh},
    {"fold_is_never_fresh", fold_is_never_fresh},
    {"fold_runs_backwards", fold_runs_backwards},
    {"fold_drops_the_last_split", fold_drops_the_last_split},
    {"fold_adds_neutral_states", fold_adds_neutral_states},
    {"advance_writes_behind_its_state", advance_writes_behind_its_state},
    {"states_are_kept_in_half", states_are_kept_in_half},
    {"sinks_join_every_split", sinks_join_every_split},
    {"finish_adds_sinks_twice", finish_adds_sinks_twice},
};

}  // namespace

std::span<const Fault> attention_state_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
