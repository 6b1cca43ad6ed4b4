// SPDX-License-Identifier: Apache-2.0
// Whole attention submits on teams of different sizes: no bit depends on the number of threads, on
// how a run is cut, or on whether its splits ran side by side. Numbers: kernel_test.cpp and
// conformance/cases.
#include "attention/rules.hpp"
#include "scene.hpp"

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <string>

namespace kvspan::cpu {
namespace {

constexpr uint32_t kThreads[] = {1, 2, 3, 5};

SceneOptions options_of(uint64_t seed) {
  std::mt19937_64 random(seed * 77);
  SceneOptions options;
  options.seed = seed;
  options.tokens = 1 + random() % 900;
  options.row_class = seed % 3 == 0 ? KVSPAN_ROWS_PREFILL : KVSPAN_ROWS_DECODE;
  options.rows = static_cast<uint32_t>(1 + random() % (seed % 3 == 0 ? 150 : 5));
  return options;
}

TEST(Attention, HasTheSameBitsOnAnyNumberOfThreads) {
  for (uint64_t seed = 1; seed <= 18; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::vector<float> expected;
    for (const uint32_t threads : kThreads) {
      Rig rig(threads);
      Line& line = rig.line(KVSPAN_ROLE_COMPUTE, 4);
      Scene scene(rig, options_of(seed));
      const std::vector<float> actual = scene.run(line);
      for (const float element : actual) {
        ASSERT_FALSE(std::isnan(element)) << "an output was not written, or a dead byte was read";
      }
      expected = expected.empty() ? actual : expected;
      EXPECT_TRUE(same_bits(actual, expected)) << threads << " threads";
    }
  }
}

TEST(Attention, RunsWithTheBitsOfAdvanceFoldFinish) {
  for (uint64_t seed = 1; seed <= 18; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rig rig(seed % 2 == 0 ? 1 : 3);
    Line& line = rig.line(KVSPAN_ROLE_COMPUTE, 4);
    Scene scene(rig, options_of(seed));
    const std::vector<float> whole = scene.run(line);
    EXPECT_TRUE(same_bits(whole, scene.run_in_parts(line)));
    EXPECT_TRUE(same_bits(whole, scene.run(line))) << "run again";
  }
}

// A new thread inherits its creator's rounding: a host that opens the device in another mode than
// it submits in must not see that in a result.
TEST(Attention, HasTheSameBitsWhateverTheRoundingOfItsHost) {
  std::vector<float> expected;
  for (const int rounding : {FE_TONEAREST, FE_UPWARD}) {
    std::fesetround(rounding);
    Rig rig(3);
    Line& line = rig.line(KVSPAN_ROLE_COMPUTE, 4);
    std::fesetround(FE_TONEAREST);
    Scene scene(rig, {11, 4, 400, KVSPAN_ROWS_DECODE});
    const std::vector<float> actual = scene.run(line);
    expected = expected.empty() ? actual : expected;
    EXPECT_TRUE(same_bits(actual, expected));
  }
}

TEST(Attention, RunsTheSameWhenItHasMoreSplitsThanTheWorkspaceHolds) {
  Rig rig(4);
  Line& line = rig.line(KVSPAN_ROLE_COMPUTE, 4);
  Scene scene(rig, {7, 2, 800, KVSPAN_ROWS_DECODE});
  scene.entry.split_tokens = 32;  // 25 splits, the workspace has 9
  const std::vector<float> whole = scene.run(line);
  EXPECT_TRUE(same_bits(whole, scene.run_in_parts(line)));
}

TEST(Attention, WantsExactlyTheWorkspaceThatQuerySays) {
  Rig rig(2);
  Line& line = rig.line(KVSPAN_ROLE_COMPUTE, 4);
  Scene scene(rig, {3, 2, 500, KVSPAN_ROWS_DECODE});
  ASSERT_GT(scene.caps().run_workspace_bytes, 0u);
  --scene.args.workspace.bytes;
  const kvspan_result_t result = rig.submit(
      line, [&](kvspan_queue_t* queue, const kvspan_submit_t* submit, kvspan_error_t* error) {
        return kAttentionTable.run(queue, &scene.args, submit, error);
      });
  EXPECT_EQ(result, KVSPAN_E_WORKSPACE);
  EXPECT_EQ(rig.error.required, scene.caps().run_workspace_bytes);
  EXPECT_EQ(rig.error.missing, 1u);
}

kvspan_attention_shape_t shape_of(kvspan_type_t type, uint32_t head_size) {
  kvspan_attention_shape_t shape{};
  shape.struct_size = sizeof shape;
  shape.k_type = shape.v_type = type;
  shape.head_size_k = shape.head_size_v = head_size;
  shape.q_heads = 8;
  shape.kv_heads = 2;
  shape.memory_kinds = 1u << KVSPAN_MEMORY_DEVICE;
  shape.rows_max = 4;
  shape.entries_max = shape.items_max = shape.spans_max = 1;
  return shape;
}

TEST(AttentionRules, RefuseWithTheReasonAndANearestThatWorks) {
  struct Expected {
    kvspan_attention_shape_t shape;
    uint32_t reasons;
  };

  std::vector<Expected> all{
      {shape_of(KVSPAN_TYPE_Q8_0, 80), KVSPAN_WHY_BLOCK},
      {shape_of(KVSPAN_TYPE_F16, 84), KVSPAN_WHY_HEAD_SIZE},
      {shape_of(KVSPAN_TYPE_F16, 264), KVSPAN_WHY_HEAD_SIZE},
      {shape_of(12, 64), KVSPAN_WHY_K_TYPE | KVSPAN_WHY_V_TYPE},
  };
  all.push_back({shape_of(KVSPAN_TYPE_F16, 64), KVSPAN_WHY_ROWS});
  all.back().shape.rows_max = 65;
  all.push_back({shape_of(KVSPAN_TYPE_F16, 64), KVSPAN_WHY_GROUP});
  all.back().shape.q_heads = 7;
  for (Expected& expected : all) {
    kvspan_attention_caps_t caps{};
    ASSERT_TRUE(answer(expected.shape, caps));
    EXPECT_EQ(caps.level, KVSPAN_LEVEL_UNSUPPORTED);
    EXPECT_EQ(caps.reasons, expected.reasons);
    if (expected.reasons == KVSPAN_WHY_GROUP) {
      continue;  // no nearest field names heads
    }
    expected.shape.k_type = caps.nearest_k_type;
    expected.shape.v_type = caps.nearest_v_type;
    expected.shape.head_size_k = caps.nearest_head_size_k;
    expected.shape.head_size_v = caps.nearest_head_size_v;
    expected.shape.rows_max = caps.nearest_rows;
    ASSERT_TRUE(answer(expected.shape, caps));
    EXPECT_EQ(caps.level, KVSPAN_LEVEL_NATIVE);
  }
}

TEST(AttentionRules, NoticeAmountsThatLeave64Bits) {
  kvspan_attention_shape_t shape = shape_of(KVSPAN_TYPE_F16, 256);
  shape.row_class = KVSPAN_ROWS_PREFILL;
  shape.rows_max = UINT32_MAX;
  shape.q_heads = shape.kv_heads = UINT32_MAX;
  kvspan_attention_caps_t caps{};
  EXPECT_FALSE(answer(shape, caps));
}

}  // namespace
}  // namespace kvspan::cpu
