// SPDX-License-Identifier: Apache-2.0
// The whole check of run, and the items of advance, fold and finish. The checks of items expect
// that check_attention_args passed for the same call.
#pragma once

#include "kvspan/attention.h"
#include "kvspan/sdk/validate_attention.hpp"
#include "kvspan/sdk/validate_coverage.hpp"

#include <cstddef>
#include <cstdint>

namespace kvspan::sdk {

namespace detail {

/// Both planes of a state, dense for the rows of `entry`, inside their memory on the alignment.
template <class BytesOf>
kvspan_result_t check_state(const kvspan_state_t& state,
                            const kvspan_attention_args_t& args,
                            std::uint32_t entry,
                            const Context<BytesOf>& context,
                            kvspan_error_t* error,
                            const char* where) noexcept {
  const kvspan_attention_shape_t& shape = *args.shape;
  const std::uint64_t pairs = std::uint64_t{args.entries[entry].row_count} * shape.q_heads;
  const std::uint64_t alignment = context.caps->state_alignment;
  kvspan_result_t bad =
      check_multiple("u_offset", state.u_offset, alignment, context, error, where);
  if (bad == KVSPAN_OK) {
    bad = check_multiple("ml_offset", state.ml_offset, alignment, context, error, where);
  }
  if (bad != KVSPAN_OK || pairs == 0) {
    return bad;
  }
  const Extent u = Extent(state.u_offset).add(pairs, std::uint64_t{shape.head_size_v} * 4);
  bad = check_end(u, state.memory, context, error, where);
  if (bad != KVSPAN_OK) {
    return bad;
  }
  const Extent ml = Extent(state.ml_offset).add(pairs, 8);
  bad = check_end(ml, state.memory, context, error, where);
  if (bad != KVSPAN_OK) {
    return bad;
  }
  if (state.u_offset < ml.bytes() && state.ml_offset < u.bytes()) {
    return refuse(context.spot, error, where, "its u and {m, l} planes overlap: part them");
  }
  return KVSPAN_OK;
}

/// The item's tokens are the next ones of its split, cut where a cut may be.
template <class BytesOf>
kvspan_result_t check_item_tokens(const kvspan_advance_item_t& item,
                                  const kvspan_entry_t& entry,
                                  const Context<BytesOf>& context,
                                  kvspan_error_t* error,
                                  const char* where) noexcept {
  const std::uint64_t granule = context.caps->span_granule;
  std::uint64_t split_begin = 0;
  std::uint64_t split_end = 0;
  std::uint64_t end = 0;
  if (__builtin_mul_overflow(item.split, entry.split_tokens, &split_begin) ||
      split_begin >= entry.token_total) {
    return refuse(context.spot,
                  error,
                  where,
                  "split %llu of %llu tokens begins behind the history's %llu tokens",
                  number(item.split),
                  number(entry.split_tokens),
                  number(entry.token_total));
  }
  if (__builtin_add_overflow(split_begin, entry.split_tokens, &split_end) ||
      split_end > entry.token_total) {
    split_end = entry.token_total;
  }
  if (__builtin_add_overflow(item.first_token, item.token_count, &end) ||
      item.first_token < split_begin || end > split_end) {
    return refuse(context.spot,
                  error,
                  where,
                  "tokens %llu.. (%llu of them) leave split %llu, which is %llu..%llu",
                  number(item.first_token),
                  number(item.token_count),
                  number(item.split),
                  number(split_begin),
                  number(split_end));
  }
  if (item.first_token % granule != 0 || (end % granule != 0 && end != split_end)) {
    return refuse(context.spot,
                  error,
                  where,
                  "tokens %llu..%llu break the granule %llu: cut at its multiples",
                  number(item.first_token),
                  number(end),
                  number(granule));
  }
  return KVSPAN_OK;
}

/// Whether an earlier item names the same split of the same entry. Lists that ascend are checked
/// against their last item only.
inline bool repeats(const kvspan_advance_item_t* items, std::uint32_t i, bool& ascending) noexcept {
  const auto before = [](const kvspan_advance_item_t& a, const kvspan_advance_item_t& b) {
    return a.entry != b.entry ? a.entry < b.entry : a.split < b.split;
  };
  if (i == 0) {
    return false;
  }
  ascending = ascending && before(items[i - 1], items[i]);
  if (ascending) {
    return false;
  }
  for (std::uint32_t j = 0; j < i; ++j) {
    if (items[j].entry == items[i].entry && items[j].split == items[i].split) {
      return true;
    }
  }
  return false;
}

/// Fields that advance and fold items share.
template <class BytesOf>
kvspan_result_t check_item_fields(std::uint32_t entry,
                                  std::uint32_t flags,
                                  const kvspan_attention_args_t& args,
                                  const Context<BytesOf>& context,
                                  kvspan_error_t* error,
                                  const char* where) noexcept {
  if (entry >= args.entry_count) {
    return refuse(context.spot,
                  error,
                  where,
                  "entry %u of %u: name one that exists",
                  entry,
                  args.entry_count);
  }
  if ((flags & ~KVSPAN_ITEM_FRESH) != 0) {
    return refuse(context.spot, error, where, "unknown flags 0x%x: use KVSPAN_ITEM_* only", flags);
  }
  return KVSPAN_OK;
}

/// Items are argument 3 of their slots.
template <class BytesOf>
Context<BytesOf> in_items(const Context<BytesOf>& context, const char* part) {
  Context<BytesOf> other = context.at(part, UINT32_MAX);
  other.spot.place.argument = 3;
  return other;
}

}  // namespace detail

/// All of run's argument 2: check_attention_args, and every visible token of every entry has a
/// span.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_run(const kvspan_attention_args_t* args,
                                        const Context<BytesOf>& context,
                                        kvspan_error_t* error,
                                        const char* where) noexcept {
  kvspan_result_t bad = check_attention_args(args, AttentionCall::run, context, error, where);
  if (bad != KVSPAN_OK) {
    return bad;
  }
  for (std::uint32_t i = 0; i < args->entry_count && bad == KVSPAN_OK; ++i) {
    const kvspan_entry_t& entry = args->entries[i];
    const auto at = detail::in_args(context, nullptr, offsetof(kvspan_attention_args_t, entries))
                        .element("entry", i);
    bad = detail::check_held(
        entry, {0, entry.token_total}, detail::seen_by_entry(entry), at, error, where);
  }
  return bad;
}

