// SPDX-License-Identifier: Apache-2.0
// Read first: rules.hpp.
#include "attention/rules.hpp"

#include <iterator>

namespace kvspan::cuda {
namespace {

// Floats go in steps of 16 elements, whole blocks of quantised types in steps of 32.
constexpr kvspan_attention_rule_t kRules[] = {
    sdk::full_rule(sdk::kFloatTypes, {16, kHeadSizeMax}, KVSPAN_ROWS_DECODE),
    sdk::full_rule(sdk::kFloatTypes, {16, kHeadSizeMax}, KVSPAN_ROWS_PREFILL),
    sdk::full_rule(sdk::kAllTypes, {32, kHeadSizeMax}, KVSPAN_ROWS_DECODE),
    sdk::full_rule(sdk::kAllTypes, {32, kHeadSizeMax}, KVSPAN_ROWS_PREFILL),
};

// Where a granule of two sides in f32, as they come and as they are summed, does not fit a block's
// shared memory: heads of at most `narrow` elements without f32, `wide` with it.
struct Rules {
  kvspan_attention_rule_t all[8];
};

constexpr Rules rules_of(uint32_t narrow, uint32_t wide) {
  constexpr uint64_t kF32 = sdk::type_bit(KVSPAN_TYPE_F32);
  Rules out{};
  uint32_t count = 0;
  for (const uint32_t rows : {KVSPAN_ROWS_DECODE, KVSPAN_ROWS_PREFILL}) {
    out.all[count++] = sdk::full_rule(sdk::kFloatTypes & ~kF32, {16, narrow}, rows);
    out.all[count++] = sdk::full_rule(sdk::kAllTypes & ~kF32, {32, narrow}, rows);
    out.all[count++] = sdk::full_rule(sdk::kFloatTypes, {16, wide}, rows);
    out.all[count++] = sdk::full_rule(sdk::kAllTypes, {32, wide}, rows);
  }
  return out;
}

constexpr Rules kRulesOf99KiB = rules_of(kHeadSizeMax, 240);
constexpr Rules kRulesOf64KiB = rules_of(176, 144);

}  // namespace

sdk::RuleList attention_rules(const Card& card) {
  if (card.shared_bytes >= kShared163KiB) {
    return {kRules, std::size(kRules)};
  }
  const Rules& rules = card.shared_bytes >= kShared99KiB ? kRulesOf99KiB : kRulesOf64KiB;
  return {rules.all, static_cast<uint32_t>(std::size(rules.all))};
}

Kernel kernel_of(const Card& card, const kvspan_attention_shape_t& shape) {
  const bool latent = (shape.options & KVSPAN_OPTION_V_IN_K) != 0;
  const kvspan_type_t v_type = latent ? shape.k_type : shape.v_type;
  if (shape.error_class == KVSPAN_ERROR_E0 || shape.k_type == KVSPAN_TYPE_F32 ||
      v_type == KVSPAN_TYPE_F32) {
    return Kernel::f32;
  }
  Problem problem{};
  problem.k_type = shape.k_type;
  problem.v_type = v_type;
  problem.head_size_k = shape.head_size_k;
  problem.head_size_v = shape.head_size_v;
  return shape.row_class == KVSPAN_ROWS_PREFILL && has_wide_kernel(problem, shape.q_type, card)
             ? Kernel::wide
         : has_tensor_kernel(problem, card) ? Kernel::tensor
                                            : Kernel::f32;
}

bool answer(const Card& card,
            const kvspan_attention_shape_t& shape,
            kvspan_attention_caps_t& caps) {
  const bool decode = shape.row_class == KVSPAN_ROWS_DECODE;
  const Kernel kernel = kernel_of(card, shape);
  const bool tensor = kernel != Kernel::f32;
  sdk::OfferFacts facts{};
  facts.granule_tokens = tensor ? kTensorGranuleTokens : kGranuleTokens;
  facts.split_count = decode ? decode_splits(card, shape.kv_heads) : kPrefillSplits;
  facts.run_states = run_splits_max(card, shape, kernel);
  facts.error_class = tensor ? KVSPAN_ERROR_E1 : KVSPAN_ERROR_E0;
  facts.width_invariant_max = UINT32_MAX;  // an output is one sum in one order, see block.cuh
  return sdk::answer_query(attention_rules(card), facts, shape, caps);
}

}  // namespace kvspan::cuda
