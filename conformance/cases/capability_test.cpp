// SPDX-License-Identifier: Apache-2.0
// What attention says it can do: query and rules tell the same, and a capability is a function of
// its shape alone. That it does what it says: attention_numerics_test.cpp; that it refuses what it
// does not: refusal_attention_test.cpp.
#include "attention_case.hpp"
#include "worker/case.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(attention);

class CapabilityTest : public AttentionTest {
 protected:
  /// run without entries: accepted or refused for its shape alone.
  kvspan_result_t run_nothing(const kvspan_attention_shape_t& shape, kvspan_error_t* error) {
    kvspan_attention_args_t args = {};
    args.struct_size = sizeof args;
    args.shape = &shape;
    args.scale = 1.0F;
    args.soft_cap = (shape.options & KVSPAN_OPTION_SOFT_CAP) != 0 ? 1.0F : 0.0F;
    Buffer& floats = *arenas().of(KVSPAN_MEMORY_DEVICE).buffer;
    const kvspan_range_t heads = {floats.memory, 0, uint64_t{4} * shape.q_heads};
    args.sinks = (shape.options & KVSPAN_OPTION_SINKS) != 0 ? heads : kvspan_range_t{};
    args.slopes = (shape.options & KVSPAN_OPTION_ALIBI) != 0 ? heads : kvspan_range_t{};
    return rig().settle(
        KVSPAN_ROLE_COMPUTE,
        [&](auto* queue, const auto* submit, auto* out) {
          return rig().calls().run(queue, &args, submit, out);
        },
        error);
  }

  /// All rules: one at least, and as many as were announced.
  void read_rules(std::vector<kvspan_attention_rule_t>& rules) {
    uint32_t count = 0;
    const kvspan_attention_table_t& table = *rig().tables().attention;
    ASSERT_EQ(table.rules(rig().device(), nullptr, 0, &count, nullptr), KVSPAN_OK);
    ASSERT_GT(count, 0u);
    rules.resize(count);
    ASSERT_EQ(table.rules(rig().device(), rules.data(), count, &count, nullptr), KVSPAN_OK);
    ASSERT_EQ(count, rules.size());
  }
};

/// The level that the rules give a shape: the highest of those that hold it.
uint32_t level_by_rules(const std::vector<kvspan_attention_rule_t>& rules,
                        const kvspan_attention_shape_t& shape) {
  uint32_t level = KVSPAN_LEVEL_UNSUPPORTED;
  const auto in = [](uint64_t bits, uint32_t id) { return id < 64 && ((bits >> id) & 1u) != 0; };
  for (const kvspan_attention_rule_t& rule : rules) {
    const bool sizes =
        shape.head_size_k >= rule.head_size_min && shape.head_size_k <= rule.head_size_max &&
        shape.head_size_v >= rule.head_size_min && shape.head_size_v <= rule.head_size_max &&
        shape.head_size_k % rule.head_size_multiple == 0 &&
        shape.head_size_v % rule.head_size_multiple == 0;
    const bool types = in(rule.k_types, shape.k_type) && in(rule.v_types, shape.v_type) &&
                       (rule.same_type_only == 0 || shape.k_type == shape.v_type) &&
                       in(rule.row_types, shape.q_type) && in(rule.row_types, shape.out_type);
    const bool heads =
        shape.q_heads % shape.kv_heads == 0 && shape.q_heads / shape.kv_heads <= rule.group_max;
    const bool rest = in(rule.row_classes, shape.row_class) && shape.rows_max <= rule.rows_max &&
                      (shape.options & ~rule.options) == 0 &&
                      in(rule.error_classes, shape.error_class) &&
                      (shape.memory_kinds & ~rule.memory_kinds) == 0;
    level = sizes && types && heads && rest ? std::max(level, rule.level) : level;
  }
  return level;
}

KVSPAN_CASE(CapabilityTest, QueryRulesAndBehaviourTellTheSame, "KV-RULES-1 KV-QUERY-2") {
  std::vector<kvspan_attention_rule_t> rules;
  ASSERT_NO_FATAL_FAILURE(read_rules(rules));
  Dice dice(settings(), 1);
  for (const uint32_t k_type : {0u, 1u, 2u, 3u, 4u, 6u, 7u, 8u, 30u, 99u}) {
    for (const uint32_t v_type : {0u, 1u, 2u, 5u, 8u, 30u}) {
      for (const uint32_t head : {8u, 64u, 72u, 80u, 96u, 128u, 192u, 256u, 288u, 512u}) {
        kvspan_attention_shape_t shape = shape_of({});
        shape.k_type = k_type;
        shape.v_type = v_type;
        shape.head_size_k = head;
        shape.head_size_v = dice.pick<uint32_t>({head, 64, 80, 128});
        shape.kv_heads = static_cast<uint32_t>(dice.between(1, 3));
        shape.q_heads = shape.kv_heads * dice.pick<uint32_t>({1, 5, 8, 16});
        shape.row_class = static_cast<uint32_t>(dice.below(2));
        shape.rows_max = shape.row_class == KVSPAN_ROWS_DECODE ? 64 : 512;
        shape.error_class = static_cast<uint32_t>(dice.below(3));
        shape.options = static_cast<uint32_t>(dice.below(32)) & ~KVSPAN_OPTION_V_IN_K;
        shape.memory_kinds = static_cast<uint32_t>(dice.between(1, 7));
        const kvspan_attention_caps_t caps = ask(rig(), shape);
        SCOPED_TRACE(testing::Message() << "K " << k_type << " V " << v_type << " heads "
                                        << shape.head_size_k << " " << shape.head_size_v);
        ASSERT_EQ(caps.level, level_by_rules(rules, shape)) << "reasons " << caps.reasons;
        ASSERT_EQ(caps.level == KVSPAN_LEVEL_UNSUPPORTED, caps.reasons != 0);
        kvspan_error_t error = fresh_error();
        const kvspan_result_t result = run_nothing(shape, &error);
        const bool refused = caps.level == KVSPAN_LEVEL_UNSUPPORTED;
        ASSERT_EQ(result, refused ? KVSPAN_E_UNSUPPORTED : KVSPAN_OK) << told(result, error);
        ASSERT_TRUE(!refused || error.reasons == caps.reasons) << told(result, error);
      }
    }
  }
}

