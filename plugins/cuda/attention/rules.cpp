// SPDX-License-Identifier: Apache-2.0
// Read first: rules.hpp.
#include "attention/rules.hpp"

#include "kvspan/error.h"
#include "kvspan/memory.h"
#include "kvspan/sdk/reference/quant.h"

#include "attention/kernel.hpp"

namespace kvspan::cuda {
namespace {

constexpr uint64_t bit(uint32_t type) {
  return uint64_t{1} << type;
}

constexpr uint64_t kFloatTypes =
    bit(KVSPAN_TYPE_F32) | bit(KVSPAN_TYPE_F16) | bit(KVSPAN_TYPE_BF16);
constexpr uint64_t kAllTypes = kFloatTypes | bit(KVSPAN_TYPE_Q8_0) | bit(KVSPAN_TYPE_Q5_1) |
                               bit(KVSPAN_TYPE_Q5_0) | bit(KVSPAN_TYPE_Q4_1) |
                               bit(KVSPAN_TYPE_Q4_0);
constexpr uint32_t kAllOptions = KVSPAN_OPTION_WINDOW | KVSPAN_OPTION_SUFFIX_MASK |
                                 KVSPAN_OPTION_SOFT_CAP | KVSPAN_OPTION_SINKS |
                                 KVSPAN_OPTION_ALIBI | KVSPAN_OPTION_V_IN_K | KVSPAN_OPTION_LSE;
constexpr uint32_t kDecodeRowsMax = 64;

// Floats go in steps of 16 elements, whole blocks of quantised types in steps of 32.
constexpr kvspan_attention_rule_t rule(uint64_t types, uint32_t multiple, uint32_t row_class) {
  kvspan_attention_rule_t made{};
  made.k_types = types;
  made.v_types = types;
  made.level = KVSPAN_LEVEL_NATIVE;
  made.head_size_min = multiple;
  made.head_size_max = kHeadSizeMax;
  made.head_size_multiple = multiple;
  made.group_max = UINT32_MAX;
  made.row_classes = 1u << row_class;
  made.rows_max = row_class == KVSPAN_ROWS_DECODE ? kDecodeRowsMax : UINT32_MAX;
  made.options = kAllOptions;
  made.error_classes = 1u << KVSPAN_ERROR_E0 | 1u << KVSPAN_ERROR_E1 | 1u << KVSPAN_ERROR_E2;
  made.memory_kinds =
      1u << KVSPAN_MEMORY_DEVICE | 1u << KVSPAN_MEMORY_HOST | 1u << KVSPAN_MEMORY_IMPORTED;
  made.row_types = static_cast<uint32_t>(kFloatTypes);
  return made;
}

constexpr kvspan_attention_rule_t kRules[] = {
    rule(kFloatTypes, 16, KVSPAN_ROWS_DECODE),
    rule(kFloatTypes, 16, KVSPAN_ROWS_PREFILL),
    rule(kAllTypes, 32, KVSPAN_ROWS_DECODE),
    rule(kAllTypes, 32, KVSPAN_ROWS_PREFILL),
};

bool holds(uint64_t bits, uint32_t value) {
  return value < 64 && (bits >> value & 1) != 0;
}

bool size_fits(const kvspan_attention_rule_t& rule, uint32_t size) {
  return size >= rule.head_size_min && size <= rule.head_size_max &&
         size % rule.head_size_multiple == 0;
}

// A quantised side whose block does not divide its own head size.
bool breaks_block(kvspan_type_t type, uint32_t size) {
  const kvspan_ref_block_t block = kvspan_ref_block(type);
  return block.elements != 0 && size % block.elements != 0;
}

// KVSPAN_WHY_* bits of what keeps `shape` out of one rule; 0 = the rule holds it.
uint32_t misses(const kvspan_attention_rule_t& rule, const kvspan_attention_shape_t& shape) {
  uint32_t why = 0;
  const auto unless = [&why](bool fits, uint32_t reason) { why |= fits ? 0 : reason; };
  unless(holds(rule.k_types, shape.k_type), KVSPAN_WHY_K_TYPE);
  unless(holds(rule.v_types, shape.v_type), KVSPAN_WHY_V_TYPE);
  unless(rule.same_type_only == 0 || shape.k_type == shape.v_type, KVSPAN_WHY_PAIR);
  const bool blocks = breaks_block(shape.k_type, shape.head_size_k) ||
                      breaks_block(shape.v_type, shape.head_size_v);
  unless(!blocks, KVSPAN_WHY_BLOCK);
  unless(blocks || (size_fits(rule, shape.head_size_k) && size_fits(rule, shape.head_size_v)),
         KVSPAN_WHY_HEAD_SIZE);
  unless(shape.q_heads % shape.kv_heads == 0 && shape.q_heads / shape.kv_heads <= rule.group_max,
         KVSPAN_WHY_GROUP);
  unless(holds(rule.row_classes, shape.row_class) && shape.rows_max <= rule.rows_max,
         KVSPAN_WHY_ROWS);
  unless(holds(rule.row_types, shape.q_type) && holds(rule.row_types, shape.out_type),
         KVSPAN_WHY_ROW_TYPE);
  unless((shape.options & ~rule.options) == 0, KVSPAN_WHY_OPTION);
  unless(holds(rule.error_classes, shape.error_class), KVSPAN_WHY_ERROR_CLASS);
  unless((shape.memory_kinds & ~rule.memory_kinds) == 0, KVSPAN_WHY_MEMORY_KIND);
  return why;
}

// 0, or the reasons of the rule that comes nearest: the one with the fewest bits. Of equals the
// later, since that takes more types.
uint32_t reasons_of(const kvspan_attention_shape_t& shape) {
  uint32_t best = UINT32_MAX;
  for (const kvspan_attention_rule_t& rule : kRules) {
    const uint32_t why = misses(rule, shape);
    if (best == UINT32_MAX || __builtin_popcount(why) <= __builtin_popcount(best)) {
      best = why;
    }
    if (why == 0) {
      return 0;
    }
  }
  return best;
}

// The granted multiple nearest to `size`, not below it unless that is too large.
uint32_t nearest_size(uint32_t size, uint32_t multiple) {
  const uint64_t up = (uint64_t{size} + multiple - 1) / multiple * multiple;
  return up > kHeadSizeMax ? kHeadSizeMax : static_cast<uint32_t>(up);
}

void fill_nearest(const kvspan_attention_shape_t& shape, kvspan_attention_caps_t& caps) {
  const bool latent = (shape.options & KVSPAN_OPTION_V_IN_K) != 0;
  const auto known = [](kvspan_type_t type) {
    return holds(kAllTypes, type) ? type : KVSPAN_TYPE_F16;
  };
  const kvspan_type_t k_type = known(shape.k_type);
  const kvspan_type_t v_type = latent ? k_type : known(shape.v_type);
  const bool floats = holds(kFloatTypes, k_type) && holds(kFloatTypes, v_type);
  const uint32_t multiple = floats ? 16 : 32;
  caps.nearest_k_type = k_type;
  caps.nearest_v_type = v_type;
  caps.nearest_head_size_k = nearest_size(shape.head_size_k, multiple);
  caps.nearest_head_size_v = nearest_size(shape.head_size_v, multiple);
  const bool few = shape.row_class == KVSPAN_ROWS_PREFILL || shape.rows_max <= kDecodeRowsMax;
  caps.nearest_rows = few ? shape.rows_max : kDecodeRowsMax;
  caps.nearest_error_class = shape.error_class;
}

// Products that know when they have left 64 bits.
class Amount {
 public:
  explicit Amount(uint64_t value) : value_(value) {}

