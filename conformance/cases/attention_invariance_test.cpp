// SPDX-License-Identifier: Apache-2.0
// Nothing that is not part of the question moves a bit of the answer: cuts, waves, placement,
// neighbours, the number of rows beside, time and load; and a chain of a suffix mask is causality.
// Not here: that the answer is right (attention_numerics_test.cpp).
#include "attention_case.hpp"
#include "worker/case.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(attention);

class AttentionInvariance : public AttentionTest {
 protected:
  /// Scenes 0 .. count - 1 of a test, the same each time.
  RandomScene scene_of(uint64_t seed, uint32_t options = 0x7Fu) {
    Dice dice(settings(), seed);
    Limits limits;
    limits.options = options;
    limits.row_class = dice.hit(4) ? KVSPAN_ROWS_PREFILL : KVSPAN_ROWS_DECODE;
    limits.rows_max = dice.hit(6) ? 40 : 6;
    limits.tokens_max = dice.hit(4) ? 1200 : 300;
    return random_scene(limits, dice);
  }
};

KVSPAN_CASE(AttentionInvariance,
            RunHasTheBitsOfAnyCutIntoParts,
            "KV-ATTN-4 KV-ATTN-5 KV-ATTN-7",
            takes_tuple) {
  for (uint64_t seed = 1; seed <= cases(settings(), 40, 3) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const RandomScene made = scene_of(seed);
    const Outputs whole = take(made.scene, {}, seed);
    for (uint64_t cut = 0; cut < 3; ++cut) {
      SCOPED_TRACE(testing::Message() << "cut " << cut);
      const Take how{.scattered = cut != 0, .parts = true};
      ASSERT_TRUE(same_bits(whole, take(made.scene, how, seed * 10 + cut)));
    }
  }
}

KVSPAN_CASE(AttentionInvariance, PlacementMovesNoBit, "KV-BITS-1", takes_tuple) {
  for (uint64_t seed = 1; seed <= cases(settings(), 40, 3) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const RandomScene made = scene_of(100 + seed);
    const Outputs resident = take(made.scene, {}, seed);
    for (uint64_t layout = 0; layout < 3; ++layout) {
      SCOPED_TRACE(testing::Message() << "layout " << layout);
      ASSERT_TRUE(same_bits(resident, take(made.scene, {.scattered = true}, seed * 10 + layout)));
    }
  }
}

KVSPAN_CASE(AttentionInvariance, NeighboursInTheCallMoveNoBit, "KV-BITS-2", takes_tuple) {
  for (uint64_t seed = 1; seed <= cases(settings(), 20, 2) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(settings(), 200 + seed);
    Limits limits;
    RandomScene made = random_scene(limits, dice);
    while (made.scene.sequences.size() < 3) {
      add_sequence(made, limits, dice);
    }
    const Outputs together = take(made.scene, {.scattered = true}, seed);
    ASSERT_EQ(together.size(), made.scene.sequences.size());
    Scene backward = made.scene;
    std::reverse(backward.sequences.begin(), backward.sequences.end());
    Outputs turned = take(backward, {.scattered = true}, seed + 1);
    std::reverse(turned.begin(), turned.end());
    ASSERT_TRUE(same_bits(together, turned)) << "in reverse order";
    for (std::size_t i = 0; i < together.size(); ++i) {
      Scene alone = made.scene;
      alone.sequences = {made.scene.sequences[i]};
      ASSERT_TRUE(same_bits({together[i]}, take(alone, {}, seed))) << "sequence " << i << " alone";
    }
  }
}

