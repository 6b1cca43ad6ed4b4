// SPDX-License-Identifier: Apache-2.0
// Checks of attention's arguments: entries, spans, rows, options, workspace. Not here: the shape
// (validate_shape.hpp), that visible tokens have spans (validate_coverage.hpp), run and items
// (validate_items.hpp).
#pragma once

#include "kvspan/attention.h"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/validate_plane.hpp"
#include "kvspan/sdk/validate_range.hpp"
#include "kvspan/sdk/validate_shape.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvspan::sdk {

/// The slot that arguments are for: each reads its own part of them.
enum class AttentionCall { run, advance, fold, finish };

namespace detail {

/// One part of the arguments: all of them are in argument 2, `entries` stands for what it points
/// to.
template <class BytesOf>
Context<BytesOf> in_args(const Context<BytesOf>& context, const char* part, std::size_t field) {
  Context<BytesOf> other = context.at(part, field);
  other.spot.place.argument = 2;
  return other;
}

inline bool reads_queries(AttentionCall call) noexcept {
  return call == AttentionCall::run || call == AttentionCall::advance;
}

inline bool writes_outputs(AttentionCall call) noexcept {
  return call == AttentionCall::run || call == AttentionCall::finish;
}

inline std::uint64_t workspace_bytes(const kvspan_attention_caps_t& caps,
                                     AttentionCall call) noexcept {
  switch (call) {
    case AttentionCall::run:
      return caps.run_workspace_bytes;
    case AttentionCall::advance:
      return caps.advance_workspace_bytes;
    case AttentionCall::fold:
      return caps.fold_workspace_bytes;
    case AttentionCall::finish:
      break;
  }
  return caps.finish_workspace_bytes;
}

/// Spans ascend, do not overlap, and all but the last begin and end on the granule.
template <class BytesOf>
kvspan_result_t check_span_order(const kvspan_entry_t& entry,
                                 const Context<BytesOf>& context,
                                 kvspan_error_t* error,
                                 const char* where) noexcept {
  const std::uint64_t granule = context.caps->span_granule;
  std::uint64_t end = 0;
  for (std::uint32_t i = 0; i < entry.span_count; ++i) {
    const kvspan_span_t& span = entry.spans[i];
    Spot spot = context.spot;
    spot.inner_noun = "span";
    spot.inner_index = i;
    if (span.first_token < end) {
      return refuse(
          spot,
          error,
          where,
          "it begins at token %llu, the span before it ends at %llu: spans ascend without "
          "overlap",
          number(span.first_token),
          number(end));
    }
    if (__builtin_add_overflow(span.first_token, span.token_count, &end)) {
      return refuse(spot, error, where, "its token numbers do not fit 64 bits: correct them");
    }
    const bool last = i + 1 == entry.span_count;
    if (!last && (span.first_token % granule != 0 || end % granule != 0)) {
      return refuse(spot,
                    error,
                    where,
                    "tokens %llu..%llu: all but the last span begin and end on multiples of %llu",
                    number(span.first_token),
                    number(end),
                    number(granule));
    }
  }
  return KVSPAN_OK;
}

/// The planes of every span: inside their memories, page lists within the plugin's limit.
template <class BytesOf>
kvspan_result_t check_span_planes(const kvspan_attention_shape_t& shape,
                                  const kvspan_entry_t& entry,
                                  const Context<BytesOf>& context,
                                  kvspan_error_t* error,
                                  const char* where) noexcept {
  Context<BytesOf> at = context;
  at.spot.inner_noun = "span";
  const std::uint32_t sides = (shape.options & KVSPAN_OPTION_V_IN_K) != 0 ? 1 : 2;
  for (std::uint32_t i = 0; i < entry.span_count; ++i) {
    const kvspan_span_t& span = entry.spans[i];
    at.spot.inner_index = i;
    for (std::uint32_t side = 0; side < sides; ++side) {
      const kvspan_plane_t& plane = side == 0 ? span.k : span.v;
      at.spot.part = side == 0 ? "k" : "v";
      if (plane.page_count > context.caps->span_pages_max) {
        return refuse(at.spot,
                      error,
                      where,
                      "a page_list of %u, %u allowed: use more spans",
                      plane.page_count,
                      context.caps->span_pages_max);
      }
      const PlaneUse use{&plane,
                         side == 0 ? shape.k_type : shape.v_type,
                         0,
                         span.token_count,
                         shape.kv_heads,
                         side == 0 ? shape.head_size_k : shape.head_size_v};
      if (const kvspan_result_t bad = check_plane(use, at, error, where)) {
        return bad;
      }
    }
  }
  return KVSPAN_OK;
}

template <class BytesOf>
kvspan_result_t check_spans(const kvspan_attention_shape_t& shape,
                            const kvspan_entry_t& entry,
                            const Context<BytesOf>& context,
                            kvspan_error_t* error,
                            const char* where) noexcept {
  const std::uint32_t asked = shape.spans_max;
  const std::uint32_t offered = context.caps->spans_max;
  const std::uint32_t spans_max = asked < offered ? asked : offered;
  const List<kvspan_span_t> spans{entry.spans, entry.span_count};
  const Context<BytesOf> at_spans = in_args(context, "spans", context.spot.place.field_offset);
  if (const kvspan_result_t bad = check_list(spans, spans_max, at_spans, error, where)) {
    return bad;
  }
  if (const kvspan_result_t bad = check_span_order(entry, context, error, where)) {
    return bad;
  }
  return check_span_planes(shape, entry, context, error, where);
}

/// What rows see: ends within the history, windows and masks only as options.
template <class BytesOf>
kvspan_result_t check_visibility(const kvspan_attention_shape_t& shape,
                                 const kvspan_entry_t& entry,
                                 const Context<BytesOf>& context,
                                 kvspan_error_t* error,
                                 const char* where) noexcept {
  const Spot& spot = context.spot;
  if (entry.row_count != 0 && entry.visible_end == nullptr) {
    return refuse(spot, error, where, "visible_end is NULL: pass one number a row");
  }
  const bool masks = (shape.options & KVSPAN_OPTION_SUFFIX_MASK) != 0;
  if (entry.suffix_mask != nullptr && !masks) {
    return refuse(spot, error, where, "a suffix_mask without the option: ask query with it");
  }
  if (entry.suffix_mask != nullptr &&
      (entry.suffix_count > 64 || entry.suffix_count > entry.token_total)) {
    return refuse(spot,
                  error,
                  where,
                  "suffix_count %u: at most 64 and the history's %llu tokens",
                  entry.suffix_count,
                  number(entry.token_total));
  }
  const bool windows = (shape.options & KVSPAN_OPTION_WINDOW) != 0;
  for (std::uint32_t row = 0; row < entry.row_count; ++row) {
    if (entry.visible_end[row] > entry.token_total) {
      return refuse(spot,
                    error,
                    where,
                    "visible_end[%u] is %llu of a history of %llu tokens: raise token_total",
                    row,
                    number(entry.visible_end[row]),
                    number(entry.token_total));
    }
    if (entry.window_begin != nullptr && entry.window_begin[row] != 0 && !windows) {
      return refuse(
          spot, error, where, "window_begin[%u] without the option: ask query with it", row);
    }
  }
  return KVSPAN_OK;
}

template <class BytesOf>
kvspan_result_t check_entry_rows(const kvspan_attention_shape_t& shape,
                                 const kvspan_entry_t& entry,
                                 AttentionCall call,
                                 const Context<BytesOf>& context,
                                 kvspan_error_t* error,
                                 const char* where) noexcept {
  Context<BytesOf> at = context;
  if (reads_queries(call)) {
    at.spot.part = "q";
    if (entry.q.type != shape.q_type) {
      return refuse(at.spot, error, where, "type %u, the shape has %u", entry.q.type, shape.q_type);
    }
    const RowsUse use{&entry.q, entry.row_count, shape.q_heads, shape.head_size_k};
    if (const kvspan_result_t bad = check_rows(use, at, error, where)) {
      return bad;
    }
  }
  if (!writes_outputs(call)) {
    return KVSPAN_OK;
  }
  at.spot.part = "out";
  if (entry.out.type != shape.out_type) {
    return refuse(
        at.spot, error, where, "type %u, the shape has %u", entry.out.type, shape.out_type);
  }
  const RowsUse use{&entry.out, entry.row_count, shape.q_heads, shape.head_size_v};
  if (const kvspan_result_t bad = check_rows(use, at, error, where)) {
    return bad;
  }
  if ((shape.options & KVSPAN_OPTION_LSE) == 0) {
    return KVSPAN_OK;
  }
  at.spot.part = "lse";
  const std::uint64_t lse_bytes = std::uint64_t{entry.row_count} * shape.q_heads * 4;
  return check_range_use(RangeUse{&entry.lse, lse_bytes, 4}, at, error, where);
}

template <class BytesOf>
kvspan_result_t check_entry(const kvspan_attention_shape_t& shape,
                            const kvspan_entry_t& entry,
                            AttentionCall call,
                            const Context<BytesOf>& context,
                            kvspan_error_t* error,
                            const char* where) noexcept {
  const Spot& spot = context.spot;
  if (entry.reserved != 0) {
    return refuse(spot, error, where, "reserved is %u: set it to 0", entry.reserved);
  }
  if (entry.row_count > shape.rows_max) {
    return refuse(spot,
                  error,
                  where,
                  "%u rows, the shape has rows_max %u: use more entries or another shape",
                  entry.row_count,
                  shape.rows_max);
  }
  if (entry.token_total > shape.tokens_max) {
    return refuse(spot,
                  error,
                  where,
                  "token_total %llu, the shape has tokens_max %llu: ask query with more",
                  number(entry.token_total),
                  number(shape.tokens_max));
  }
  if (entry.split_tokens == 0 || entry.split_tokens % context.caps->span_granule != 0) {
    return refuse(spot,
                  error,
                  where,
                  "split_tokens %llu is no multiple (>= 1) of the granule %u",
                  number(entry.split_tokens),
                  context.caps->span_granule);
  }
  kvspan_result_t bad = check_visibility(shape, entry, context, error, where);
  if (bad == KVSPAN_OK) {
    bad = check_spans(shape, entry, context, error, where);
  }
  return bad != KVSPAN_OK ? bad : check_entry_rows(shape, entry, call, context, error, where);
}

/// Scale, soft cap, sinks, slopes: present with their option, absent without.
template <class BytesOf>
kvspan_result_t check_options(const kvspan_attention_args_t& args,
                              const Context<BytesOf>& context,
                              kvspan_error_t* error,
                              const char* where) noexcept {
  const kvspan_attention_shape_t& shape = *args.shape;
  if (!std::isfinite(args.scale)) {
    const auto at = in_args(context, "scale", offsetof(kvspan_attention_args_t, scale));
    return refuse(at.spot, error, where, "not a finite number: 1 / sqrt(head size) is usual");
  }
  const bool capped = (shape.options & KVSPAN_OPTION_SOFT_CAP) != 0;
  const bool fits = capped ? std::isfinite(args.soft_cap) && args.soft_cap > 0.0f
                           : !(args.soft_cap < 0.0f) && !(args.soft_cap > 0.0f);
  if (!fits || std::isnan(args.soft_cap)) {
    const auto at = in_args(context, "soft_cap", offsetof(kvspan_attention_args_t, soft_cap));
    return refuse(at.spot,
                  error,
                  where,
                  "%g %s the option: finite and > 0 with it, 0 without",
                  static_cast<double>(args.soft_cap),
                  capped ? "with" : "without");
  }
  const std::uint64_t head_bytes = std::uint64_t{shape.q_heads} * 4;
  const std::uint64_t sinks = (shape.options & KVSPAN_OPTION_SINKS) != 0 ? head_bytes : 0;
  const auto at_sinks = in_args(context, "sinks", offsetof(kvspan_attention_args_t, sinks));
  kvspan_result_t bad = check_range_use(RangeUse{&args.sinks, sinks, 4}, at_sinks, error, where);
  if (bad == KVSPAN_OK) {
    const std::uint64_t slopes = (shape.options & KVSPAN_OPTION_ALIBI) != 0 ? head_bytes : 0;
    const auto at_slopes = in_args(context, "slopes", offsetof(kvspan_attention_args_t, slopes));
    bad = check_range_use(RangeUse{&args.slopes, slopes, 4}, at_slopes, error, where);
  }
  return bad;
}

/// WORKSPACE with the exact amount, or a range inside its memory on the plugin's alignment.
template <class BytesOf>
kvspan_result_t check_workspace(const kvspan_attention_args_t& args,
                                AttentionCall call,
                                const Context<BytesOf>& context,
                                kvspan_error_t* error,
                                const char* where) noexcept {
  const std::uint64_t required = workspace_bytes(*context.caps, call);
  if (args.workspace.bytes < required) {
    return fail_amount(error,
                       KVSPAN_E_WORKSPACE,
                       where,
                       Amount{KVSPAN_RESOURCE_WORKSPACE, required, args.workspace.bytes},
                       "a workspace of %llu bytes, %llu are needed: give that many and call again",
                       number(args.workspace.bytes),
                       number(required));
  }
  const auto at = in_args(context, "workspace", offsetof(kvspan_attention_args_t, workspace));
  const RangeUse use{&args.workspace, required, context.caps->workspace_alignment};
  return check_range_use(use, at, error, where);
}

}  // namespace detail

