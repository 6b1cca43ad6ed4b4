// SPDX-License-Identifier: Apache-2.0
// Attention is right: within the error class against double precision, for every pair of types and
// random shapes, options, layouts and sequences, and exact where the answer is known exactly.
// Not here: that bits do not move (attention_invariance_test.cpp), poison (poison_test.cpp).
#include "kvspan/sdk/reference/quant.h"

#include "attention_case.hpp"
#include "oracle.hpp"
#include "worker/case.hpp"

#include <algorithm>
#include <cmath>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(attention);

/// Whether whole blocks of the type make a head of the tuple.
bool divides(kvspan_type_t type, const Tuple& tuple) {
  const uint32_t block = kvspan_ref_block(type).elements;
  return tuple.head_size.value_or(block) % block == 0;
}

class AttentionNumerics : public AttentionTest {
 protected:
  /// Calls visit(number, tuple, geometry, dice) for each pair of types of the settings' tuples, the
  /// geometry's types set; it says whether the plugin offers the pair, as it must at least once.
  template <class Visit>
  void for_each_pair_of_types(uint64_t seed, Visit&& visit) {
    // A tenth of the effort keeps the pairs of equal types: nine is odd, so all 64 come in turn.
    const uint32_t count = settings().tuples.empty() ? cases(settings(), 64, 8) : 64;
    int offered = 0;
    for (uint32_t i = 0; i < count && i < 64; ++i) {
      Geometry geometry;
      geometry.k_type = kTypes[i * 9 % 64 / 8];
      geometry.v_type = kTypes[i * 9 % 8];
      const Tuple* const tuple = tuple_of(settings().tuples, geometry.k_type, geometry.v_type);
      if (tuple == nullptr || !divides(geometry.k_type, *tuple) ||
          !divides(geometry.v_type, *tuple)) {
        continue;
      }
      SCOPED_TRACE(testing::Message()
                   << "K type " << geometry.k_type << ", V type " << geometry.v_type);
      Dice dice(settings(), seed + geometry.k_type * 100 + geometry.v_type);
      offered += visit(i, *tuple, geometry, dice) ? 1 : 0;
    }
    RecordProperty("pairs", offered);
    EXPECT_GT(offered, 0) << "query refuses every pair at these head sizes";
  }

  /// A scene of one sequence over `history`: `rows` rows that see everything.
  Scene plain(const History& history, uint32_t rows, Dice& dice) {
    Scene scene;
    scene.geometry = history.geometry;
    scene.shape = shape_of(scene.geometry);
    prepare(scene);
    Sequence sequence;
    sequence.history = &history;
    sequence.rows = rows_over(scene, history.tokens, rows, dice);
    scene.sequences.push_back(sequence);
    return scene;
  }

  void expect_all(const Scene& scene, float value) {
    for (const bool parts : {false, true}) {
      const Outputs outputs = take(scene, {.scattered = false, .parts = parts}, 1);
      ASSERT_EQ(outputs.size(), 1u);
      for (const float got : values_of(outputs[0], scene.shape.out_type)) {
        ASSERT_EQ(got, value) << (parts ? "in parts" : "in one call");
      }
    }
  }
};

constexpr uint32_t kThrowsForOption = 500;  // one in four has an option, nearly all of those matter

// That a pair is refused: refusal_attention_test.cpp.
KVSPAN_CASE(AttentionNumerics,
            EveryPairOfTypesIsWithinTheErrorClass,
            "KV-ATTN-3 KV-QUERY-2",
            takes_tuple) {
  for_each_pair_of_types(0, [&](uint32_t, const Tuple& tuple, Geometry& geometry, Dice& dice) {
    geometry.head_size_k = tuple.head_size.value_or(64);
    geometry.head_size_v = tuple.head_size.value_or(96);
    geometry.kv_heads = 2;
    geometry.q_heads = 4;
    if (!offers(geometry)) {
      return false;
    }
    const History history = History::random(geometry, 150, dice);
    const Scene scene = plain(history, 3, dice);
    expect_close(scene, take(scene, {.scattered = true}, geometry.k_type * 100 + geometry.v_type));
    return true;
  });
}

