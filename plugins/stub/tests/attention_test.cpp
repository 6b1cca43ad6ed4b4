// SPDX-License-Identifier: Apache-2.0
// What only the stub promises about attention: its rules and its answers are the same facts, what
// it grants and refuses, exact amounts, and right results at offsets beyond 2^32. Numbers against
// an oracle are tested for all backends in conformance/cases.
#include "kvspan/sdk/reference/quant.h"

#include "stub_rig.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace kvspan::stub_test {
namespace {

kvspan_attention_shape_t plain_shape() {
  kvspan_attention_shape_t shape{};
  shape.struct_size = sizeof shape;
  shape.k_type = shape.v_type = KVSPAN_TYPE_F32;
  shape.q_type = shape.out_type = KVSPAN_TYPE_F32;
  shape.head_size_k = shape.head_size_v = 4;
  shape.q_heads = shape.kv_heads = 1;
  shape.row_class = KVSPAN_ROWS_DECODE;
  shape.error_class = KVSPAN_ERROR_E1;
  shape.memory_kinds = 1u << KVSPAN_MEMORY_DEVICE;
  shape.rows_max = 1;
  shape.entries_max = 1;
  shape.items_max = 8;
  shape.spans_max = 8;
  shape.tokens_max = 1ull << 40;
  return shape;
}

kvspan_attention_caps_t ask(Rig& rig, const kvspan_attention_shape_t& shape) {
  kvspan_attention_caps_t caps{};
  caps.struct_size = sizeof caps;
  EXPECT_EQ(rig.plugin().attention()->query(rig.device(), &shape, &caps, &rig.error), KVSPAN_OK)
      << rig.error.message;
  return caps;
}

std::vector<kvspan_attention_rule_t> rules_of(Rig& rig) {
  std::uint32_t count = 0;
  const kvspan_attention_table_t& table = *rig.plugin().attention();
  EXPECT_EQ(table.rules(rig.device(), nullptr, 0, &count, &rig.error), KVSPAN_OK);
  std::vector<kvspan_attention_rule_t> rules(count);
  EXPECT_EQ(table.rules(rig.device(), rules.data(), count, &count, &rig.error), KVSPAN_OK);
  return rules;
}

/// A rule read as its comments in attention_shape.h say, written anew.
bool holds(const kvspan_attention_rule_t& rule, const kvspan_attention_shape_t& shape) {
  const auto type = [](std::uint64_t bits, std::uint32_t id) {
    return id < 64 && (bits >> id & 1u) == 1;
  };
  const auto size = [&rule](std::uint32_t elements) {
    return elements >= rule.head_size_min && elements <= rule.head_size_max &&
           elements % rule.head_size_multiple == 0;
  };
  return type(rule.k_types, shape.k_type) && type(rule.v_types, shape.v_type) &&
         (rule.same_type_only == 0 || shape.k_type == shape.v_type) && size(shape.head_size_k) &&
         size(shape.head_size_v) && shape.q_heads % shape.kv_heads == 0 &&
         shape.q_heads / shape.kv_heads <= rule.group_max &&
         (rule.row_classes >> shape.row_class & 1u) == 1 && shape.rows_max <= rule.rows_max &&
         (shape.options & ~rule.options) == 0 &&
         (rule.error_classes >> shape.error_class & 1u) == 1 &&
         (shape.memory_kinds & ~rule.memory_kinds) == 0 && type(rule.row_types, shape.q_type) &&
         type(rule.row_types, shape.out_type);
}

kvspan_attention_shape_t random_shape(Dice& dice) {
  constexpr std::uint32_t kTypes[] = {0, 1, 2, 3, 6, 7, 8, 30, 5, 31, 64, 0x80000001u};
  constexpr std::uint32_t kSizes[] = {1, 4, 32, 64, 80, 96, 128, 192, 256, 257, 300, 512};
  constexpr std::uint32_t kRows[] = {1, 16, 64, 65, 4096, 1u << 20, (1u << 20) + 1};
  const auto pick = [&dice](const auto& list, std::uint64_t usual) {
    return list[dice.below(dice.below(4) == 0 ? std::size(list) : usual)];
  };
  kvspan_attention_shape_t shape = plain_shape();
  shape.options = static_cast<std::uint32_t>(dice.below(0x80));
  shape.k_type = pick(kTypes, 8);
  shape.v_type = pick(kTypes, 8);
  shape.q_type = pick(kTypes, 2);
  shape.out_type = pick(kTypes, 2);
  shape.head_size_k = pick(kSizes, 9);
  shape.head_size_v = pick(kSizes, 9);
  if ((shape.options & KVSPAN_OPTION_V_IN_K) != 0) {
    shape.v_type = shape.k_type;
    shape.head_size_v = shape.head_size_k;
  }
  shape.kv_heads = static_cast<std::uint32_t>(1 + dice.below(4));
  shape.q_heads = shape.kv_heads * static_cast<std::uint32_t>(1 + dice.below(8));
  shape.q_heads += dice.below(8) == 0 ? 1u : 0u;
  shape.row_class = static_cast<std::uint32_t>(dice.below(2));
  shape.error_class = static_cast<std::uint32_t>(dice.below(3));
  shape.memory_kinds = static_cast<std::uint32_t>(1 + dice.below(7));
  shape.rows_max = pick(kRows, 3);
  return shape;
}

TEST(AttentionRules, SayWhatQuerySaysAndNearestIsGranted) {
  Rig rig({});
  const std::vector<kvspan_attention_rule_t> rules = rules_of(rig);
  ASSERT_FALSE(rules.empty());
  std::uint32_t granted = 0;
  std::uint32_t helped = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    Dice dice(seed);
    const kvspan_attention_shape_t shape = random_shape(dice);
    std::uint32_t level = KVSPAN_LEVEL_UNSUPPORTED;
    for (const kvspan_attention_rule_t& rule : rules) {
      level = holds(rule, shape) && rule.level > level ? rule.level : level;
    }
    const kvspan_attention_caps_t caps = ask(rig, shape);
    ASSERT_EQ(caps.level, level) << "seed " << seed;
    ASSERT_EQ(caps.reasons != 0, level == KVSPAN_LEVEL_UNSUPPORTED) << "seed " << seed;
    granted += level == KVSPAN_LEVEL_NATIVE ? 1u : 0u;
    if (caps.nearest_rows != 0) {
      ++helped;
      kvspan_attention_shape_t near = shape;
      near.k_type = caps.nearest_k_type;
      near.v_type = caps.nearest_v_type;
      near.head_size_k = caps.nearest_head_size_k;
      near.head_size_v = caps.nearest_head_size_v;
      near.rows_max = caps.nearest_rows;
      near.error_class = caps.nearest_error_class;
      ASSERT_EQ(ask(rig, near).level, KVSPAN_LEVEL_NATIVE) << "seed " << seed;
    }
  }
  EXPECT_GT(granted, 1000u);
  EXPECT_GT(helped, 1000u);
}