/// What all four slots take as argument 2, as far as `call` reads it: struct, shape, limits,
/// options, entries with their spans, rows and outputs, workspace (no entries need none).
/// context.caps answers query(args->shape).
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_attention_args(const kvspan_attention_args_t* args,
                                                   AttentionCall call,
                                                   const Context<BytesOf>& context,
                                                   kvspan_error_t* error,
                                                   const char* where) noexcept {
  if (const kvspan_result_t bad = take(args, error, where, 2)) {
    return bad;
  }
  if (const kvspan_result_t bad = check_shape(args->shape, error, where, 2)) {
    if (error != nullptr) {
      error->field_offset = offsetof(kvspan_attention_args_t, shape);
    }
    return bad;
  }
  const kvspan_attention_shape_t& shape = *args->shape;
  const List<kvspan_entry_t> entries{args->entries, args->entry_count};
  auto at = detail::in_args(context, "entries", offsetof(kvspan_attention_args_t, entries));
  kvspan_result_t bad = detail::check_list(entries, shape.entries_max, at, error, where);
  if (bad == KVSPAN_OK) {
    bad = detail::check_options(*args, context, error, where);
  }
  at.spot.part = nullptr;
  for (std::uint32_t i = 0; i < args->entry_count && bad == KVSPAN_OK; ++i) {
    const auto at_entry = at.element("entry", i);
    bad = detail::check_entry(shape, args->entries[i], call, at_entry, error, where);
  }
  if (bad != KVSPAN_OK || args->entry_count == 0) {
    return bad;
  }
  return detail::check_workspace(*args, call, context, error, where);
}

}  // namespace kvspan::sdk
