// SPDX-License-Identifier: Apache-2.0
// Read first: rules.hpp.
#include "attention/rules.hpp"

#include "attention/kernel.hpp"

#include <iterator>

namespace kvspan::cpu {
namespace {

// Floats go in steps of 8 elements, whole blocks of quantised types in steps of 32.
constexpr kvspan_attention_rule_t kRules[] = {
    sdk::full_rule(sdk::kFloatTypes, {8, kHeadSizeMax}, KVSPAN_ROWS_DECODE),
    sdk::full_rule(sdk::kFloatTypes, {8, kHeadSizeMax}, KVSPAN_ROWS_PREFILL),
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
  facts.split_count = decode ? kDecodeSplits : kPrefillSplits;
  // In decode run keeps the states of all splits, one more than N: a window begins inside one.
  facts.run_states = decode ? kDecodeSplits + 1 : 0;
  facts.error_class = KVSPAN_ERROR_E0;     // f32 operands whatever the types
  facts.width_invariant_max = UINT32_MAX;  // kernel.cpp: an output is one sum in one order
  return sdk::answer_query(attention_rules(), facts, shape, caps);
}

}  // namespace kvspan::cpu
