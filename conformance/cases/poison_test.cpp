// SPDX-License-Identifier: Apache-2.0
// Bytes outside what a row sees never reach its output: dead rows, padding, neighbours and masked
// tokens hold NaN, infinities and 1e38 and no bit moves. Nothing visible gives 0 and -inf.
// Not here: writes outside the outputs; every stage checks those (stage.cpp).
#include "attention_case.hpp"
#include "worker/case.hpp"

#include <cmath>
#include <limits>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(attention);

class PoisonTest : public AttentionTest {
 protected:
  /// Three tokens with K = 0 and V = 1, 2, 3 in a page of four; the fourth row and all else poison.
  Outputs three_of_four(const Geometry& geometry, Poison poison, bool parts) {
    History history(geometry, 3);
    for (uint64_t token = 0; token < 3; ++token) {
      const std::vector<float> values(64, static_cast<float>(token + 1));
      history.v.set(token, 0, values.data());
      history.v.set(token, 1, values.data());
    }
    Dice dice(settings(), 5);
    Scene scene;
    scene.geometry = geometry;
    scene.shape = shape_of(geometry);
    prepare(scene);
    Sequence sequence;
    sequence.history = &history;
    sequence.rows = rows_over(scene, 3, 2, dice);
    arenas().reset();
    Piece piece = one_piece(3)[0];
    piece.page_tokens = 4;
    piece.spare_slots = 2;
    piece.listed = true;
    piece.pad_bytes = 32;
    const Placement placement(arenas(), history, {piece}, {}, poison, dice);
    sequence.spans = placement.spans();
    scene.sequences = {sequence};
    Stage stage(arenas(), scene, dice);
    kvspan_error_t error = fresh_error();
    const kvspan_result_t result = parts ? stage.by_parts(dice, &error) : stage.run(&error);
    EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
    return stage.outputs();
  }
};

KVSPAN_CASE(PoisonTest, DeadRowsOfThePageGiveExactlyTwo, "KV-ATTN-1") {
  for (const kvspan_type_t type : {KVSPAN_TYPE_F32, KVSPAN_TYPE_F16, KVSPAN_TYPE_BF16}) {
    Geometry geometry;
    geometry.k_type = geometry.v_type = type;
    geometry.q_heads = 4;
    geometry.kv_heads = 2;
    if (type != KVSPAN_TYPE_F16 && !offers(geometry)) {
      continue;
    }
    for (const Poison poison : kPoisons) {
      for (const bool parts : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << "type " << type << ", poison " << int(poison) << ", parts " << parts);
        for (const Output& output : three_of_four(geometry, poison, parts)) {
          for (const float value : values_of(output, KVSPAN_TYPE_F32)) {
            ASSERT_EQ(value, 2.0F);
          }
        }
      }
    }
  }
}

KVSPAN_CASE(PoisonTest, UnseenTokensAndPaddingMoveNoBit, "KV-ATTN-1", takes_tuple) {
  for (uint64_t seed = 1; seed <= cases(settings(), 40, 3) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(settings(), 500 + seed);
    Limits limits;
    limits.options |= dice.hit(2) ? KVSPAN_OPTION_SUFFIX_MASK : 0u;
    limits.row_class = dice.hit(3) ? KVSPAN_ROWS_PREFILL : KVSPAN_ROWS_DECODE;
    limits.tokens_max = 200;
    const RandomScene made = random_scene(limits, dice);
    const Take base{.scattered = true, .parts = dice.hit(2), .poison = Poison::large};
    const Outputs clean = take(made.scene, base, seed);
    for (const Poison poison : kPoisons) {
      SCOPED_TRACE(testing::Message() << "poison " << int(poison));
      Take how = base;
      how.hide_unseen = true;
      how.poison = poison;
      ASSERT_TRUE(same_bits(clean, take(made.scene, how, seed)));
    }
  }
}