// Wide rows, as engines hand them over: 16-bit queries, each row seeing a token more, more pairs of
// row and head than any kernel takes at once; every other pair of types with a peaked softmax,
// where an error of a key counts most.
KVSPAN_CASE(AttentionNumerics,
            EveryPairOfTypesPrefillsWithinTheErrorClass,
            "KV-ATTN-3 KV-QUERY-2",
            takes_tuple,
            cost_ms(400)) {
  for_each_pair_of_types(5000, [&](uint32_t i, const Tuple& tuple, Geometry& geometry, Dice& dice) {
    geometry.head_size_k = geometry.head_size_v = tuple.head_size.value_or(128);
    geometry.kv_heads = 1;
    geometry.q_heads = 4;
    const History history = History::random(geometry, 210, dice);
    Scene scene;
    scene.geometry = geometry;
    scene.shape = shape_of(geometry);
    scene.shape.row_class = KVSPAN_ROWS_PREFILL;
    scene.shape.q_type = i % 4 == 3 ? KVSPAN_TYPE_BF16 : KVSPAN_TYPE_F16;
    scene.shape.rows_max = 40;
    scene.scale = i % 2 == 0 ? 0.088F : 1.0F;
    if (!offered(scene)) {
      return false;
    }
    make_room(scene);
    Sequence sequence;
    sequence.history = &history;
    sequence.rows = rows_over(scene, history.tokens, 40, dice);
    for (uint32_t row = 0; row < 40; ++row) {
      sequence.rows.visible_end[row] = history.tokens - 39 + row;
    }
    scene.sequences.push_back(sequence);
    expect_close(scene, take(scene, {.scattered = true, .parts = i % 3 == 0}, 5000 + i));
    return true;
  });
}

KVSPAN_CASE(AttentionNumerics,
            RandomDecodeShapesAreWithinTheErrorClass,
            "KV-ATTN-3 KV-ATTN-9",
            takes_tuple) {
  for (uint64_t seed = 1; seed <= cases(settings(), 70, 4); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(settings(), seed);
    Limits limits;
    limits.rows_max = dice.hit(8) ? 64 : 8;
    limits.tokens_max = dice.hit(8) ? 1500 : (limits.rows_max == 64 ? 100 : 300);
    const RandomScene made = random_scene(limits, dice);
    const Take how{.scattered = true, .parts = dice.hit(2), .hide_unseen = dice.hit(2)};
    expect_close(made.scene, take(made.scene, how, seed));
    if (HasFailure()) {
      break;
    }
  }
}

KVSPAN_CASE(AttentionNumerics,
            RandomPrefillShapesAreWithinTheErrorClass,
            "KV-ATTN-3",
            takes_tuple) {
  for (uint64_t seed = 1; seed <= cases(settings(), 16, 2); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(settings(), 1000 + seed);
    Limits limits;
    limits.row_class = KVSPAN_ROWS_PREFILL;
    limits.rows_max = 150;
    limits.entries_max = 2;
    limits.tokens_max = 260;
    const RandomScene made = random_scene(limits, dice);
    expect_close(made.scene,
                 take(made.scene, {.scattered = true, .parts = dice.hit(2)}, 1000 + seed));
    if (HasFailure()) {
      break;
    }
  }
}

KVSPAN_CASE(AttentionNumerics, EachOptionAloneIsWithinTheErrorClass, "KV-ATTN-3", takes_tuple) {
  const std::vector<Tuple>& tuples = settings().tuples;
  const bool one_type =
      tuples.empty() || std::any_of(tuples.begin(), tuples.end(), [](const Tuple& tuple) {
        return !tuple.k_type || !tuple.v_type || tuple.k_type == tuple.v_type;
      });
  for (uint32_t bit = 1; bit <= KVSPAN_OPTION_LSE; bit <<= 1) {
    if (bit == KVSPAN_OPTION_V_IN_K && !one_type) {
      continue;  // there V has K's type
    }
    for (uint64_t seed = 1; seed <= cases(settings(), 5, 1); ++seed) {
      SCOPED_TRACE(testing::Message() << "option 0x" << std::hex << bit << " seed " << seed);
      Dice dice(settings(), seed);
      Limits limits;
      limits.options = bit;
      RandomScene made = random_scene(limits, dice);
      for (uint32_t thrown = 0; !option_matters(made.scene, bit) && thrown < kThrowsForOption;
           ++thrown) {
        made = random_scene(limits, dice);  // until the dice asks for it
      }
      if (!option_matters(made.scene, bit)) {
        ASSERT_FALSE(offers({}, bit)) << "no random shape has it";
        break;
      }
      expect_close(made.scene, take(made.scene, {.parts = dice.hit(2)}, seed));
    }
  }
}

