// SPDX-License-Identifier: Apache-2.0
// What attention a backend offers, as data: a list of rules, and the query that is computed from
// it, so that query and rules tell the same by construction. The backend adds what only it knows:
// its rules, granule, splits and workspace. Not here: whether a question makes sense
// (validate_shape.hpp). Read first: kvspan/attention_shape.h.
#pragma once

#include "kvspan/attention_shape.h"
#include "kvspan/memory.h"
#include "kvspan/sdk/reference/quant.h"
#include "kvspan/sdk/validate_range.hpp"
#include "kvspan/sdk/validate_shape.hpp"

#include <cstdint>

namespace kvspan::sdk {

/// Rules as a table's `rules` slot hands them out.
using RuleList = List<kvspan_attention_rule_t>;

constexpr std::uint64_t type_bit(kvspan_type_t type) noexcept {
  return std::uint64_t{1} << type;
}

inline constexpr std::uint64_t kFloatTypes =
    type_bit(KVSPAN_TYPE_F32) | type_bit(KVSPAN_TYPE_F16) | type_bit(KVSPAN_TYPE_BF16);
inline constexpr std::uint64_t kAllTypes = kFloatTypes | type_bit(KVSPAN_TYPE_Q8_0) |
                                           type_bit(KVSPAN_TYPE_Q5_1) | type_bit(KVSPAN_TYPE_Q5_0) |
                                           type_bit(KVSPAN_TYPE_Q4_1) | type_bit(KVSPAN_TYPE_Q4_0);

/// Rows an entry of the decode class, from attention_shape.h.
inline constexpr std::uint32_t kDecodeRowsMax = 64;

/// Bytes that plane, state and workspace offsets of such a backend keep.
inline constexpr std::uint32_t kStateAlignment = 64;

/// The head sizes of a rule: multiples of `multiple` from it to `max`, elements.
struct HeadSizes {
  std::uint32_t multiple;
  std::uint32_t max;
};

/// A rule that grants these types on either side, these head sizes and this row class: natively,
/// with every option, error class and kind of memory, for any group.
constexpr kvspan_attention_rule_t full_rule(std::uint64_t types,
                                            HeadSizes sizes,
                                            std::uint32_t row_class) noexcept {
  kvspan_attention_rule_t made{};
  made.k_types = types;
  made.v_types = types;
  made.level = KVSPAN_LEVEL_NATIVE;
  made.head_size_min = sizes.multiple;
  made.head_size_max = sizes.max;
  made.head_size_multiple = sizes.multiple;
  made.group_max = UINT32_MAX;
  made.row_classes = 1u << row_class;
  made.rows_max = row_class == KVSPAN_ROWS_DECODE ? kDecodeRowsMax : UINT32_MAX;
  made.options = detail::kAllOptions;
  made.error_classes = 1u << KVSPAN_ERROR_E0 | 1u << KVSPAN_ERROR_E1 | 1u << KVSPAN_ERROR_E2;
  made.memory_kinds = detail::kAllMemoryKinds;
  made.row_types = static_cast<std::uint32_t>(kFloatTypes);
  return made;
}

/// Bytes of one split's state where a backend keeps it itself: u, then {m, l}, each aligned.
struct StateBytes {
  std::uint64_t u;
  std::uint64_t ml;