/// Items of advance, in any order: an (entry, split) once, tokens inside the split and cut on the
/// granule, their visible part in spans, states in place. That an item continues where the last
/// advance of its split ended is the caller's duty.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_advance_items(const List<kvspan_advance_item_t>& items,
                                                  const kvspan_attention_args_t& args,
                                                  const Context<BytesOf>& context,
                                                  kvspan_error_t* error,
                                                  const char* where) noexcept {
  const auto at_list = detail::in_items(context, "items");
  if (const kvspan_result_t bad =
          detail::check_list(items, args.shape->items_max, at_list, error, where)) {
    return bad;
  }
  bool ascending = true;
  std::uint32_t seen_entry = UINT32_MAX;
  TokenRange seen{0, 0};
  auto at = detail::in_items(context, nullptr);
  for (std::uint32_t i = 0; i < items.count; ++i) {
    const kvspan_advance_item_t& item = items.data[i];
    at.spot.noun = "item";
    at.spot.index = i;
    at.spot.place.field_offset = offsetof(kvspan_advance_item_t, entry);
    kvspan_result_t bad = detail::check_item_fields(item.entry, item.flags, args, at, error, where);
    if (bad != KVSPAN_OK) {
      return bad;
    }
    const kvspan_entry_t& entry = args.entries[item.entry];
    at.spot.place.field_offset = offsetof(kvspan_advance_item_t, split);
    if (detail::repeats(items.data, i, ascending)) {
      return refuse(at.spot,
                    error,
                    where,
                    "split %llu of entry %u is there twice: one item a split",
                    detail::number(item.split),
                    item.entry);
    }
    if (item.entry != seen_entry) {
      seen_entry = item.entry;
      seen = detail::seen_by_entry(entry);
    }
    at.spot.place.field_offset = offsetof(kvspan_advance_item_t, first_token);
    bad = detail::check_item_tokens(item, entry, at, error, where);
    if (bad == KVSPAN_OK) {
      const TokenRange part{item.first_token, item.first_token + item.token_count};
      bad = detail::check_held(entry, part, seen, at, error, where);
    }
    if (bad == KVSPAN_OK) {
      at.spot.place.field_offset = offsetof(kvspan_advance_item_t, state);
      bad = detail::check_state(item.state, args, item.entry, at, error, where);
    }
    if (bad != KVSPAN_OK) {
      return bad;
    }
  }
  return KVSPAN_OK;
}