// A shift of all scores of a row cancels in its output: the log-sum shows where ALiBi counts from.
KVSPAN_CASE(AttentionNumerics,
            AlibiCountsFromThePositionsOfTheRows,
            "KV-ATTN-3",
            needs::alibi,
            needs::lse) {
  for (uint64_t seed = 1; seed <= cases(settings(), 6, 2); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(settings(), 3000 + seed);
    Scene scene;
    scene.geometry.kv_heads = 2;
    scene.geometry.q_heads = 4;
    scene.shape = shape_of(scene.geometry);
    scene.shape.options = KVSPAN_OPTION_ALIBI | KVSPAN_OPTION_LSE;
    prepare(scene);
    scene.slopes = {0.5F, 0.25F, 0.125F, 0.0625F};
    const History history = History::random(scene.geometry, 60 + 50 * seed, dice);
    Sequence sequence;
    sequence.history = &history;
    sequence.rows = rows_over(scene, history.tokens, 5, dice);
    for (uint32_t row = 0; row < 5; ++row) {
      sequence.rows.positions.push_back(static_cast<int64_t>(history.tokens) + 7 - 3 * row);
    }
    scene.sequences = {sequence};
    expect_close(scene, take(scene, {.parts = seed % 2 == 0}, seed));
    scene.sequences[0].rows.positions.clear();  // then it is the row's own end
    expect_close(scene, take(scene, {.parts = seed % 2 == 0}, seed));
  }
}

KVSPAN_CASE(AttentionNumerics, PeakedSoftmaxIsWithinTheErrorClass, "KV-ATTN-3") {
  for (const float scale : {0.5F, 1.0F, 2.0F}) {
    SCOPED_TRACE(testing::Message() << "scale " << scale);
    Dice dice(settings(), 7);
    Geometry geometry;
    geometry.kv_heads = 2;
    geometry.q_heads = 4;
    const History history = History::random(geometry, 300, dice);
    Scene scene = plain(history, 4, dice);
    scene.scale = scale;
    expect_close(scene, take(scene, {.scattered = true}, 3));
  }
}

// A product of halves or an f16 score would overflow: 128 * 24 * 24 = 73,728 > 65,504.
KVSPAN_CASE(AttentionNumerics, ScoresBeyondHalfPrecisionAreExact, "KV-ATTN-3") {
  for (const kvspan_type_t type : {KVSPAN_TYPE_F32, KVSPAN_TYPE_F16, KVSPAN_TYPE_BF16}) {
    SCOPED_TRACE(testing::Message() << "type " << type);
    Geometry geometry;
    geometry.k_type = geometry.v_type = type;
    geometry.head_size_k = geometry.head_size_v = 128;
    if (type != KVSPAN_TYPE_F16 && !offers(geometry)) {
      continue;
    }
    History history(geometry, 2);
    const std::vector<float> keys(128, 24.0F);
    for (uint64_t token = 0; token < 2; ++token) {
      history.k.set(token, 0, keys.data());
      const std::vector<float> values(128, static_cast<float>(token + 1));
      history.v.set(token, 0, values.data());
    }
    Dice dice(settings(), 1);
    Scene scene = plain(history, 1, dice);
    scene.scale = 1.0F;
    scene.sequences[0].rows.q = keys;
    expect_all(scene, 1.5F);
  }
}

// The sum before it is normalised is 4,096 * 32 = 131,072 > 65,504.
KVSPAN_CASE(AttentionNumerics, SumsBeyondHalfPrecisionAreExact, "KV-ATTN-3") {
  Geometry geometry;
  History history(geometry, 4096);
  const std::vector<float> values(64, 32.0F);
  for (uint64_t token = 0; token < history.tokens; ++token) {
    history.v.set(token, 0, values.data());
  }
  Dice dice(settings(), 1);
  expect_all(plain(history, 2, dice), 32.0F);
}