  std::uint64_t total() const noexcept { return u + ml; }
};

/// Of `rows` rows; the amounts of a shape fit 64 bits, and so do those of fewer rows.
inline StateBytes state_bytes(std::uint64_t rows,
                              std::uint32_t q_heads,
                              std::uint32_t head_size_v) noexcept {
  const auto aligned = [](std::uint64_t bytes) {
    return (bytes + kStateAlignment - 1) / kStateAlignment * kStateAlignment;
  };
  const std::uint64_t pairs = rows * q_heads;
  return {aligned(pairs * head_size_v * sizeof(float)), aligned(pairs * 2 * sizeof(float))};
}

/// What a backend says of a shape that its rules hold.
struct OfferFacts {
  std::uint32_t granule_tokens;       ///< a power of two <= 64
  std::uint32_t split_count;          ///< N of the shape's row class
  std::uint64_t run_states;           ///< states an entry that run keeps in its workspace; 0 = none
  std::uint32_t error_class;          ///< KVSPAN_ERROR_*: how tight it is
  std::uint32_t width_invariant_max;  ///< rows; 0 = no promise
};

namespace detail {

inline bool holds(std::uint64_t bits, std::uint32_t value) noexcept {
  return value < 64 && (bits >> value & 1) != 0;
}

inline bool size_fits(const kvspan_attention_rule_t& rule, std::uint32_t size) noexcept {
  return size >= rule.head_size_min && size <= rule.head_size_max &&
         size % rule.head_size_multiple == 0;
}

/// A quantised side whose block does not divide its own head size.
inline bool breaks_block(kvspan_type_t type, std::uint32_t size) noexcept {
  const kvspan_ref_block_t block = kvspan_ref_block(type);
  return block.elements != 0 && size % block.elements != 0;
}

/// KVSPAN_WHY_* bits of what keeps `shape` out of one rule; 0 = the rule holds it.
inline std::uint32_t misses(const kvspan_attention_rule_t& rule,
                            const kvspan_attention_shape_t& shape) noexcept {
  std::uint32_t why = 0;
  const auto unless = [&why](bool fits, std::uint32_t reason) { why |= fits ? 0 : reason; };
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

/// 0, or the reasons of the rule that comes nearest: the one with the fewest bits. Of equals the
/// later, since that takes more types.
inline std::uint32_t reasons_of(const RuleList& rules,
                                const kvspan_attention_shape_t& shape) noexcept {
  std::uint32_t best = UINT32_MAX;
  for (std::uint32_t i = 0; i < rules.count; ++i) {
    const std::uint32_t why = misses(rules.data[i], shape);
    if (why == 0) {
      return 0;
    }
    if (best == UINT32_MAX || __builtin_popcount(why) <= __builtin_popcount(best)) {
      best = why;
    }
  }
  return best;
}

/// The finest head sizes that a rule grants to this pair of types.
inline HeadSizes sizes_for(const RuleList& rules, kvspan_type_t k_type, kvspan_type_t v_type) {
  HeadSizes finest{UINT32_MAX, 0};
  for (std::uint32_t i = 0; i < rules.count; ++i) {
    const kvspan_attention_rule_t& rule = rules.data[i];
    if (holds(rule.k_types, k_type) && holds(rule.v_types, v_type) &&
        rule.head_size_multiple < finest.multiple) {
      finest = {rule.head_size_multiple, rule.head_size_max};
    }
  }
  return finest;
}

/// The granted multiple nearest to `size`, not below it unless that is too large.
inline std::uint32_t nearest_size(std::uint32_t size, HeadSizes sizes) noexcept {
  const std::uint64_t up =
      (std::uint64_t{size} + sizes.multiple - 1) / sizes.multiple * sizes.multiple;
  return up > sizes.max ? sizes.max : static_cast<std::uint32_t>(up);
}

inline void fill_nearest(const RuleList& rules,
                         const kvspan_attention_shape_t& shape,
                         kvspan_attention_caps_t& caps) noexcept {
  const bool latent = (shape.options & KVSPAN_OPTION_V_IN_K) != 0;
  const auto known = [](kvspan_type_t type) {
    return holds(kAllTypes, type) ? type : KVSPAN_TYPE_F16;
  };
  caps.nearest_k_type = known(shape.k_type);
  caps.nearest_v_type = latent ? caps.nearest_k_type : known(shape.v_type);
  const HeadSizes sizes = sizes_for(rules, caps.nearest_k_type, caps.nearest_v_type);
  caps.nearest_head_size_k = nearest_size(shape.head_size_k, sizes);
  caps.nearest_head_size_v = nearest_size(shape.head_size_v, sizes);
  const bool few = shape.row_class == KVSPAN_ROWS_PREFILL || shape.rows_max <= kDecodeRowsMax;
  caps.nearest_rows = few ? shape.rows_max : kDecodeRowsMax;
  caps.nearest_error_class = shape.error_class;
}

}  // namespace detail

/// The `rules` slot: as many rules as there is room for, and how many there are.
[[nodiscard]] inline kvspan_result_t give_rules(const RuleList& rules,
                                                kvspan_device_t* device,
                                                kvspan_attention_rule_t* out_rules,
                                                std::uint32_t capacity,
                                                std::uint32_t* out_count,
                                                kvspan_error_t* error,
                                                const char* where) noexcept {
  if (device == nullptr || out_count == nullptr || (out_rules == nullptr && capacity != 0)) {
    const Place place{device == nullptr ? 1u : out_count == nullptr ? 4u : 2u};
    return fail_argument(error, place, where, "an argument is NULL: pass one");
  }
  for (std::uint32_t i = 0; i < rules.count && i < capacity; ++i) {
    out_rules[i] = rules.data[i];
  }
  *out_count = rules.count;
  return KVSPAN_OK;
}

/// The answer to a shape that check_shape accepts, from native rules that together hold every pair
/// of kAllTypes. False: an amount does not fit 64 bits, which is the caller's to refuse.
[[nodiscard]] inline bool answer_query(const RuleList& rules,
                                       const OfferFacts& facts,
                                       const kvspan_attention_shape_t& shape,
                                       kvspan_attention_caps_t& caps) noexcept {
  caps = kvspan_attention_caps_t{};
  caps.struct_size = sizeof caps;
  caps.reasons = detail::reasons_of(rules, shape);
  if (caps.reasons != 0) {
    detail::fill_nearest(rules, shape, caps);
    return true;
  }
  caps.level = KVSPAN_LEVEL_NATIVE;
  caps.error_class = facts.error_class;
  caps.determinism = KVSPAN_PLACEMENT_INVARIANT | KVSPAN_BATCH_INVARIANT | KVSPAN_REPEATABLE;
  caps.determinism |= facts.width_invariant_max != 0 ? KVSPAN_WIDTH_INVARIANT : 0;
  caps.width_invariant_max = facts.width_invariant_max;
  caps.span_granule = facts.granule_tokens;
  caps.split_count = facts.split_count;
  caps.spans_max = UINT32_MAX;
  caps.span_pages_max = UINT32_MAX;
  caps.workspace_alignment = kStateAlignment;
  caps.state_alignment = kStateAlignment;
  const std::uint64_t pairs = std::uint64_t{shape.rows_max} * shape.q_heads;
  const Extent u = Extent(pairs).times(shape.head_size_v).times(sizeof(float));
  const Extent ml = Extent(pairs).times(2 * sizeof(float));
  const StateBytes state = state_bytes(shape.rows_max, shape.q_heads, shape.head_size_v);
  const Extent workspace = Extent(state.total()).times(facts.run_states).times(shape.entries_max);
  caps.state_u_bytes = u.bytes();
  caps.state_ml_bytes = ml.bytes();
  caps.run_workspace_bytes = workspace.bytes();
  const bool latent = (shape.options & KVSPAN_OPTION_V_IN_K) != 0;
  caps.read_bytes = Extent(kvspan_ref_row_bytes(shape.k_type, shape.head_size_k))
                        .add(1, latent ? 0 : kvspan_ref_row_bytes(shape.v_type, shape.head_size_v))
                        .times(shape.kv_heads)
                        .times(shape.tokens_max)
                        .saturated();
  caps.flops = Extent(2 * (std::uint64_t{shape.head_size_k} + shape.head_size_v))
                   .times(pairs)
                   .times(shape.tokens_max)
                   .saturated();
  return u.fits() && ml.fits() && workspace.fits() && u.bytes() < UINT64_MAX / 4;
}

}  // namespace kvspan::sdk