TEST(AttentionRules, ABlockThatDoesNotDivideIsTheReason) {
  Rig rig({});
  kvspan_attention_shape_t shape = plain_shape();
  shape.head_size_k = shape.head_size_v = 80;
  for (const kvspan_type_t type : {KVSPAN_TYPE_F32, KVSPAN_TYPE_F16, KVSPAN_TYPE_BF16}) {
    shape.k_type = shape.v_type = type;
    EXPECT_EQ(ask(rig, shape).level, KVSPAN_LEVEL_NATIVE);
  }
  shape.k_type = KVSPAN_TYPE_Q8_0;
  shape.v_type = KVSPAN_TYPE_Q4_0;
  const kvspan_attention_caps_t caps = ask(rig, shape);
  EXPECT_EQ(caps.level, KVSPAN_LEVEL_UNSUPPORTED);
  EXPECT_EQ(caps.reasons, KVSPAN_WHY_BLOCK);
  EXPECT_EQ(caps.nearest_head_size_k, 96u);
  EXPECT_EQ(caps.nearest_k_type, KVSPAN_TYPE_Q8_0);
}

TEST(AttentionRules, AmountsAreExactAndFollowNoTokens) {
  Rig rig(Options{{"granule", "32"}, {"splits", "6"}});
  kvspan_attention_shape_t shape = plain_shape();
  shape.head_size_k = 64;
  shape.head_size_v = 96;
  shape.q_heads = 6;
  shape.kv_heads = 2;
  shape.rows_max = 5;
  const kvspan_attention_caps_t caps = ask(rig, shape);
  EXPECT_EQ(caps.span_granule, 32u);
  EXPECT_EQ(caps.split_count, 6u);
  EXPECT_EQ(caps.error_class, KVSPAN_ERROR_E0);
  EXPECT_EQ(caps.state_u_bytes, 5u * 6 * 96 * 4);
  EXPECT_EQ(caps.state_ml_bytes, 5u * 6 * 2 * 4);
  EXPECT_EQ(caps.run_workspace_bytes, 2u * (11520 + 256));
  EXPECT_EQ(caps.advance_workspace_bytes + caps.fold_workspace_bytes, 0u);
  EXPECT_GE(caps.spans_max, 1024u);
  EXPECT_GE(caps.span_pages_max, 4096u);
  shape.tokens_max = 1;
  const kvspan_attention_caps_t small = ask(rig, shape);
  EXPECT_EQ(small.run_workspace_bytes, caps.run_workspace_bytes);
  EXPECT_EQ(small.split_count, caps.split_count);
  EXPECT_EQ(small.read_bytes, 2u * (64 + 96) * 4);
  shape.row_class = KVSPAN_ROWS_PREFILL;
  EXPECT_EQ(ask(rig, shape).split_count, 3u);
  shape.spans_max = caps.spans_max + 1;
  EXPECT_EQ(ask(rig, shape).reasons, KVSPAN_WHY_SPANS);
}

