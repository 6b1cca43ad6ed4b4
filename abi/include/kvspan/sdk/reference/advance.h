// SPDX-License-Identifier: Apache-2.0
// Which tokens a row sees, and how the state of one (row, head) advances over a range of tokens:
// a running softmax, granule by granule. This is the meaning of "resumable": after every granule
// the state is complete, so the bits are the same however a split is cut.
// Not here: addresses (span.h), folding and output (fold.h), speed (a plugin's own kernel).
// Read next: kvspan_entry_t in attention.h.
//
// One granule (tokens [g * G, (g + 1) * G) of the absolute count, those in range and visible):
//   s = scale * (q . k); with a soft cap s = cap * tanh(s / cap); with ALiBi then
//   s += slope * (token - position); M = max(m, largest s), c = exp(m - M), 0 if m = -inf;
//   l = l * c + sum exp(s - M), u = u * c + sum exp(s - M) * v, m = M; sums by ascending token.
// Inside a granule sums are f64 and every weight exp(s - M) is f32: all products that are added are
// exact, so fused multiply-add changes nothing. Between granules only m, l, u in f32 live on.
#ifndef KVSPAN_SDK_REFERENCE_ADVANCE_H
#define KVSPAN_SDK_REFERENCE_ADVANCE_H

#include "kvspan/attention.h"
#include "kvspan/sdk/reference/fold.h"
#include "kvspan/sdk/reference/rounding.h"

#include <math.h>
#include <stdint.h>

/// The largest granule there is, in tokens.
#define KVSPAN_REF_GRANULE_MAX 64u

/// Which tokens one row sees: [window_begin, visible_end), and of the last suffix_count tokens
/// before token_total only those whose bit is set: bit j is token token_total - suffix_count + j.
typedef struct kvspan_ref_visibility_t {
  uint64_t window_begin;
  uint64_t visible_end;
  uint64_t token_total;  // used with suffix_count only
  uint64_t suffix_mask;
  uint32_t suffix_count;  // 0..64; 0 = no mask
} kvspan_ref_visibility_t;

/// Whether the row sees history token `token`. Any thread. 1 = yes.
static inline int kvspan_ref_sees(const kvspan_ref_visibility_t* visibility, uint64_t token) {
  if (token < visibility->window_begin || token >= visibility->visible_end) {
    return 0;
  }
  const uint64_t bit = token + visibility->suffix_count;
  if (visibility->suffix_count == 0u || bit < visibility->token_total) {
    return 1;
  }
  return (int)((visibility->suffix_mask >> ((bit - visibility->token_total) & 63u)) & 1u);
}

/// The visibility of row `row` of an entry, with the defaults of its NULL arrays. Any thread.
static inline kvspan_ref_visibility_t kvspan_ref_visibility_of(const kvspan_entry_t* entry,
                                                               uint32_t row) {
  kvspan_ref_visibility_t visibility;
  visibility.window_begin = entry->window_begin ? entry->window_begin[row] : 0;
  visibility.visible_end = entry->visible_end[row];
  visibility.token_total = entry->token_total;
  visibility.suffix_mask = entry->suffix_mask ? entry->suffix_mask[row] : 0;
  visibility.suffix_count = entry->suffix_mask ? entry->suffix_count : 0u;
  return visibility;
}

/// The position of row `row` of an entry for ALiBi: visible_end - 1 without positions. Any thread.
static inline int64_t kvspan_ref_position_of(const kvspan_entry_t* entry, uint32_t row) {
  return entry->positions ? entry->positions[row] : (int64_t)entry->visible_end[row] - 1;
}

/// Gives the f32 row of `token` for the KV head that `context` knows: a pointer to its elements,
/// in `scratch` (as many floats as the row) or elsewhere, valid until the next call.
/// Called in ascending token order, for visible tokens only: nothing else is ever read.
typedef const float* (*kvspan_ref_row_t)(void* context, uint64_t token, float* scratch);