KVSPAN_CASE(
    AttentionInvariance, WidthMovesNoBit, "KV-BITS-4", takes_tuple, needs::width_invariance) {
  for (uint64_t seed = 1; seed <= cases(settings(), 10, 2) && !HasFailure(); ++seed) {
    Dice dice(settings(), 300 + seed);
    Limits limits;
    limits.entries_max = 1;
    limits.rows_max = 16;
    const auto promised = [](const kvspan_attention_caps_t& caps) {
      return (caps.determinism & KVSPAN_WIDTH_INVARIANT) != 0 && caps.width_invariant_max >= 16;
    };
    RandomScene made = random_scene(limits, dice);
    for (uint32_t thrown = 0; thrown < 100 && !promised(made.scene.caps); ++thrown) {
      made = random_scene(limits, dice);  // promised for some shapes only
    }
    const Scene& scene = made.scene;
    ASSERT_TRUE(promised(scene.caps)) << "no shape of 100 random ones";
    const Rows& rows = scene.sequences[0].rows;
    const Outputs together = take(scene, {.scattered = true}, seed);
    ASSERT_EQ(together.size(), 1u);
    for (uint32_t first = 0; first < rows.count; ++first) {
      const auto width = static_cast<uint32_t>(dice.between(1, rows.count - first));
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", rows " << first << " to "
                                      << first + width << " of " << rows.count);
      Scene part = scene;
      Rows& few = part.sequences[0].rows;
      const auto cut = [&](auto& values, uint64_t per_row) {
        if (!values.empty()) {
          const auto begin = static_cast<std::ptrdiff_t>(first * per_row);
          const auto end = static_cast<std::ptrdiff_t>((first + width) * per_row);
          values = {values.begin() + begin, values.begin() + end};
        }
      };
      few.count = width;
      cut(few.visible_end, 1);
      cut(few.window_begin, 1);
      cut(few.suffix_mask, 1);
      cut(few.positions, 1);
      cut(few.q, uint64_t{scene.geometry.q_heads} * scene.geometry.head_size_k);
      const Outputs narrow = take(part, {.parts = dice.hit(2)}, seed + first);
      ASSERT_TRUE(same_bits({part_of(together[0], rows.count, first, width)}, narrow));
    }
  }
}

KVSPAN_CASE(AttentionInvariance,
            AChainOfTheSuffixMaskIsPlainCausality,
            "KV-ATTN-10",
            takes_tuple,
            needs::suffix_mask) {
  for (uint64_t seed = 1; seed <= cases(settings(), 20, 2) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Dice dice(settings(), 400 + seed);
    Limits limits;
    limits.entries_max = 1;
    limits.options = KVSPAN_OPTION_SOFT_CAP | KVSPAN_OPTION_ALIBI | KVSPAN_OPTION_SINKS;
    RandomScene made = random_scene(limits, dice);
    Scene plain = made.scene;
    Rows& rows = plain.sequences[0].rows;
    rows.positions.clear();
    const uint64_t total = rows.token_total;
    rows.count = static_cast<uint32_t>(std::min<uint64_t>(rows.count, total));
    rows.q.resize(uint64_t{rows.count} * plain.geometry.q_heads * plain.geometry.head_size_k);
    rows.visible_end.resize(rows.count);
    Scene masked = plain;
    masked.shape.options |= KVSPAN_OPTION_SUFFIX_MASK;
    masked.caps = ask(rig(), masked.shape);
    if (masked.caps.level == KVSPAN_LEVEL_UNSUPPORTED) {
      continue;
    }
    Rows& tree = masked.sequences[0].rows;
    tree.suffix_count = static_cast<uint32_t>(std::min<uint64_t>(64, total));
    ASSERT_LE(rows.count, tree.suffix_count);
    tree.suffix_mask.clear();
    for (uint32_t row = 0; row < rows.count; ++row) {
      const uint64_t hidden = rows.count - 1 - row;  // of the last tokens
      rows.visible_end[row] = total - hidden;
      rows.positions.push_back(static_cast<int64_t>(total - hidden) - 1);
      tree.visible_end[row] = total;
      const uint64_t seen = tree.suffix_count - hidden;
      tree.suffix_mask.push_back(seen == 64 ? UINT64_MAX : (uint64_t{1} << seen) - 1);
    }
    tree.positions = rows.positions;
    ASSERT_TRUE(same_bits(take(plain, {}, seed), take(masked, {.scattered = true}, seed)));
  }
}