KVSPAN_CASE(CapabilityTest, CapabilitiesAreAFunctionOfTheShape, "KV-QUERY-1 KV-QUERY-3") {
  kvspan_attention_shape_t shape = shape_of({});
  shape.q_heads = 8;
  const kvspan_attention_caps_t first = ask(rig(), shape);
  const auto same = [&](const kvspan_attention_caps_t& other) {
    return std::memcmp(&first, &other, sizeof first) == 0;
  };
  EXPECT_EQ(first.span_granule & (first.span_granule - 1), 0u);
  EXPECT_LE(first.span_granule, 64u);
  EXPECT_GE(first.spans_max, 1024u);
  EXPECT_GE(first.span_pages_max, 4096u);
  EXPECT_EQ(first.state_u_bytes, uint64_t{shape.rows_max} * 8 * 64 * 4);
  EXPECT_EQ(first.state_ml_bytes, uint64_t{shape.rows_max} * 8 * 2 * 4);
  EXPECT_EQ(first.determinism & 7u, 7u) << "placement, neighbours and repetition move no bit";
  Buffer* buffer = rig().allocate(KVSPAN_MEMORY_DEVICE, uint64_t{8} << 20);
  EXPECT_TRUE(same(ask(rig(), shape))) << "after an allocation";
  rig().release(buffer);
  kvspan_attention_caps_t beside = {};
  std::thread other([&] { beside = ask(rig(), shape); });
  EXPECT_TRUE(same(ask(rig(), shape)));
  other.join();
  EXPECT_TRUE(same(beside)) << "from another thread";
  kvspan_attention_shape_t longer = shape;
  longer.tokens_max *= 16;
  kvspan_attention_caps_t scaled = ask(rig(), longer);
  scaled.read_bytes = first.read_bytes;  // what reading tokens_max costs, by definition
  scaled.flops = first.flops;
  EXPECT_TRUE(same(scaled)) << "no amount depends on tokens_max";
  kvspan_attention_shape_t wider = shape;
  wider.rows_max = 64;
  wider.entries_max = 9;
  EXPECT_EQ(ask(rig(), wider).split_count, first.split_count);
}

KVSPAN_CASE(CapabilityTest, EveryPlainPairIsInTheRules, "KV-RULES-1") {
  std::vector<kvspan_attention_rule_t> rules;
  ASSERT_NO_FATAL_FAILURE(read_rules(rules));
  for (const kvspan_type_t k_type : kTypes) {
    for (const kvspan_type_t v_type : kTypes) {
      for (const uint32_t head_size : {64u, 80u, 96u, 128u, 192u, 256u}) {
        kvspan_attention_shape_t shape = shape_of({});
        shape.k_type = k_type;
        shape.v_type = v_type;
        shape.head_size_k = shape.head_size_v = head_size;
        ASSERT_EQ(ask(rig(), shape).level, level_by_rules(rules, shape))
            << "K " << k_type << ", V " << v_type << ", head size " << head_size;
      }
    }
  }
}

KVSPAN_CASE(CapabilityTest, TheErrorClassIsNeverLooserThanAsked, "KV-ATTN-3 KV-QUERY-2") {
  for (const kvspan_type_t type : kTypes) {
    for (const uint32_t asked : {KVSPAN_ERROR_E0, KVSPAN_ERROR_E1, KVSPAN_ERROR_E2}) {
      for (const uint32_t rows : {KVSPAN_ROWS_DECODE, KVSPAN_ROWS_PREFILL}) {
        kvspan_attention_shape_t shape = shape_of({});
        shape.k_type = shape.v_type = type;
        shape.error_class = asked;
        shape.row_class = rows;
        const kvspan_attention_caps_t caps = ask(rig(), shape);
        EXPECT_TRUE(caps.level == KVSPAN_LEVEL_UNSUPPORTED || caps.error_class <= asked)
            << "type " << type << ": asked for class " << asked << ", would meet "
            << caps.error_class;
      }
    }
  }
}

KVSPAN_CASE(CapabilityTest, WhatIsNativeConvertsNothing, "KV-QUERY-2", takes_tuple, needs::debug) {
  const auto conversions = [&] {
    kvspan_debug_counters_t counters = {};
    counters.struct_size = sizeof counters;
    EXPECT_EQ(rig().tables().debug->counters(rig().device(), &counters, nullptr), KVSPAN_OK);
    return counters.conversions;
  };
  for (uint64_t seed = 1; seed <= cases(settings(), 10, 3) && !HasFailure(); ++seed) {
    Dice dice(settings(), seed);
    const RandomScene made = random_scene({}, dice);
    const uint64_t before = conversions();
    static_cast<void>(take(made.scene, {.scattered = true, .parts = dice.hit(2)}, seed));
    EXPECT_TRUE(made.scene.caps.level != KVSPAN_LEVEL_NATIVE || conversions() == before)
        << "work at the level NATIVE converted";
  }
}

}  // namespace
}  // namespace kvspan::conformance