/// One (row, head). The caller owns every array; none may overlap another or the state.
typedef struct kvspan_ref_advance_t {
  const float* q;      // [head_size_k]
  kvspan_ref_row_t k;  // rows of head_size_k elements
  kvspan_ref_row_t v;  // rows of head_size_v elements; with V_IN_K, the same function as k
  void* context;       // given to k and v
  float* k_scratch;    // [head_size_k]
  float* v_scratch;    // [head_size_v], or [head_size_k] with V_IN_K
  double* sums;        // [head_size_v], contents undefined before and after
  kvspan_ref_visibility_t visibility;
  int64_t position;      // of the row; used with slope only
  uint32_t head_size_k;  // elements
  uint32_t head_size_v;  // elements
  uint32_t granule;      // tokens; a power of two <= KVSPAN_REF_GRANULE_MAX
  float scale;           // of q . k
  float soft_cap;        // 0 = none
  float slope;           // ALiBi; 0 = none
} kvspan_ref_advance_t;

/// The score of a token whose K row is k [head_size_k], in f64. Any thread.
static inline double kvspan_ref_score(const kvspan_ref_advance_t* args,
                                      const float* k,
                                      uint64_t token) {
  double dot = 0.0;
  for (uint32_t d = 0; d < args->head_size_k; ++d) {
    dot += (double)args->q[d] * (double)k[d];
  }
  double score = kvspan_ref_product_f64((double)args->scale, dot);
  if (args->soft_cap != 0.0f) {
    const double cap = args->soft_cap;
    score = kvspan_ref_product_f64(cap, tanh(score / cap));
  }
  if (args->slope != 0.0f) {
    score += kvspan_ref_product_f64((double)args->slope, (double)((int64_t)token - args->position));
  }
  return score;
}

/// One granule's share [first, end) of kvspan_ref_advance; not for callers.
static inline void kvspan_ref_advance_granule(
    const kvspan_ref_advance_t* args, uint64_t first, uint64_t end, float* ml, float* u) {
  double scores[KVSPAN_REF_GRANULE_MAX];
  float m = ml[0];
  for (uint64_t token = first; token < end; ++token) {
    if (kvspan_ref_sees(&args->visibility, token)) {
      const double score =
          kvspan_ref_score(args, args->k(args->context, token, args->k_scratch), token);
      scores[token - first] = score;
      m = kvspan_ref_max(m, (float)score);
    }
  }
  if (kvspan_ref_state_is_neutral(m)) {
    return;  // nothing visible, or nothing that weighs: scores of -inf
  }
  double l = 0.0;
  for (uint32_t d = 0; d < args->head_size_v; ++d) {
    args->sums[d] = 0.0;
  }
  int seen = 0;
  for (uint64_t token = first; token < end; ++token) {
    if (!kvspan_ref_sees(&args->visibility, token)) {
      continue;
    }
    seen = 1;
    const double weight = expf((float)(scores[token - first] - (double)m));
    const float* v = args->v(args->context, token, args->v_scratch);
    l += weight;
    for (uint32_t d = 0; d < args->head_size_v; ++d) {
      args->sums[d] += weight * (double)v[d];
    }
  }
  if (!seen) {
    return;  // bit for bit as it was
  }
  const int fresh = kvspan_ref_state_is_neutral(ml[0]);
  const double kept = fresh ? 0.0 : (double)expf(ml[0] - m);
  ml[0] = m;
  ml[1] = (float)(fresh ? l : (double)ml[1] * kept + l);
  for (uint32_t d = 0; d < args->head_size_v; ++d) {
    u[d] = (float)(fresh ? args->sums[d] : (double)u[d] * kept + args->sums[d]);
  }
}

/// Advances the state {ml [2], u [head_size_v]} of one (row, head) over tokens [first, end).
/// Any thread. A state starts from kvspan_ref_state_clear; later calls begin where the last ended.
/// 1 = done; a granule in which the row sees nothing left the state as it was, bit for bit.
/// 0 = nothing touched: the granule is no power of two <= 64, or first is not on it (end need not
/// be: the history or the split ends there, and nothing may be resumed from it). Next move: cut on
/// the granule.
static inline int kvspan_ref_advance(
    const kvspan_ref_advance_t* args, uint64_t first, uint64_t end, float* ml, float* u) {
  const uint32_t granule = args->granule;
  if (granule == 0u || granule > KVSPAN_REF_GRANULE_MAX || (granule & (granule - 1u)) != 0u ||
      first % granule != 0) {
    return 0;
  }
  for (uint64_t at = first; at < end;) {
    const uint64_t next = end - at > granule ? at + granule : end;
    kvspan_ref_advance_granule(args, at, next, ml, u);
    at = next;
  }
  return 1;
}

#endif