// V = 1 everywhere gives 1 whatever the keys are, at lengths around every likely tile.
KVSPAN_CASE(AttentionNumerics, OnesGiveOne, "KV-ATTN-3") {
  Geometry geometry;
  geometry.kv_heads = 1;
  geometry.q_heads = 5;
  for (const uint64_t tokens : {1u, 2u, 31u, 32u, 33u, 63u, 64u, 65u, 255u, 256u, 257u, 1000u}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens");
    Dice dice(settings(), tokens);
    History history = History::random(geometry, tokens, dice);
    const std::vector<float> ones(geometry.head_size_v, 1.0F);
    for (uint64_t token = 0; token < tokens; ++token) {
      history.v.set(token, 0, ones.data());
    }
    const Outputs outputs = take(plain(history, 2, dice), {.scattered = true}, tokens);
    ASSERT_EQ(outputs.size(), 1u);
    for (const float got : values_of(outputs[0], KVSPAN_TYPE_F32)) {
      ASSERT_NEAR(got, 1.0F, 1e-6F);
    }
  }
}

KVSPAN_CASE(AttentionNumerics, TheDefaultErrorClassIsMetToo, "KV-ATTN-3 KV-QUERY-2", takes_tuple) {
  for (uint64_t seed = 1; seed <= cases(settings(), 12, 2); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(settings(), 2000 + seed);
    RandomScene made = random_scene({}, dice);
    made.scene.shape.error_class = KVSPAN_ERROR_E1;
    made.scene.caps = ask(rig(), made.scene.shape);
    ASSERT_NE(made.scene.caps.level, KVSPAN_LEVEL_UNSUPPORTED);
    ASSERT_LE(made.scene.caps.error_class, KVSPAN_ERROR_E1);
    for (Sequence& sequence : made.scene.sequences) {
      sequence.rows.split_tokens = split_for(made.scene.caps, sequence.rows.token_total);
    }
    expect_close(made.scene, take(made.scene, {.scattered = true, .parts = dice.hit(2)}, seed));
  }
}

// Pages of 425,984 bytes around the offsets where 31 and 32 bits end: 4 tokens each, K = 0 and
// V = 1, 2, 3, 4 a page give exactly 2.5.
KVSPAN_CASE(AttentionNumerics, PagesBeyondFourGibibytesAreRead, "KV-ATTN-3", needs::far_memory) {
  constexpr uint64_t kPageBytes = 425984;
  constexpr uint64_t kRowBytes = 128;
  constexpr uint32_t kList[] = {5041, 10083, 5042, 10082};
  kvspan_memory_t* memory = nullptr;
  kvspan_error_t error = fresh_error();
  const kvspan_result_t made = rig().tables().memory->alloc(
      rig().device(), KVSPAN_MEMORY_DEVICE, 10084 * kPageBytes, &memory, &error);
  ASSERT_EQ(made, KVSPAN_OK) << told(made, error);
  const Geometry geometry;
  Buffer* host = rig().allocate(KVSPAN_MEMORY_HOST, 8 * kRowBytes);
  for (uint32_t page = 0; page < 4; ++page) {
    Side v(KVSPAN_TYPE_F16, 1, 64, 8);  // four rows of K, which are 0, then four of V
    const std::vector<float> values(64, static_cast<float>(page + 1));
    for (uint64_t token = 4; token < 8; ++token) {
      v.set(token, 0, values.data());
    }
    std::copy(v.bytes.begin(), v.bytes.end(), host->image.begin());
    rig().upload(*host);
    const kvspan_segment_t segment = {
        host->memory, memory, 0, kList[page] * kPageBytes, 8 * kRowBytes, 1, 0, 0};
    ASSERT_EQ(rig().settle(KVSPAN_ROLE_UPLOAD,
                           [&](auto* queue, const auto* submit, auto* out) {
                             return rig().calls().copy(queue, &segment, 1, submit, out);
                           }),
              KVSPAN_OK);
  }
  Dice dice(settings(), 1);
  const History history(geometry, 16);
  Scene scene = plain(history, 2, dice);
  kvspan_span_t span = {};
  span.token_count = 16;
  span.k = {memory, 0, kPageBytes, kRowBytes, kRowBytes, kList, 4, 4};
  span.v = span.k;
  span.v.offset = 4 * kRowBytes;
  scene.sequences[0].spans = {span};
  arenas().reset();
  Stage stage(arenas(), scene, dice);
  const kvspan_result_t result = stage.run(&error);
  ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
  for (const float value : values_of(stage.outputs().at(0), KVSPAN_TYPE_F32)) {
    ASSERT_EQ(value, 2.5F);
  }
  EXPECT_EQ(rig().calls().release(memory, nullptr), KVSPAN_OK);
}

}  // namespace
}  // namespace kvspan::conformance