KVSPAN_CASE(
    AttentionInvariance, LoadBesideMovesNoBit, "KV-BITS-3", takes_tuple, needs::queues_four) {
  const RandomScene made = scene_of(17);
  const Outputs quiet = take(made.scene, {}, 1);
  Buffer* source = rig().allocate(KVSPAN_MEMORY_HOST, uint64_t{1} << 20);
  Buffer* target = rig().allocate(KVSPAN_MEMORY_DEVICE, uint64_t{1} << 20);
  Lane second = rig().extra_lane(KVSPAN_ROLE_COMPUTE);
  for (uint32_t round = 0; round < cases(settings(), 12, 3) && !HasFailure(); ++round) {
    Dice dice(settings(), round);
    arenas().reset();
    Scene scene = made.scene;
    std::vector<std::unique_ptr<Placement>> placements;
    for (Sequence& sequence : scene.sequences) {
      placements.push_back(std::make_unique<Placement>(arenas(),
                                                       *sequence.history,
                                                       one_piece(sequence.history->tokens),
                                                       std::vector<bool>(),
                                                       Poison::nan,
                                                       dice));
      sequence.spans = placements.back()->spans();
    }
    Stage stages[2] = {Stage(arenas(), scene, dice), Stage(arenas(), scene, dice)};
    Lane* lanes[2] = {&rig().lane(KVSPAN_ROLE_COMPUTE), &second};
    for (Stage& stage : stages) {
      stage.workspace_of(scene.caps.run_workspace_bytes);
    }
    arenas().upload();
    const kvspan_segment_t segment = {
        source->memory, target->memory, 0, 0, uint64_t{1} << 20, 1, 0, 0};
    std::vector<kvspan_point_t> points;
    for (uint32_t i = 0; i < 4; ++i) {
      Lane& upload = rig().lane(KVSPAN_ROLE_UPLOAD);
      Submit copy;
      points.push_back(upload.next());
      copy.signal(points.back());
      ASSERT_EQ(rig().calls().copy(upload.queue, &segment, 1, copy.raw(), nullptr), KVSPAN_OK);
      if (i < 2) {
        Submit run;
        points.push_back(lanes[i]->next());
        run.signal(points.back());
        kvspan_error_t error = fresh_error();
        const kvspan_result_t result =
            rig().calls().run(lanes[i]->queue, &stages[i].args(), run.raw(), &error);
        ASSERT_EQ(result, KVSPAN_OK) << told(result, error);
      }
    }
    for (const kvspan_point_t& point : points) {
      ASSERT_EQ(rig().wait(point), KVSPAN_OK);
    }
    stages[0].tolerate(stages[1]);
    stages[1].tolerate(stages[0]);
    ASSERT_TRUE(same_bits(quiet, stages[0].outputs())) << "round " << round;
    ASSERT_TRUE(same_bits(quiet, stages[1].outputs())) << "round " << round;
  }
}

KVSPAN_CASE(AttentionInvariance, TheCallingThreadMovesNoBit, "KV-BITS-3 KV-THREAD-2", takes_tuple) {
  for (uint64_t seed = 23; seed < 28; ++seed) {  // a nudge does not show in every scene
    const RandomScene made = scene_of(seed);
    const Outputs here = take(made.scene, {}, 1);
    for (const bool parts : {false, true}) {
      Outputs there;
      std::thread([&] { there = take(made.scene, {.parts = parts}, 1); }).join();
      ASSERT_TRUE(same_bits(here, there)) << "seed " << seed << ", from another thread";
    }
  }
}

// The canaries behind u and {m, l} of every state and accumulator: Stage looks at them.
KVSPAN_CASE(AttentionInvariance, NothingBehindAStateIsWritten, "KV-ATTN-9") {
  for (const uint32_t rows : {1u, 3u, 16u}) {
    SCOPED_TRACE(testing::Message() << rows << " rows");
    Dice dice(settings(), rows);
    Scene scene;
    scene.geometry.kv_heads = 2;
    scene.geometry.q_heads = 4;
    scene.shape = shape_of(scene.geometry);
    scene.shape.rows_max = rows;  // so that the rows fill the states
    prepare(scene);
    const History history = History::random(scene.geometry, 150, dice);
    Sequence sequence;
    sequence.history = &history;
    sequence.rows = rows_over(scene, history.tokens, rows, dice);
    scene.sequences = {sequence};
    EXPECT_EQ(take(scene, {.parts = true}, rows).size(), 1u);
  }
}

/// Folds and finishes states written by hand: one row, one head, V of 64 equal values.
class AttentionFold : public AttentionInvariance {
 protected:
  struct Ml {
    float m, l, u;
  };

