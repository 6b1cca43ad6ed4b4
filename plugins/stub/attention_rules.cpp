// SPDX-License-Identifier: Apache-2.0
// The rules and the answer. A shape is refused for the facts that part it from the nearest rule:
// the one it breaks in the fewest ways. Amounts are exact. Read next: attention.cpp.
#include "attention_rules.hpp"

#include "kvspan/memory.h"
#include "kvspan/sdk/reference/quant.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace kvspan::stub {
namespace {

using Rule = kvspan_attention_rule_t;
using Shape = kvspan_attention_shape_t;

constexpr std::uint32_t kSpansMax = 1024;      // an entry; the least that the ABI allows
constexpr std::uint32_t kSpanPagesMax = 4096;  // a span; likewise
constexpr std::uint32_t kHeadSizeMax = 256;
constexpr std::uint32_t kPrefillRowsMax = 1u << 20;  // with 2^32 heads amounts stay below 2^64

constexpr Rule rule(std::uint64_t types, std::uint32_t multiple, std::uint32_t row_class) {
  Rule made = sdk::full_rule(types, {multiple, kHeadSizeMax}, row_class);
  made.rows_max = std::min(made.rows_max, kPrefillRowsMax);
  return made;
}

constexpr Rule kRules[] = {
    rule(sdk::kAllTypes, KVSPAN_REF_BLOCK_ELEMENTS, KVSPAN_ROWS_DECODE),
    rule(sdk::kAllTypes, KVSPAN_REF_BLOCK_ELEMENTS, KVSPAN_ROWS_PREFILL),
    rule(sdk::kFloatTypes, 1, KVSPAN_ROWS_DECODE),
    rule(sdk::kFloatTypes, 1, KVSPAN_ROWS_PREFILL),
};

bool has(std::uint64_t types, kvspan_type_t type) {
  return type < 64 && (types >> type & 1) != 0;
}

/// KVSPAN_WHY_* of the two head sizes. A block that divides neither is the reason before any other:
/// where it is at fault the user changes the type or that size.
std::uint32_t misses_sizes(const Rule& rule, const Shape& shape) {
  std::uint32_t why = 0;
  bool block = false;
  for (const bool k : {true, false}) {
    const std::uint32_t size = k ? shape.head_size_k : shape.head_size_v;
    const kvspan_ref_block_t unit = kvspan_ref_block(k ? shape.k_type : shape.v_type);
    const bool outside = size < rule.head_size_min || size > rule.head_size_max;
    why |= outside || size % rule.head_size_multiple != 0 ? KVSPAN_WHY_HEAD_SIZE : 0;
    block = block || (unit.elements > 1 && size % unit.elements != 0);
  }
  return why != 0 && block ? KVSPAN_WHY_BLOCK : why;
}

/// KVSPAN_WHY_* in which a shape breaks a rule; 0 = the rule holds it.
std::uint32_t misses(const Rule& rule, const Shape& shape) {
  std::uint32_t why = misses_sizes(rule, shape);
  why |= has(rule.k_types, shape.k_type) ? 0 : KVSPAN_WHY_K_TYPE;
  why |= has(rule.v_types, shape.v_type) ? 0 : KVSPAN_WHY_V_TYPE;
  why |= rule.same_type_only != 0 && shape.k_type != shape.v_type ? KVSPAN_WHY_PAIR : 0;
  const bool whole = shape.q_heads % shape.kv_heads == 0;
  why |= whole && shape.q_heads / shape.kv_heads <= rule.group_max ? 0 : KVSPAN_WHY_GROUP;
  const bool rows =
      (rule.row_classes >> shape.row_class & 1) != 0 && shape.rows_max <= rule.rows_max;
  why |= rows ? 0 : KVSPAN_WHY_ROWS;
  const bool row_types = has(rule.row_types, shape.q_type) && has(rule.row_types, shape.out_type);
  why |= row_types ? 0 : KVSPAN_WHY_ROW_TYPE;
  why |= (shape.options & ~rule.options) == 0 ? 0 : KVSPAN_WHY_OPTION;
  why |= (rule.error_classes >> shape.error_class & 1) != 0 ? 0 : KVSPAN_WHY_ERROR_CLASS;
  why |= (shape.memory_kinds & ~rule.memory_kinds) == 0 ? 0 : KVSPAN_WHY_MEMORY_KIND;
  return why;
}

/// The rule that holds the shape, or the one it breaks in the fewest ways.
struct Match {
  const Rule* rule;
  std::uint32_t why;
};

Match match(const Shape& shape) {
  Match best{&kRules[0], UINT32_MAX};
  for (const Rule& candidate : kRules) {
    const std::uint32_t why = misses(candidate, shape);
    if (std::popcount(why) < std::popcount(best.why)) {
      best = {&candidate, why};
    }
  }
  return best;
}

std::uint32_t nearest_size(const Rule& rule, std::uint32_t size) {
  const std::uint32_t inside = std::clamp(size, rule.head_size_min, rule.head_size_max);
  const std::uint32_t multiple = rule.head_size_multiple;
  return std::min((inside + multiple - 1) / multiple * multiple, rule.head_size_max);
}

/// Fills caps.nearest_* with what would be granted; leaves 0 where those fields cannot help.
void suggest(const Shape& shape, const Match& missed, kvspan_attention_caps_t& caps) {
  Shape near = shape;
  near.k_type = has(missed.rule->k_types, shape.k_type) ? shape.k_type : KVSPAN_TYPE_F16;
  near.v_type = has(missed.rule->v_types, shape.v_type) ? shape.v_type : KVSPAN_TYPE_F16;
  near.head_size_k = nearest_size(*missed.rule, shape.head_size_k);
  near.head_size_v = nearest_size(*missed.rule, shape.head_size_v);
  near.rows_max = std::min(shape.rows_max, missed.rule->rows_max);
  if (near.spans_max > kSpansMax || match(near).why != 0) {
    return;
  }
  caps.nearest_k_type = near.k_type;
  caps.nearest_v_type = near.v_type;
  caps.nearest_head_size_k = near.head_size_k;
  caps.nearest_head_size_v = near.head_size_v;
  caps.nearest_rows = near.rows_max;
  caps.nearest_error_class = near.error_class;
}

/// A product, or UINT64_MAX where it does not fit.
std::uint64_t saturated(std::uint64_t left, std::uint64_t right) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(left, right, &product) ? UINT64_MAX : product;
}