KVSPAN_CASE(PoisonTest, ATokenOfAnotherRowMovesNoBitOfMine, "KV-ATTN-1") {
  for (uint64_t seed = 1; seed <= cases(settings(), 25, 2) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(settings(), 600 + seed);
    Limits limits;
    limits.entries_max = 1;
    limits.rows_max = 16;
    limits.tokens_max = 150;
    RandomScene made = random_scene(limits, dice);
    const Rows& rows = made.scene.sequences[0].rows;
    const bool parts = dice.hit(2);
    const Outputs clean = take(made.scene, {.scattered = true, .parts = parts}, seed);
    const uint64_t token = dice.below(rows.token_total);
    for (const Poison poison : kPoisons) {
      made.histories[0].k.poison(token, poison);
      if (!made.scene.geometry.v_in_k) {
        made.histories[0].v.poison(token, poison);
      }
      const Outputs hit = take(made.scene, {.scattered = true, .parts = parts}, seed);
      ASSERT_EQ(hit.size(), 1u);
      for (uint32_t row = 0; row < rows.count; ++row) {
        if (!rows.sees(row, token)) {
          SCOPED_TRACE(testing::Message() << "row " << row << " does not see token " << token
                                          << ", poison " << int(poison));
          ASSERT_TRUE(same_bits({part_of(clean.at(0), rows.count, row, 1)},
                                {part_of(hit[0], rows.count, row, 1)}));
        }
      }
    }
  }
}

class NothingVisible : public AttentionTest {
 protected:
  enum class Why { no_history, ends_at_zero, closed_window, masked };

  void expect_nothing(Why why, bool parts) {
    Dice dice(settings(), 9);
    Geometry geometry;
    geometry.q_heads = 3;
    geometry.head_size_v = 128;
    Scene scene;
    scene.geometry = geometry;
    scene.shape = shape_of(geometry);
    scene.shape.options = KVSPAN_OPTION_LSE | KVSPAN_OPTION_WINDOW | KVSPAN_OPTION_SUFFIX_MASK;
    prepare(scene);
    const uint64_t tokens = why == Why::no_history ? 0 : 5;
    History history = History::random(geometry, tokens, dice);
    for (uint64_t token = 0; token < tokens; ++token) {
      history.k.poison(token, Poison::nan);
      history.v.poison(token, Poison::nan);
    }
    Sequence sequence;
    sequence.history = &history;
    Rows& rows = sequence.rows = rows_over(scene, tokens, 3, dice);
    if (why == Why::ends_at_zero) {
      rows.visible_end.assign(3, 0);
    } else if (why == Why::closed_window) {
      rows.window_begin.assign(3, tokens);
    } else if (why == Why::masked) {
      rows.suffix_count = 5;
      rows.suffix_mask.assign(3, 0);
    }
    scene.sequences = {sequence};
    const Outputs outputs = take(scene, {.scattered = tokens != 0, .parts = parts}, 1);
    ASSERT_EQ(outputs.size(), 1u);
    for (const float value : values_of(outputs[0], KVSPAN_TYPE_F32)) {
      ASSERT_EQ(value, 0.0F);
    }
    for (const float value : lse_of(outputs[0])) {
      ASSERT_EQ(value, -std::numeric_limits<float>::infinity());
    }
  }
};

KVSPAN_CASE(NothingVisible,
            GivesZeroAndMinusInfinity,
            "KV-ATTN-2 KV-ATTN-6",
            needs::window,
            needs::suffix_mask,
            needs::lse) {
  for (const Why why : {Why::no_history, Why::ends_at_zero, Why::closed_window, Why::masked}) {
    for (const bool parts : {false, true}) {
      SCOPED_TRACE(testing::Message() << "why " << int(why) << ", parts " << parts);
      expect_nothing(why, parts);
    }
  }
}

KVSPAN_CASE(NothingVisible, NoEntriesAreAcceptedAndSignal, "KV-ATTN-2") {
  Scene scene;
  scene.shape = shape_of(scene.geometry);
  prepare(scene);
  Dice dice(settings(), 1);
  Stage stage(arenas(), scene, dice);
  kvspan_error_t error = fresh_error();
  const kvspan_result_t result = stage.run(&error);
  EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
  EXPECT_TRUE(stage.outputs().empty());
}

}  // namespace
}  // namespace kvspan::conformance