  Output fold(const std::vector<Ml>& states) {
    Dice dice(settings(), 1);
    arenas().reset();
    Scene scene;
    scene.shape = shape_of(scene.geometry);
    scene.shape.options = KVSPAN_OPTION_LSE;
    scene.shape.rows_max = 1;
    prepare(scene);
    const History history(scene.geometry, 1);
    Sequence sequence;
    sequence.history = &history;
    sequence.rows = rows_over(scene, 1, 1, dice);
    scene.sequences = {sequence};
    Stage stage(arenas(), scene, dice);
    stage.workspace_of(
        std::max(scene.caps.fold_workspace_bytes, scene.caps.finish_workspace_bytes));
    std::vector<kvspan_fold_item_t> items;
    const kvspan_state_t sum = stage.accumulator(0);
    for (std::size_t i = 0; i < states.size(); ++i) {
      const kvspan_state_t state = stage.state(0, i);
      uint8_t* image = arenas().of(KVSPAN_MEMORY_DEVICE).buffer->image.data();
      const float ml[2] = {states[i].m, states[i].l};
      const std::vector<float> u(64, states[i].u);
      std::memcpy(image + state.ml_offset, ml, 8);
      std::memcpy(image + state.u_offset, u.data(), 256);
      items.push_back({0, i == 0 ? KVSPAN_ITEM_FRESH : 0u, state, sum});
    }
    stage.upload();
    const auto done = [&](kvspan_result_t result) { EXPECT_EQ(result, KVSPAN_OK); };
    done(rig().settle(KVSPAN_ROLE_COMPUTE, [&](auto* queue, const auto* submit, auto* error) {
      const auto count = static_cast<uint32_t>(items.size());
      return rig().calls().fold(queue, &stage.args(), items.data(), count, submit, error);
    }));
    const Bytes now = arenas().download(KVSPAN_MEMORY_DEVICE);
    const auto part = [&](uint64_t offset, uint64_t bytes) {
      const auto begin = now.begin() + static_cast<std::ptrdiff_t>(offset);
      return Bytes(begin, begin + static_cast<std::ptrdiff_t>(bytes));
    };
    accumulator_ = {part(sum.u_offset, 256), part(sum.ml_offset, 8)};
    done(rig().settle(KVSPAN_ROLE_COMPUTE, [&](auto* queue, const auto* submit, auto* error) {
      return rig().calls().finish(queue, &stage.args(), &sum, submit, error);
    }));
    const Outputs outputs = stage.outputs();
    return outputs.empty() ? Output() : outputs[0];
  }

  /// The accumulator of the last fold: u and {m, l}.
  struct State {
    Bytes u, ml;
  };

  State accumulator_;
};

constexpr float kNone = -std::numeric_limits<float>::infinity();

KVSPAN_CASE(AttentionFold, NeutralStatesAreSkippedBitForBit, "KV-ATTN-8", needs::lse) {
  const Output empty = fold({{kNone, 0, 0}, {kNone, 0, 0}});
  EXPECT_EQ(values_of(empty, KVSPAN_TYPE_F32), std::vector<float>(64, 0.0F));
  EXPECT_EQ(lse_of(empty), std::vector<float>{kNone});
  const Ml odd = {-71.3F, 1.7F, -0.3F};
  const Output alone = fold({odd});
  EXPECT_EQ(fold({{kNone, 0, 0}, odd}), alone);
  EXPECT_EQ(fold({odd, {kNone, 0, 0}}), alone);
  EXPECT_EQ(fold({{kNone, 0, 0}, {kNone, 0, 0}, odd, {kNone, 0, 0}}), alone);
}

KVSPAN_CASE(AttentionFold, NeutralWithNeutralIsNeutralBitForBit, "KV-ATTN-8", needs::lse) {
  const float neutral[] = {kNone, 0.0F};
  const auto* bytes = reinterpret_cast<const uint8_t*>(neutral);
  for (const std::size_t count : {1u, 2u, 5u}) {
    fold(std::vector<Ml>(count, {kNone, 0, 0}));
    EXPECT_EQ(accumulator_.ml, Bytes(bytes, bytes + 8)) << "{m, l} after " << count << " states";
    EXPECT_EQ(accumulator_.u, Bytes(256, uint8_t{0})) << "u after " << count << " states";
  }
}

// Two parts of one visible weight: 1 with log-sum-exp ln 1, and 3 with ln 3, merge to 2.5 and ln 4.
KVSPAN_CASE(AttentionFold, KnownStatesMergeToTheKnownMean, "KV-ATTN-11", needs::lse) {
  const Output merged = fold({{0, 1, 1}, {0, 3, 9}});
  EXPECT_EQ(values_of(merged, KVSPAN_TYPE_F32), std::vector<float>(64, 2.5F));
  EXPECT_NEAR(lse_of(merged).at(0), 1.3862944F, 2e-7F);
}

}  // namespace
}  // namespace kvspan::conformance