/// Items of fold: states in place, source and accumulator not the same. That the items of one
/// accumulator ascend is the caller's duty: a fold does not know splits.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_fold_items(const List<kvspan_fold_item_t>& items,
                                               const kvspan_attention_args_t& args,
                                               const Context<BytesOf>& context,
                                               kvspan_error_t* error,
                                               const char* where) noexcept {
  const auto at_list = detail::in_items(context, "items");
  if (const kvspan_result_t bad =
          detail::check_list(items, args.shape->items_max, at_list, error, where)) {
    return bad;
  }
  auto at = detail::in_items(context, nullptr);
  for (std::uint32_t i = 0; i < items.count; ++i) {
    const kvspan_fold_item_t& item = items.data[i];
    at.spot.noun = "item";
    at.spot.index = i;
    at.spot.part = nullptr;
    at.spot.place.field_offset = offsetof(kvspan_fold_item_t, entry);
    kvspan_result_t bad = detail::check_item_fields(item.entry, item.flags, args, at, error, where);
    if (bad == KVSPAN_OK) {
      at.spot.part = "source";
      at.spot.place.field_offset = offsetof(kvspan_fold_item_t, source);
      bad = detail::check_state(item.source, args, item.entry, at, error, where);
    }
    if (bad == KVSPAN_OK) {
      at.spot.part = "accumulator";
      at.spot.place.field_offset = offsetof(kvspan_fold_item_t, accumulator);
      bad = detail::check_state(item.accumulator, args, item.entry, at, error, where);
    }
    if (bad == KVSPAN_OK && item.source.memory == item.accumulator.memory &&
        (item.source.u_offset == item.accumulator.u_offset ||
         item.source.ml_offset == item.accumulator.ml_offset)) {
      bad = refuse(at.spot, error, where, "it is its own source: fold into other bytes");
    }
    if (bad != KVSPAN_OK) {
      return bad;
    }
  }
  return KVSPAN_OK;
}

/// Finish's argument 3: one accumulator an entry, in place.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_finish(const kvspan_state_t* accumulators,
                                           const kvspan_attention_args_t& args,
                                           const Context<BytesOf>& context,
                                           kvspan_error_t* error,
                                           const char* where) noexcept {
  const List<kvspan_state_t> states{accumulators, args.entry_count};
  auto at = detail::in_items(context, "accumulators");
  if (const kvspan_result_t bad = detail::check_list(states, UINT32_MAX, at, error, where)) {
    return bad;
  }
  at.spot.part = nullptr;
  for (std::uint32_t i = 0; i < states.count; ++i) {
    const auto at_state = at.element("accumulator", i);
    if (const kvspan_result_t bad =
            detail::check_state(states.data[i], args, i, at_state, error, where)) {
      return bad;
    }
  }
  return KVSPAN_OK;
}

}  // namespace kvspan::sdk
