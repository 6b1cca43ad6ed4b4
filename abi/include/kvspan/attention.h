/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over spans. Optional as a whole; inside it nothing is optional.
 * A history is tokens 0..n on ascending spans. A split is tokens [i*S, (i+1)*S) from absolute token
 * 0; its state {m, l, u} is resumable at granule boundaries and folds in ascending order, so that
 * placement changes no bit. Not here: what is offered (attention_shape.h). The meaning in code:
 * sdk/reference/advance.h and fold.h. */
#ifndef KVSPAN_ATTENTION_H
#define KVSPAN_ATTENTION_H

#include "kvspan/attention_shape.h"
#include "kvspan/error.h"
#include "kvspan/queue.h"
#include "kvspan/types.h"

/* Tokens [first_token, first_token + token_count) of a history. Token first_token + t is token t of
 * its planes. Spans of an entry ascend and do not overlap; gaps are legal and touching one is
 * INVALID_ARG. Every span but the last begins and ends on the granule. With V_IN_K the V plane is
 * ignored. */
typedef struct kvspan_span_t {
  uint64_t first_token;
  uint64_t token_count;
  kvspan_plane_t k;
  kvspan_plane_t v;
} kvspan_span_t;

/* The rows of one sequence. Row r sees tokens [window_begin[r], visible_end[r]); with a suffix
 * mask, of the last suffix_count tokens before token_total only those whose bit is set: bit j of
 * suffix_mask[r] is token token_total - suffix_count + j. A chain-shaped mask gives the bits of
 * plain causality. */
typedef struct kvspan_entry_t {
  const kvspan_span_t* spans;   /* [span_count] */
  const uint64_t* visible_end;  /* [row] tokens */
  const uint64_t* window_begin; /* [row] tokens, or NULL = all 0 */
  const uint64_t* suffix_mask;  /* [row], or NULL = none */
  const int64_t* positions;     /* [row] for ALiBi, or NULL = visible_end - 1 */
  uint32_t span_count;
  uint32_t row_count;
  uint32_t suffix_count; /* <= 64 */
  uint32_t reserved;
  uint64_t token_total;  /* n of the history; what visible_end may reach */
  uint64_t split_tokens; /* S, a multiple of the granule */
  kvspan_rows_t q;       /* [row, q_head, head_size_k] */
  kvspan_rows_t out;     /* [row, q_head, head_size_v] */
  kvspan_range_t lse;    /* f32 [row, q_head], with LSE */
} kvspan_entry_t;

typedef struct kvspan_attention_args_t {
  uint32_t struct_size;
  uint32_t entry_count;
  const kvspan_attention_shape_t* shape; /* what query was asked; entries stay within its limits */
  const kvspan_entry_t* entries;         /* [entry_count] */
  float scale;                           /* of q . k */
  float soft_cap;                        /* > 0 with SOFT_CAP, else 0 */
  kvspan_range_t sinks;                  /* f32 [q_head], with SINKS */
  kvspan_range_t slopes;                 /* f32 [q_head], with ALIBI */
  kvspan_range_t workspace;              /* contents undefined; no entries need none */
} kvspan_attention_args_t;

/* State of one split, or an accumulator: f32 u [row, q_head, head_size_v] and {m, l} [row, q_head,
 * 2], dense. m is the largest scaled, capped, biased score in natural units, l and u are sums of
 * exp(s - m) and exp(s - m) * v. Nothing visible: (-inf, 0, 0). */
typedef struct kvspan_state_t {
  kvspan_memory_t* memory;
  uint64_t u_offset;  /* bytes; aligned to caps.state_alignment */
  uint64_t ml_offset; /* bytes; aligned to caps.state_alignment */
} kvspan_state_t;

#define KVSPAN_ITEM_FRESH 1u /* start from (-inf, 0, 0) without reading the state */

/* Tokens [first_token, first_token + token_count) of split `split` of entry `entry`: the next ones
 * of that split, beginning where its last advance ended (or, FRESH, at the first token of it that
 * any row can see, rounded down to the granule, or before) and ending on the granule or at the
 * split's or history's end. */
typedef struct kvspan_advance_item_t {
  uint32_t entry;
  uint32_t flags; /* KVSPAN_ITEM_* */
  uint64_t split;
  uint64_t first_token;
  uint64_t token_count;
  kvspan_state_t state;
} kvspan_advance_item_t;

/* Folds `source` into `accumulator`. Items of one accumulator are in ascending split order. */
typedef struct kvspan_fold_item_t {
  uint32_t entry;
  uint32_t flags; /* KVSPAN_ITEM_FRESH: the accumulator starts as (-inf, 0, 0) */
  kvspan_state_t source;
  kvspan_state_t accumulator;
} kvspan_fold_item_t;

