// SPDX-License-Identifier: Apache-2.0
// However a history is cut into advances, the bits are those of run: every cut into pieces of whole
// granules up to eight granules, and random ones of longer histories. Not here: waves of several
// splits and sequences (attention_invariance_test.cpp).
#include "attention_case.hpp"
#include "worker/case.hpp"

#include <algorithm>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(attention);

class AttentionCuts : public AttentionTest {
 protected:
  /// A scene of two rows over one sequence, with types that the dice throw.
  Scene scene_over(History& history, uint64_t granules, Dice& dice) {
    Limits limits;
    limits.options = 0;
    limits.rows_max = 2;
    limits.tokens_max = 1;
    Scene scene = random_scene(limits, dice).scene;
    const uint64_t granule = std::max(1u, scene.caps.span_granule);
    history = History::random(scene.geometry, granules * granule - granule / 4, dice);
    Sequence sequence;
    sequence.history = &history;
    sequence.rows = rows_over(scene, history.tokens, 2, dice);
    scene.sequences = {sequence};
    return scene;
  }

  /// The outputs of one cut of a scene that lies in one piece; empty after a recorded failure.
  Outputs cut(const Scene& scene, const std::vector<uint64_t>& ends) {
    Dice dice(settings(), 1);
    arenas().reset();
    Scene placed = scene;
    const History& history = *scene.sequences[0].history;
    const Placement placement(arenas(), history, one_piece(history.tokens), {}, Poison::nan, dice);
    placed.sequences[0].spans = placement.spans();
    Stage stage(arenas(), placed, dice);
    kvspan_error_t error = fresh_error();
    const kvspan_result_t result = stage.by_cut(ends, &error);
    EXPECT_EQ(result, KVSPAN_OK) << told(result, error);
    return result == KVSPAN_OK ? stage.outputs() : Outputs();
  }
};

/// The cut whose bits say behind which granules but the last it cuts.
std::vector<uint64_t> ends_of(uint64_t bits, uint64_t granules, uint64_t granule, uint64_t tokens) {
  std::vector<uint64_t> ends;
  for (uint64_t i = 0; i + 1 < granules; ++i) {
    if (((bits >> i) & 1u) != 0) {
      ends.push_back((i + 1) * granule);
    }
  }
  ends.push_back(tokens);
  return ends;
}

KVSPAN_CASE(AttentionCuts,
            EveryCutUpToEightGranulesHasTheBitsOfRun,
            "KV-ATTN-5 KV-ATTN-4 KV-ATTN-7",
            takes_tuple,
            cost_ms(400)) {
  const uint64_t most = std::min(8u, cases(settings(), 8, 4));
  uint64_t cuts = 0;
  for (uint64_t granules = 1; granules <= most && !HasFailure(); ++granules) {
    Dice dice(settings(), granules);
    History history;
    Scene scene = scene_over(history, granules, dice);
    const uint64_t granule = std::max(1u, scene.caps.span_granule);
    for (const uint64_t split : {uint64_t{8}, uint64_t{3}}) {  // in granules: one split, or several
      const uint64_t ruled = split_for(scene.caps, history.tokens);
      scene.sequences[0].rows.split_tokens = std::max(ruled, split * granule);
      const Outputs whole = take(scene, {}, granules);
      for (uint64_t bits = 0; bits < uint64_t{1} << (granules - 1); ++bits, ++cuts) {
        const Outputs got = cut(scene, ends_of(bits, granules, granule, history.tokens));
        ASSERT_TRUE(same_bits(whole, got))
            << granules << " granules, splits of " << split << ", cut 0x" << std::hex << bits;
      }
    }
  }
  RecordProperty("cuts", static_cast<int>(cuts));
}

KVSPAN_CASE(AttentionCuts,
            RandomCutsOfLongerHistoriesHaveTheBitsOfRun,
            "KV-ATTN-5 KV-ATTN-4 KV-ATTN-7",
            takes_tuple,
            cost_ms(600)) {
  constexpr uint32_t kCutsEach = 10;
  const uint32_t count = cases(settings(), 200, 10);
  for (uint32_t seed = 0; seed < count && !HasFailure(); seed += kCutsEach) {
    Dice dice(settings(), 100 + seed);
    History history;
    const uint64_t granules = dice.between(9, 24);
    const Scene scene = scene_over(history, granules, dice);
    const uint64_t granule = std::max(1u, scene.caps.span_granule);
    const Outputs whole = take(scene, {}, seed);
    for (uint32_t i = 0; i < kCutsEach; ++i) {
      const uint64_t bits = dice.next() & (dice.hit(2) ? dice.next() : UINT64_MAX);
      const Outputs got = cut(scene, ends_of(bits, granules, granule, history.tokens));
      ASSERT_TRUE(same_bits(whole, got))
          << "seed " << seed << ", " << granules << " granules, cut 0x" << std::hex << bits;
    }
  }
}

}  // namespace
}  // namespace kvspan::conformance
