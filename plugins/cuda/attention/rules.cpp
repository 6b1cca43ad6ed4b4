// SPDX-License-Identifier: Apache-2.0
// Read first: rules.hpp.
#include "attention/rules.hpp"

#include "attention/kernel.hpp"

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

bool answer(const kvspan_attention_shape_t& shape, kvspan_attention_caps_t& caps) {
  const bool decode = shape.row_class == KVSPAN_ROWS_DECODE;
  sdk::OfferFacts facts{};
  facts.granule_tokens = kGranuleTokens;
  facts.split_count = decode ? decode_splits(shape.kv_heads) : kPrefillSplits;
  facts.run_states = decode ? run_splits_max(shape.kv_heads) : 0;  // all of them side by side
  facts.error_class = KVSPAN_ERROR_E0;     // f32 operands whatever the types
  facts.width_invariant_max = UINT32_MAX;  // walk.cuh: an output is one sum in one order
  return sdk::answer_query(attention_rules(), facts, shape, caps);
}

}  // namespace kvspan::cuda