  Amount& times(uint64_t factor) {
    fits_ = !__builtin_mul_overflow(value_, factor, &value_) && fits_;
    return *this;
  }

  Amount& plus(uint64_t addend) {
    fits_ = !__builtin_add_overflow(value_, addend, &value_) && fits_;
    return *this;
  }

  [[nodiscard]] bool fits() const { return fits_; }

  [[nodiscard]] uint64_t value() const { return value_; }

  [[nodiscard]] uint64_t saturated() const { return fits_ ? value_ : UINT64_MAX; }

 private:
  uint64_t value_;
  bool fits_ = true;
};

uint64_t rounded(uint64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Workspace of run: the states of all splits of all entries in decode, nothing in prefill.
Amount run_workspace(const kvspan_attention_shape_t& shape) {
  if (shape.row_class != KVSPAN_ROWS_DECODE) {
    return Amount(0);
  }
  const StateBytes state = state_bytes(shape.rows_max, shape.q_heads, shape.head_size_v);
  return Amount(state.total()).times(run_splits_max(shape.kv_heads)).times(shape.entries_max);
}

}  // namespace

RuleList attention_rules() {
  return {kRules, sizeof kRules / sizeof kRules[0]};
}

StateBytes state_bytes(uint64_t rows, uint32_t q_heads, uint32_t head_size_v) {
  const uint64_t pairs = rows * q_heads;
  return {rounded(pairs * head_size_v * 4), rounded(pairs * 8)};
}

bool answer(const kvspan_attention_shape_t& shape, kvspan_attention_caps_t& caps) {
  caps = kvspan_attention_caps_t{};
  caps.struct_size = sizeof caps;
  caps.reasons = reasons_of(shape);
  if (caps.reasons != 0) {
    fill_nearest(shape, caps);
    return true;
  }
  caps.level = KVSPAN_LEVEL_NATIVE;
  caps.error_class = KVSPAN_ERROR_E0;  // f32 operands whatever the types
  caps.determinism = KVSPAN_PLACEMENT_INVARIANT | KVSPAN_BATCH_INVARIANT | KVSPAN_REPEATABLE |
                     KVSPAN_WIDTH_INVARIANT;
  caps.width_invariant_max = UINT32_MAX;  // walk.cuh: an output is one sum in one order
  caps.span_granule = kGranuleTokens;
  caps.split_count =
      shape.row_class == KVSPAN_ROWS_DECODE ? decode_splits(shape.kv_heads) : kPrefillSplits;
  caps.spans_max = UINT32_MAX;
  caps.span_pages_max = UINT32_MAX;
  caps.workspace_alignment = 64;
  caps.state_alignment = 64;
  const Amount pairs = Amount(shape.rows_max).times(shape.q_heads);
  const Amount u = Amount(pairs.value()).times(shape.head_size_v).times(4);
  const Amount ml = Amount(pairs.value()).times(8);
  const Amount workspace = run_workspace(shape);
  caps.state_u_bytes = u.value();
  caps.state_ml_bytes = ml.value();
  caps.run_workspace_bytes = workspace.value();
  caps.read_bytes = Amount(kvspan_ref_row_bytes(shape.k_type, shape.head_size_k))
                        .plus((shape.options & KVSPAN_OPTION_V_IN_K) != 0
                                  ? 0
                                  : kvspan_ref_row_bytes(shape.v_type, shape.head_size_v))
                        .times(shape.kv_heads)
                        .times(shape.tokens_max)
                        .saturated();
  caps.flops = Amount(2 * (uint64_t{shape.head_size_k} + shape.head_size_v))
                   .times(shape.rows_max)
                   .times(shape.q_heads)
                   .times(shape.tokens_max)
                   .saturated();
  return u.fits() && ml.fits() && workspace.fits() && u.value() < UINT64_MAX / 4;
}

}  // namespace kvspan::cuda