typedef struct kvspan_attention_table_t {
  uint32_t struct_size;
  uint32_t reserved;

  /** Whether and how a shape runs, with exact amounts.
   * @thread ANY NOBLOCK
   * @shape  as kvspan_attention_shape_t's fields
   * @unit   as the fields say
   * @own    the caller owns out_caps and sets its struct_size
   * @error  INVALID_ARG: a field makes no sense (0 heads, unknown bits); "no" is a level, not an
   * error
   * @rule   KV-QUERY-1 A function of the shape and the device only: not of free memory, time or
   * thread.
   * @rule   KV-QUERY-2 What it grants runs at that level; what it refuses is refused with the same
   * reasons.
   * @rule   KV-QUERY-4 The nearest_* values together make a shape that works.
   * @rule   KV-QUERY-3 No amount depends on tokens_max, and split_count not on rows, arena or
   * entries. */
  kvspan_result_t(KVSPAN_CALL* query)(kvspan_device_t* device,
                                      const kvspan_attention_shape_t* shape,
                                      kvspan_attention_caps_t* out_caps,
                                      kvspan_error_t* error) KVSPAN_NOTHROW;

  /** The same facts as a list.
   * @thread ANY NOBLOCK
   * @shape  out_rules [capacity]; *out_count is the number that exist, whatever the capacity
   * @unit   as the fields say
   * @own    the caller owns the array; out_rules may be NULL with capacity 0
   * @error  none beyond INVALID_ARG
   * @rule   KV-RULES-1 A shape has the highest level of the rules that hold it, and query says the
   * same. */
  kvspan_result_t(KVSPAN_CALL* rules)(kvspan_device_t* device,
                                      kvspan_attention_rule_t* out_rules,
                                      uint32_t capacity,
                                      uint32_t* out_count,
                                      kvspan_error_t* error) KVSPAN_NOTHROW;

  /** All of it in one call: splits, fold, finish, with the bits of advance + fold + finish.
   * @thread SYNC(queue) NOBLOCK
   * @shape  args->entries [entry_count]; see kvspan_entry_t
   * @unit   bytes, tokens, elements as the fields say
   * @own    arrays are copied before return; memories live until the signals settle
   * @error  UNSUPPORTED: query says so too; next: ask query for the nearest that works
   * @error  INVALID_ARG: spans descend, overlap, miss a visible token or break the granule; a range
   * outside its memory; more rows, spans or entries than the shape; argument and field_offset say
   * which
   * @error  WORKSPACE: required is exact; next: give that much, call again
   * @error  QUEUE_FULL: required = depth + 1; next: wait for a submit to settle
   * @rule   KV-ATTN-1 Bytes outside the visible tokens, NaN and infinities included, never move a
   * bit.
   * @rule   KV-ATTN-2 Nothing visible gives output 0 and LSE -inf; entry_count = 0 is OK and
   * signals.
   * @rule   KV-ATTN-3 Within the error class against f64 on the dequantised K/V.
   * @rule   KV-ATTN-4 The bits are those of advance over any cut of the same splits, then fold,
   * then finish.
   * @rule   KV-ATTN-10 A chain-shaped suffix mask gives the bits of plain causality.
   * @rule   KV-ATTN-12 A call that breaks a rule of its structs is refused with the place and
   * changes nothing. */
  kvspan_result_t(KVSPAN_CALL* run)(kvspan_queue_t* queue,
                                    const kvspan_attention_args_t* args,
                                    const kvspan_submit_t* submit,
                                    kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Advances the states of splits over the tokens whose pages are there. Only those need spans.
   * @thread SYNC(queue) NOBLOCK
   * @shape  items [count], an (entry, split) at most once
   * @unit   tokens
   * @own    as run; states live until the signals settle
   * @error  as run; WORKSPACE against advance_workspace_bytes
   * @error  INVALID_ARG: an item leaves its split or breaks the granule, or a state is misaligned
   * or too small
   * @rule   KV-ATTN-5 The bits are a function of shape, S, the rows and the split's own bytes: not
   * of the cut.
   * @rule   KV-ATTN-6 A split with nothing visible for a row leaves (-inf, 0, 0) for it. */
  kvspan_result_t(KVSPAN_CALL* advance)(kvspan_queue_t* queue,
                                        const kvspan_attention_args_t* args,
                                        const kvspan_advance_item_t* items,
                                        uint32_t count,
                                        const kvspan_submit_t* submit,
                                        kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Left fold of split states into accumulators, in item order: M = max(m, m_i), l = l * exp(m -
   * M) + l_i * exp(m_i - M), u alike; a neutral state is skipped, not added.
   * @thread SYNC(queue) NOBLOCK
   * @shape  items [count]
   * @unit   none
   * @own    as advance
   * @error  as advance; WORKSPACE against fold_workspace_bytes
   * @rule   KV-ATTN-7 Resumable: folding in several calls gives the bits of one.
   * @rule   KV-ATTN-8 Neutral with neutral is neutral; neutral with x is x, bit for bit.
   * @rule   KV-ATTN-11 Any two states fold to the state of both together. */
  kvspan_result_t(KVSPAN_CALL* fold)(kvspan_queue_t* queue,
                                     const kvspan_attention_args_t* args,
                                     const kvspan_fold_item_t* items,
                                     uint32_t count,
                                     const kvspan_submit_t* submit,
                                     kvspan_error_t* error) KVSPAN_NOTHROW;

  /** Adds the sink logits once, normalises, writes outputs and LSE of every entry.
   * @thread SYNC(queue) NOBLOCK
   * @shape  accumulators [entry_count]
   * @unit   none
   * @own    as advance
   * @error  as advance; WORKSPACE against finish_workspace_bytes
   * @rule   KV-ATTN-2
   * @rule   KV-ATTN-9 Every output row of every entry is written, padding between rows is not. */
  kvspan_result_t(KVSPAN_CALL* finish)(kvspan_queue_t* queue,
                                       const kvspan_attention_args_t* args,
                                       const kvspan_state_t* accumulators,
                                       const kvspan_submit_t* submit,
                                       kvspan_error_t* error) KVSPAN_NOTHROW;
} kvspan_attention_table_t;

#endif