/// The exact amounts, and the cost of a row tile over the whole history (UINT64_MAX: more than
/// that).
void fill_amounts(const Shape& shape, kvspan_attention_caps_t& caps) {
  const std::uint64_t pairs = std::uint64_t{shape.rows_max} * shape.q_heads;
  caps.state_u_bytes = pairs * shape.head_size_v * sizeof(float);
  caps.state_ml_bytes = pairs * 2 * sizeof(float);
  // run: the state of one split and the accumulator, for one entry after another
  caps.run_workspace_bytes = 2 * (aligned(caps.state_u_bytes) + aligned(caps.state_ml_bytes));
  const bool latent = (shape.options & KVSPAN_OPTION_V_IN_K) != 0;
  const std::uint64_t token_bytes =
      shape.kv_heads * (kvspan_ref_row_bytes(shape.k_type, shape.head_size_k) +
                        (latent ? 0 : kvspan_ref_row_bytes(shape.v_type, shape.head_size_v)));
  caps.read_bytes = saturated(token_bytes, shape.tokens_max);
  const std::uint64_t pair_flops = 2 * (std::uint64_t{shape.head_size_k} + shape.head_size_v);
  caps.flops = saturated(saturated(pairs, pair_flops), shape.tokens_max);
}

}  // namespace

sdk::RuleList attention_rules() {
  return {kRules, static_cast<std::uint32_t>(std::size(kRules))};
}

kvspan_attention_caps_t answer(const Shape& shape, const AttentionDials& dials) {
  kvspan_attention_caps_t caps{};
  caps.struct_size = sizeof caps;
  const Match found = match(shape);
  caps.reasons = found.why | (shape.spans_max > kSpansMax ? KVSPAN_WHY_SPANS : 0);
  if (caps.reasons != 0) {
    caps.level = KVSPAN_LEVEL_UNSUPPORTED;
    suggest(shape, found, caps);
    return caps;
  }
  caps.level = found.rule->level;
  caps.error_class = KVSPAN_ERROR_E0;
  caps.determinism = KVSPAN_PLACEMENT_INVARIANT | KVSPAN_BATCH_INVARIANT | KVSPAN_REPEATABLE |
                     KVSPAN_WIDTH_INVARIANT;
  caps.width_invariant_max = found.rule->rows_max;
  caps.span_granule = dials.granule;
  caps.split_count = shape.row_class == KVSPAN_ROWS_DECODE
                         ? dials.split_count
                         : std::max<std::uint32_t>(dials.split_count / 2, 1);
  caps.spans_max = kSpansMax;
  caps.span_pages_max = kSpanPagesMax;
  caps.workspace_alignment = kStateAlignment;
  caps.state_alignment = kStateAlignment;
  fill_amounts(shape, caps);
  return caps;
}

}  // namespace kvspan::stub
