// SPDX-License-Identifier: Apache-2.0
// What is answered from a list of rules, against a reading of the rules of the test's own and
// amounts in 128 bits: random shapes, one broken field at a time, nearest values asked again.
#include "kvspan/sdk/capability.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace kvspan::sdk {
namespace {

using Rule = kvspan_attention_rule_t;
using Shape = kvspan_attention_shape_t;
using Caps = kvspan_attention_caps_t;

__extension__ typedef unsigned __int128 Big;

// A sanitizer makes each ten times as long, and sees in a tenth of them what it can see.
constexpr int seeds(int full) {
  return KVSPAN_TEST_SANITIZED != 0 ? full / 10 : full;
}

constexpr std::uint32_t kHeadSizeMax = 256;
constexpr Rule kRules[] = {
    full_rule(kFloatTypes, {8, kHeadSizeMax}, KVSPAN_ROWS_DECODE),
    full_rule(kFloatTypes, {8, kHeadSizeMax}, KVSPAN_ROWS_PREFILL),
    full_rule(kAllTypes, {32, kHeadSizeMax}, KVSPAN_ROWS_DECODE),
    full_rule(kAllTypes, {32, kHeadSizeMax}, KVSPAN_ROWS_PREFILL),
};
constexpr RuleList kList{kRules, std::size(kRules)};

constexpr OfferFacts kFacts{/*granule_tokens=*/16,
                            /*split_count=*/8,
                            /*run_states=*/9,
                            KVSPAN_ERROR_E0,
                            /*width_invariant_max=*/UINT32_MAX};

Shape plain() {
  Shape shape{};
  shape.struct_size = sizeof shape;
  shape.k_type = shape.v_type = KVSPAN_TYPE_F16;
  shape.head_size_k = shape.head_size_v = 64;
  shape.q_heads = 8;
  shape.kv_heads = 2;
  shape.error_class = KVSPAN_ERROR_E1;
  shape.memory_kinds = 1u << KVSPAN_MEMORY_DEVICE;
  shape.rows_max = 4;
  shape.entries_max = 3;
  shape.items_max = shape.spans_max = 1;
  shape.tokens_max = 100;
  return shape;
}

Caps answered(const Shape& shape, const RuleList& rules = kList) {
  Caps caps{};
  EXPECT_TRUE(answer_query(rules, kFacts, shape, caps));
  return caps;
}

/// attention_shape.h of a rule: every field by itself. The number of those that `shape` breaks.
int broken_fields(const Rule& rule, const Shape& shape) {
  const auto has = [](std::uint64_t bits, std::uint32_t bit) { return (bits >> bit & 1) == 1; };
  const auto size_held = [&](std::uint32_t size) {
    return rule.head_size_min <= size && size <= rule.head_size_max &&
           size % rule.head_size_multiple == 0;
  };
  const bool held[] = {
      has(rule.k_types, shape.k_type),
      has(rule.v_types, shape.v_type),
      rule.same_type_only == 0 || shape.k_type == shape.v_type,
      size_held(shape.head_size_k) && size_held(shape.head_size_v),
      shape.q_heads % shape.kv_heads == 0 && shape.q_heads / shape.kv_heads <= rule.group_max,
      has(rule.row_classes, shape.row_class) && shape.rows_max <= rule.rows_max,
      has(rule.row_types, shape.q_type) && has(rule.row_types, shape.out_type),
      (shape.options | rule.options) == rule.options,
      has(rule.error_classes, shape.error_class),
      (shape.memory_kinds | rule.memory_kinds) == rule.memory_kinds,
  };
  return static_cast<int>(std::count(std::begin(held), std::end(held), false));
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}

  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(engine_() % n); }

  template <class T>
  T pick(std::initializer_list<T> from) {
    return *(from.begin() + below(static_cast<std::uint32_t>(from.size())));
  }

  bool once_in(std::uint32_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

/// A shape that check_shape accepts; most are right but for a field or two.
Shape random_shape(Dice& dice) {
  Shape shape = plain();
  const auto type = [&] {
    return dice.once_in(12) ? dice.pick<kvspan_type_t>({4, 5, 9, 12, 63})
                            : dice.pick<kvspan_type_t>({0, 1, 2, 3, 6, 7, 8, 30});
  };
  const auto size = [&] {
    return dice.once_in(4) ? 1 + dice.below(300) : 32 * (1 + dice.below(9));
  };
  shape.options = dice.below(0x80);
  shape.k_type = type();
  shape.v_type = dice.once_in(2) ? shape.k_type : type();
  shape.head_size_k = size();
  shape.head_size_v = dice.once_in(2) ? shape.head_size_k : size();
  if ((shape.options & KVSPAN_OPTION_V_IN_K) != 0) {
    shape.v_type = shape.k_type;
    shape.head_size_v = std::min(shape.head_size_k, shape.head_size_v);
  }
  shape.q_type = dice.pick<kvspan_type_t>({KVSPAN_TYPE_F32, KVSPAN_TYPE_F16, KVSPAN_TYPE_BF16});
  shape.out_type = dice.once_in(20) ? type() : shape.q_type;
  shape.kv_heads = 1 + dice.below(8);
  shape.q_heads = shape.kv_heads * (1 + dice.below(8)) + (dice.once_in(20) ? 1 : 0);
  shape.row_class = dice.below(2);
  shape.error_class = dice.below(3);
  shape.memory_kinds = 1 + dice.below(7);
  shape.rows_max = 1 + dice.below(shape.row_class == KVSPAN_ROWS_DECODE ? 70 : 4096);
  shape.entries_max = 1 + dice.below(64);
  shape.tokens_max = dice.below(1u << 20);
  EXPECT_EQ(check_shape(&shape, nullptr, "test"), KVSPAN_OK);
  return shape;
}

/// Rules that lack something each, before those that hold every pair.
std::vector<Rule> random_rules(Dice& dice) {
  std::vector<Rule> rules;
  const auto some = [&](std::uint32_t bits) { return dice.once_in(2) ? bits : dice.below(bits); };
  for (std::uint32_t i = dice.below(4); i > 0; --i) {
    const bool floats = dice.once_in(2);
    Rule rule = full_rule(floats ? kFloatTypes : kAllTypes,
                          {floats ? dice.pick({8u, 16u, 32u}) : 32u, dice.pick({64u, 128u, 256u})},
                          dice.below(2));
    rule.same_type_only = dice.below(2);
    rule.group_max = dice.pick({1u, 4u, UINT32_MAX});
    rule.options = some(rule.options);
    rule.error_classes = some(rule.error_classes);
    rule.memory_kinds = some(rule.memory_kinds);
    rules.push_back(rule);
  }
  for (const std::uint32_t row_class : {KVSPAN_ROWS_DECODE, KVSPAN_ROWS_PREFILL}) {
    Rule last = full_rule(kAllTypes, {32, 128}, row_class);
    last.options = some(last.options);
    rules.push_back(last);
  }
  return rules;
}

TEST(AnswerQuery, GrantsExactlyWhatSomeRuleHoldsAndNamesTheFewestReasonsElse) {
  int granted = 0;
  int refused = 0;
  for (int seed = 1; seed <= seeds(400); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(static_cast<std::uint64_t>(seed));
    const std::vector<Rule> rules = random_rules(dice);
    for (int i = 0; i < 500; ++i) {
      const Shape shape = random_shape(dice);
      const Caps caps = answered(shape, {rules.data(), static_cast<std::uint32_t>(rules.size())});
      int fewest = INT32_MAX;
      for (const Rule& rule : rules) {
        fewest = std::min(fewest, broken_fields(rule, shape));
      }
      ASSERT_EQ(caps.level == KVSPAN_LEVEL_NATIVE, fewest == 0) << "shape " << i;
      ASSERT_EQ(caps.reasons == 0, fewest == 0) << "shape " << i;
      // A block of the wrong size is a reason of its own beside or instead of the head size.
      const int said = __builtin_popcount(caps.reasons & ~KVSPAN_WHY_BLOCK);
      ASSERT_LE(said, fewest) << "shape " << i;
      ASSERT_GE(said + 1, fewest) << "shape " << i;
      (fewest == 0 ? granted : refused) += 1;
    }
  }
  EXPECT_GT(granted, seeds(400) * 20) << "or the other half proves little";
  EXPECT_GT(refused, seeds(400) * 20);
}

TEST(AnswerQuery, NearestValuesAreAcceptedWhereTheyAreTheReason) {
  constexpr std::uint32_t kNamed = KVSPAN_WHY_K_TYPE | KVSPAN_WHY_V_TYPE | KVSPAN_WHY_BLOCK |
                                   KVSPAN_WHY_HEAD_SIZE | KVSPAN_WHY_ROWS;
  int asked_again = 0;
  for (int seed = 1; seed <= seeds(400); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(static_cast<std::uint64_t>(seed));
    for (int i = 0; i < 100; ++i) {
      Shape shape = random_shape(dice);
      const Caps no = answered(shape);
      if (no.reasons == 0 || (no.reasons & ~kNamed) != 0) {
        continue;  // granted, or no nearest field names what is wrong
      }
      shape.k_type = no.nearest_k_type;
      shape.v_type = no.nearest_v_type;
      shape.head_size_k = no.nearest_head_size_k;
      shape.head_size_v = no.nearest_head_size_v;
      shape.rows_max = no.nearest_rows;
      shape.error_class = no.nearest_error_class;
      ASSERT_EQ(check_shape(&shape, nullptr, "test"), KVSPAN_OK) << "shape " << i;
      ASSERT_EQ(answered(shape).reasons, 0u) << "shape " << i;
      ++asked_again;
    }
  }
  EXPECT_GT(asked_again, seeds(400) * 10);
}

TEST(AnswerQuery, OneBrokenFieldIsOneReason) {
  struct Row {
    std::uint32_t reason;
    void (*spoil)(Shape&);
  };

  const Row rows[] = {
      {KVSPAN_WHY_K_TYPE, [](Shape& s) { s.k_type = 12; }},
      {KVSPAN_WHY_V_TYPE, [](Shape& s) { s.v_type = 63; }},
      {KVSPAN_WHY_K_TYPE, [](Shape& s) { s.k_type = 64; }},  // beyond the bits of a rule
      {KVSPAN_WHY_BLOCK, [](Shape& s) { s.k_type = KVSPAN_TYPE_Q8_0, s.head_size_k = 80; }},
      {KVSPAN_WHY_BLOCK, [](Shape& s) { s.v_type = KVSPAN_TYPE_Q4_0, s.head_size_v = 40; }},
      {KVSPAN_WHY_HEAD_SIZE, [](Shape& s) { s.head_size_k = 84; }},
      {KVSPAN_WHY_HEAD_SIZE, [](Shape& s) { s.head_size_v = kHeadSizeMax + 8; }},
      {KVSPAN_WHY_GROUP, [](Shape& s) { s.q_heads = 7; }},
      {KVSPAN_WHY_ROWS, [](Shape& s) { s.rows_max = kDecodeRowsMax + 1; }},
      {KVSPAN_WHY_ROW_TYPE, [](Shape& s) { s.q_type = KVSPAN_TYPE_Q8_0; }},
      {KVSPAN_WHY_ROW_TYPE, [](Shape& s) { s.out_type = 99; }},
  };
  for (const Row& row : rows) {
    Shape shape = plain();
    ASSERT_EQ(answered(shape).reasons, 0u);
    row.spoil(shape);
    EXPECT_EQ(answered(shape).reasons, row.reason);
    EXPECT_EQ(answered(shape).level, KVSPAN_LEVEL_UNSUPPORTED);
  }
  std::vector<Rule> narrow(std::begin(kRules), std::end(kRules));
  for (Rule& rule : narrow) {
    rule.same_type_only = 1;
    rule.options = KVSPAN_OPTION_WINDOW;
    rule.error_classes = 1u << KVSPAN_ERROR_E1;
    rule.memory_kinds = 1u << KVSPAN_MEMORY_DEVICE;
  }
  const Row narrow_rows[] = {
      {0, [](Shape& s) { s.options = KVSPAN_OPTION_WINDOW; }},
      {KVSPAN_WHY_PAIR, [](Shape& s) { s.v_type = KVSPAN_TYPE_BF16; }},
      {KVSPAN_WHY_OPTION, [](Shape& s) { s.options = KVSPAN_OPTION_SINKS; }},
      {KVSPAN_WHY_ERROR_CLASS, [](Shape& s) { s.error_class = KVSPAN_ERROR_E0; }},
      {KVSPAN_WHY_MEMORY_KIND, [](Shape& s) { s.memory_kinds |= 1u << KVSPAN_MEMORY_HOST; }},
  };
  for (const Row& row : narrow_rows) {
    Shape shape = plain();
    row.spoil(shape);
    const RuleList list{narrow.data(), static_cast<std::uint32_t>(narrow.size())};
    EXPECT_EQ(answered(shape, list).reasons, row.reason);
  }
}

/// The amounts of a shape that is granted, in as many bits as they need.
struct Amounts {
  Big u, ml, workspace, read, flops;
};

Amounts amounts_of(const Shape& shape, const OfferFacts& facts) {
  const Big pairs = Big{shape.rows_max} * shape.q_heads;
  const auto aligned = [](Big bytes) { return (bytes + 63) / 64 * 64; };
  Amounts all{};
  all.u = pairs * shape.head_size_v * 4;
  all.ml = pairs * 8;
  all.workspace = facts.run_states == 0
                      ? 0
                      : (aligned(all.u) + aligned(all.ml)) * facts.run_states * shape.entries_max;
  const bool latent = (shape.options & KVSPAN_OPTION_V_IN_K) != 0;
  const Big row = Big{kvspan_ref_row_bytes(shape.k_type, shape.head_size_k)} +
                  (latent ? 0 : kvspan_ref_row_bytes(shape.v_type, shape.head_size_v));
  all.read = row * shape.kv_heads;
  all.flops = 2 * pairs * (Big{shape.head_size_k} + shape.head_size_v);
  return all;
}

/// times tokens_max, at most UINT64_MAX; an amount of a token that is more than that stays so.
std::uint64_t over_tokens(Big of_a_token, std::uint64_t tokens) {
  if (of_a_token > UINT64_MAX || (tokens != 0 && of_a_token > UINT64_MAX / tokens)) {
    return UINT64_MAX;
  }
  return static_cast<std::uint64_t>(of_a_token) * tokens;
}

TEST(AnswerQuery, AmountsAreExactOrTheAnswerSaysThatTheyDoNotFit) {
  int fitting = 0;
  int wide = 0;
  for (int seed = 1; seed <= seeds(4000); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(static_cast<std::uint64_t>(seed));
    Shape shape = random_shape(dice);
    shape.k_type = shape.v_type = dice.pick<kvspan_type_t>({KVSPAN_TYPE_F32, KVSPAN_TYPE_Q4_0});
    shape.out_type = shape.q_type;
    shape.head_size_k = shape.head_size_v = 32 * (1 + dice.below(8));
    shape.row_class = dice.below(2);
    const std::uint32_t rows_bits = shape.row_class == KVSPAN_ROWS_DECODE ? 6 : 32;
    shape.rows_max = std::max(1u, UINT32_MAX >> (32 - rows_bits) >> dice.below(rows_bits));
    shape.q_heads = shape.kv_heads = std::max(1u, UINT32_MAX >> dice.below(32));
    shape.entries_max = UINT32_MAX >> dice.below(32);
    shape.tokens_max = dice.once_in(8) ? 0 : UINT64_MAX >> dice.below(64);
    OfferFacts facts = kFacts;
    facts.run_states = shape.row_class == KVSPAN_ROWS_DECODE ? 9 : 0;
    const Amounts all = amounts_of(shape, facts);
    const bool fits = all.u < UINT64_MAX / 4 && all.ml <= UINT64_MAX && all.workspace <= UINT64_MAX;
    Caps caps{};
    ASSERT_EQ(answer_query(kList, facts, shape, caps), fits);
    ASSERT_EQ(caps.reasons, 0u);
    (fits ? fitting : wide) += 1;
    if (fits) {
      EXPECT_EQ(caps.state_u_bytes, static_cast<std::uint64_t>(all.u));
      EXPECT_EQ(caps.state_ml_bytes, static_cast<std::uint64_t>(all.ml));
      EXPECT_EQ(caps.run_workspace_bytes, static_cast<std::uint64_t>(all.workspace));
      EXPECT_EQ(caps.read_bytes, over_tokens(all.read, shape.tokens_max));
      EXPECT_EQ(caps.flops, over_tokens(all.flops, shape.tokens_max));
    }
  }
  EXPECT_GT(fitting, seeds(4000) / 4);
  EXPECT_GT(wide, seeds(4000) / 50);
}

TEST(AnswerQuery, SaysTheFactsThatItIsGiven) {
  OfferFacts facts{/*granule_tokens=*/4, /*split_count=*/7, /*run_states=*/0, KVSPAN_ERROR_E1, 0};
  Caps caps{};
  ASSERT_TRUE(answer_query(kList, facts, plain(), caps));
  EXPECT_EQ(caps.struct_size, sizeof caps);
  EXPECT_EQ(caps.span_granule, 4u);
  EXPECT_EQ(caps.split_count, 7u);
  EXPECT_EQ(caps.error_class, KVSPAN_ERROR_E1);
  EXPECT_EQ(caps.run_workspace_bytes, 0u);
  EXPECT_EQ(caps.determinism & KVSPAN_WIDTH_INVARIANT, 0u) << "no promise of widths";
  facts.width_invariant_max = 5;
  ASSERT_TRUE(answer_query(kList, facts, plain(), caps));
  EXPECT_EQ(caps.width_invariant_max, 5u);
  EXPECT_NE(caps.determinism & KVSPAN_WIDTH_INVARIANT, 0u);
}

TEST(GiveRules, FillsWhatThereIsRoomForAndCountsAll) {
  auto* const device = reinterpret_cast<kvspan_device_t*>(0x1000);
  std::uint32_t count = 0;
  EXPECT_EQ(give_rules(kList, device, nullptr, 0, &count, nullptr, "x"), KVSPAN_OK);
  EXPECT_EQ(count, kList.count);
  std::vector<Rule> out(kList.count + 1);
  for (Rule& rule : out) {
    rule.level = 77;
  }
  EXPECT_EQ(give_rules(kList, device, out.data(), 2, &count, nullptr, "x"), KVSPAN_OK);
  EXPECT_EQ(count, kList.count);
  EXPECT_EQ(out[1].row_classes, kRules[1].row_classes);
  EXPECT_EQ(out[2].level, 77u) << "beyond the capacity";
  EXPECT_EQ(give_rules(kList, device, out.data(), kList.count + 1, &count, nullptr, "x"),
            KVSPAN_OK);
  EXPECT_EQ(out[kList.count - 1].k_types, kRules[kList.count - 1].k_types);
  EXPECT_EQ(out[kList.count].level, 77u) << "behind the last";
}

TEST(GiveRules, NamesTheArgumentThatIsNull) {
  auto* const device = reinterpret_cast<kvspan_device_t*>(0x1000);
  Rule rule{};
  std::uint32_t count = 5;
  kvspan_error_t error{};
  error.struct_size = sizeof error;
  EXPECT_EQ(give_rules(kList, nullptr, &rule, 1, &count, &error, "x"), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(error.argument, 1u);
  EXPECT_EQ(give_rules(kList, device, nullptr, 1, &count, &error, "x"), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(error.argument, 2u);
  EXPECT_EQ(give_rules(kList, device, &rule, 1, nullptr, &error, "x"), KVSPAN_E_INVALID_ARG);
  EXPECT_EQ(error.argument, 4u);
  EXPECT_EQ(count, 5u) << "a refusal writes nothing";
}

}  // namespace
}  // namespace kvspan::sdk
