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

}  // namespace

sdk::RuleList attention_rules() {
  return {kRules, std::size(kRules)};
}

Kernel kernel_of(const kvspan_attention_shape_t& shape) {
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
  return shape.row_class == KVSPAN_ROWS_PREFILL && has_wide_kernel(problem, shape.q_type)
             ? Kernel::wide
             : Kernel::tensor;
}

bool answer(const kvspan_attention_shape_t& shape, kvspan_attention_caps_t& caps) {
  const bool decode = shape.row_class == KVSPAN_ROWS_DECODE;
  const Kernel kernel = kernel_of(shape);
  const bool tensor = kernel != Kernel::f32;
  sdk::OfferFacts facts{};
  facts.granule_tokens = tensor ? kTensorGranuleTokens : kGranuleTokens;
  facts.split_count = decode ? decode_splits(shape.kv_heads) : kPrefillSplits;
  facts.run_states = run_splits_max(shape, kernel);
  facts.error_class = tensor ? KVSPAN_ERROR_E1 : KVSPAN_ERROR_E0;
  facts.width_invariant_max = UINT32_MAX;  // an output is one sum in one order, see block.cuh
  return sdk::answer_query(attention_rules(), facts, shape, caps);
}

}  // namespace kvspan::cuda