/// One query over pages of 4 tokens, 3 GiB apart, listed so that the first is the farthest. All
/// keys are 0, so the output is the mean of the values.
TEST(Attention, PagesBeyondFourGigabytesAreReadWhereTheyLie) {
  constexpr std::uint64_t kPageStride = 3ull << 30;
  constexpr std::uint32_t kPages[] = {2, 0, 1};
  constexpr std::uint64_t kRowBytes = 16;
  Rig rig({});
  const kvspan_attention_shape_t shape = plain_shape();
  const kvspan_attention_caps_t caps = ask(rig, shape);
  const sdk::Memory pool = rig.memory(KVSPAN_MEMORY_DEVICE, 3 * kPageStride);
  const sdk::Memory host = rig.memory(KVSPAN_MEMORY_HOST, 4096);
  const sdk::Memory workspace = rig.memory(KVSPAN_MEMORY_DEVICE, caps.run_workspace_bytes);
  const sdk::Queue queue = rig.queue(KVSPAN_ROLE_COMPUTE);
  const sdk::Fence fence = rig.fence();
  std::uint64_t value = 0;
  auto* const floats = reinterpret_cast<float*>(rig.bytes(host));
  std::memset(floats, 0, 4096);
  for (std::uint32_t page = 0; page < 3; ++page) {
    const std::uint64_t slot = kPages[page] * kPageStride;
    for (std::uint32_t i = 0; i < 16; ++i) {
      const std::uint32_t token = page * 4 + i / 4;
      floats[i] = static_cast<float>(token);
    }
    ASSERT_EQ(rig.fill(queue, {pool.get(), slot, 64}, 0, {{}, {{fence.get(), ++value}}}),
              KVSPAN_OK);
    ASSERT_EQ(
        rig.copy(queue, {segment(host, 0, pool, slot + 64, 64)}, {{}, {{fence.get(), ++value}}}),
        KVSPAN_OK);
    ASSERT_EQ(rig.wait({{fence.get(), value}}), KVSPAN_OK);
  }
  kvspan_span_t span{};
  span.token_count = 12;
  span.k = {pool.get(), 0, kPageStride, kRowBytes, kRowBytes, kPages, 4, 3};
  span.v = {pool.get(), 64, kPageStride, kRowBytes, kRowBytes, kPages, 4, 3};
  std::uint64_t visible_end = 12;
  kvspan_entry_t entry{};
  entry.spans = &span;
  entry.span_count = 1;
  entry.visible_end = &visible_end;
  entry.row_count = 1;
  entry.token_total = 12;
  entry.split_tokens = 4;
  entry.q = {host.get(), 1024, kRowBytes, kRowBytes, KVSPAN_TYPE_F32, 0};
  entry.out = {host.get(), 2048, kRowBytes, kRowBytes, KVSPAN_TYPE_F32, 0};
  kvspan_attention_args_t args{};
  args.struct_size = sizeof args;
  args.entry_count = 1;
  args.shape = &shape;
  args.entries = &entry;
  args.scale = 0.5f;
  args.workspace = {workspace.get(), 0, caps.run_workspace_bytes};
  const kvspan_point_t done{fence.get(), ++value};
  const Points points{{}, {done}};
  const kvspan_submit_t submit = points.submit();
  const kvspan_attention_table_t& table = *rig.plugin().attention();
  args.workspace.bytes -= 1;
  EXPECT_EQ(table.run(queue.get(), &args, &submit, &rig.error), KVSPAN_E_WORKSPACE);
  EXPECT_EQ(rig.error.required, caps.run_workspace_bytes);
  args.workspace.bytes += 1;
  ASSERT_EQ(table.run(queue.get(), &args, &submit, &rig.error), KVSPAN_OK) << rig.error.message;
  visible_end = 0;  // arrays were copied
  span.token_count = 0;
  ASSERT_EQ(rig.wait({done}), KVSPAN_OK) << rig.error.message;
  EXPECT_FLOAT_EQ(floats[512], 5.5f);
}

}  // namespace
}  // namespace kvspan::stub_test
