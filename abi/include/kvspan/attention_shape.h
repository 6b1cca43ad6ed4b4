/* SPDX-License-Identifier: Apache-2.0 */
/* What attention is asked about and what a plugin answers: shape in, capability out.
 * Query = rules = behaviour. Not here: running it (attention.h). */
#ifndef KVSPAN_ATTENTION_SHAPE_H
#define KVSPAN_ATTENTION_SHAPE_H

#include "kvspan/types.h"

/* levels: nothing runs below the level that was answered */
#define KVSPAN_LEVEL_UNSUPPORTED 0u
#define KVSPAN_LEVEL_CONVERTS \
  1u /* right, but by converting K or V first: needs the caller's consent */
#define KVSPAN_LEVEL_NATIVE 2u

/* shape.options */
#define KVSPAN_OPTION_WINDOW 0x1u      /* window_begin > 0 somewhere */
#define KVSPAN_OPTION_SUFFIX_MASK 0x2u /* tree verification */
#define KVSPAN_OPTION_SOFT_CAP 0x4u    /* s = cap * tanh(scale * dot / cap) */
#define KVSPAN_OPTION_SINKS \
  0x8u /* one learned logit a query head joins the softmax, without a value */
#define KVSPAN_OPTION_ALIBI \
  0x10u /* s += slope[head] * (position of the token - position of the row) */
#define KVSPAN_OPTION_V_IN_K \
  0x20u /* V is the first head_size_v elements of K's row (latent attention) */
#define KVSPAN_OPTION_LSE 0x40u /* m + ln(l) a row and head is written too */

/* Row classes: the phase tells them, never a count. N (caps.split_count) depends on the class. */
#define KVSPAN_ROWS_DECODE 0u  /* 1..64 rows an entry */
#define KVSPAN_ROWS_PREFILL 1u /* any rows */

/* Error classes: the loosest that the caller accepts, against f64 on the dequantised K/V with f32
 * output: NMSE and largest |error| / largest |V|. A plugin may be tighter. */
#define KVSPAN_ERROR_E0 0u /* f32 operands: 1e-11, 1e-5 */
#define KVSPAN_ERROR_E1 \
  1u /* f16 or bf16 operands, f32 sums: 2e-7, 2e-3 (bf16 2e-5, 2e-2); the default */
#define KVSPAN_ERROR_E2 2u /* Q or P in 8 bit: 2e-5, 2e-2; counted */

typedef struct kvspan_attention_shape_t {
  uint32_t struct_size;
  uint32_t options; /* KVSPAN_OPTION_* */
  kvspan_type_t k_type;
  kvspan_type_t v_type; /* equal to k_type with V_IN_K */
  kvspan_type_t q_type; /* F32, F16, BF16 */
  kvspan_type_t out_type;
  uint32_t head_size_k; /* elements; of queries too */
  uint32_t head_size_v;
  uint32_t q_heads;
  uint32_t kv_heads; /* divides q_heads; query head h reads KV head h / (q_heads / kv_heads) */
  uint32_t row_class;
  uint32_t error_class;
  uint32_t memory_kinds; /* bits 1u << KVSPAN_MEMORY_*: where span planes may lie */
  uint32_t rows_max;     /* rows an entry */
  uint32_t entries_max;
  uint32_t items_max; /* items of an advance or fold */
  uint32_t spans_max; /* spans an entry */
  uint32_t reserved;
  uint64_t tokens_max; /* of a history; no amount below grows with it */
} kvspan_attention_shape_t;

/* caps.determinism; the first three are mandatory for one build on one device kind.
 * KV-BITS-1 No bit of an output depends on spans, memories, cuts or waves. KV-BITS-2 Nor on
 * neighbours in the call. KV-BITS-3 Nor on time, threads or load. KV-BITS-4 Nor, where declared, on
 * the number of rows beside, for widths 1..width_invariant_max. */
#define KVSPAN_PLACEMENT_INVARIANT 1u /* KV-BITS-1 */
#define KVSPAN_BATCH_INVARIANT 2u     /* KV-BITS-2 */
#define KVSPAN_REPEATABLE 4u          /* KV-BITS-3 */
#define KVSPAN_WIDTH_INVARIANT 8u     /* KV-BITS-4 */

typedef struct kvspan_attention_caps_t {
  uint32_t struct_size;
  uint32_t level;       /* KVSPAN_LEVEL_* */
  uint32_t reasons;     /* KVSPAN_WHY_* when UNSUPPORTED */
  uint32_t error_class; /* the class that will be met: never looser than asked */
  uint32_t determinism;
  uint32_t width_invariant_max;
  uint32_t span_granule; /* tokens; a power of two <= 64: spans, items and splits are cut at its
                            multiples */
  uint32_t split_count;  /* N: core's S is n / N rounded up to the granule; long ones of prefill, to
                            whole pages */
  uint32_t spans_max;    /* an entry; >= 1024 */
  uint32_t span_pages_max; /* page list entries a span; >= 4096 */
  uint32_t workspace_alignment;
  uint32_t state_alignment;
  uint64_t run_workspace_bytes; /* exact: this works, one less is WORKSPACE with required = this */
  uint64_t advance_workspace_bytes;
  uint64_t fold_workspace_bytes;
  uint64_t finish_workspace_bytes;
  uint64_t state_u_bytes;  /* of one split of one entry: rows_max * q_heads * head_size_v * 4 */
  uint64_t state_ml_bytes; /* of one split of one entry: rows_max * q_heads * 2 * 4 */
  uint64_t read_bytes;     /* K/V bytes read for tokens_max tokens a row tile: the cost of a cliff,
                              before it */
  uint64_t flops;          /* for rows_max rows over tokens_max tokens */
  kvspan_type_t
      nearest_k_type; /* when UNSUPPORTED: values that together would work, all 0 if none */
  kvspan_type_t nearest_v_type;
  uint32_t nearest_head_size_k;
  uint32_t nearest_head_size_v;
  uint32_t nearest_rows;
  uint32_t nearest_error_class;
} kvspan_attention_caps_t;

/* One line of the same facts: everything in the cross product of the fields has this level. */
typedef struct kvspan_attention_rule_t {
  uint64_t k_types; /* bit 1 << type id */
  uint64_t v_types;
  uint32_t same_type_only; /* 1: the pair must be equal */
  uint32_t level;
  uint32_t head_size_min; /* K and V side alike */
  uint32_t head_size_max;
  uint32_t head_size_multiple;
  uint32_t group_max;   /* q_heads / kv_heads: 1..group_max */
  uint32_t row_classes; /* bits 1u << class */
  uint32_t rows_max;
  uint32_t options;       /* any subset */
  uint32_t error_classes; /* bits 1u << class */
  uint32_t memory_kinds;  /* any subset */
  uint32_t row_types;     /* bit 1 << type id, queries and outputs */
} kvspan_attention_rule_t;

#endif
