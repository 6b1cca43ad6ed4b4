// SPDX-License-Identifier: Apache-2.0
// Tiles of 64 tokens, [K | V], each [head, token, element], are what kvspan's core hands over, and
// worth a path of their own in a kernel: whatever way they are found, the bits are those of
// token-major pages, and no byte of them that is no row counts. Not here: how they are laid out
// (tiles.hpp), random layouts of other kinds (attention_invariance_test.cpp), tiles that stream
// (stream_test.cpp).
#include "attention_case.hpp"
#include "tiles.hpp"
#include "worker/case.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(attention);

constexpr TileLayout kTokenMajor = {Tiles::in_order, false, false, 1};

struct NamedLayout {
  const char* name;
  TileLayout layout;
};

constexpr NamedLayout kWhole[] = {
    {"tiles in order", {Tiles::in_order, false, false, 0}},
    {"one list for K and V", {Tiles::one_list, false, false, 0}},
    {"a list for K and one for V", {Tiles::list_a_side, false, false, 0}},
    {"places of its own for V", {Tiles::places_a_side, false, false, 0}},
    {"places in parts of a tile", {Tiles::one_list, true, false, 0}},
    {"places of its own for V in parts of a tile", {Tiles::places_a_side, true, false, 0}},
};

constexpr NamedLayout kCut[] = {
    {"several spans in order", {Tiles::in_order, false, true, 0}},
    {"several spans of one list", {Tiles::one_list, false, true, 0}},
    {"several spans of scaled lists", {Tiles::places_a_side, true, true, 0}},
    {"some spans token-major", {Tiles::one_list, true, true, 2}},
    {"some spans token-major, none listed", {Tiles::in_order, false, true, 3}},
};

/// Tokens of an entry's history that arenas have room for.
uint64_t room_for(const Scene& scene, const Limits& limits) {
  constexpr uint64_t kBytesMax = uint64_t{5} << 20;  // of all histories
  const History one(scene.geometry, 1);
  return kBytesMax / limits.entries_max / (one.k.bytes.size() + one.v.bytes.size());
}

class AttentionTiles : public AttentionTest {
 protected:
  /// Of decode and prefill rows by turns; of the usual head sizes and mostly of several KV heads,
  /// as far as the plugin has them; no longer than the arenas have room for.
  RandomScene scene_of(uint64_t seed, Limits limits) {
    Dice dice(settings(), seed);
    limits.row_class = seed % 2 == 0 ? KVSPAN_ROWS_DECODE : KVSPAN_ROWS_PREFILL;
    limits.rows_max = limits.row_class == KVSPAN_ROWS_PREFILL ? 12 : limits.rows_max;
    RandomScene made = empty_scene(seed, limits, dice);
    limits.tokens_max = std::min(limits.tokens_max, room_for(made.scene, limits));
    limits.tokens_min = std::min(limits.tokens_min, limits.tokens_max);
    for (uint64_t i = dice.between(1, limits.entries_max); i != 0; --i) {
      add_sequence(made, limits, dice);
    }
    return made;
  }

  Outputs take_tiles(const Scene& scene, const TileLayout& layout, const Take& how, uint64_t seed) {
    std::vector<std::unique_ptr<TilePlacement>> placements;
    const Place place = [&](const Sequence& sequence, std::vector<bool> live, Dice& dice) {
      std::vector<uint32_t> kinds;
      for (uint32_t kind = 0; kind < 3; ++kind) {
        if ((scene.shape.memory_kinds & (1u << kind)) != 0) {
          kinds.push_back(kind);
        }
      }
      const TilePlacement::Where where = {kinds[dice.below(kinds.size())],
                                          std::max(1u, scene.caps.span_granule)};
      placements.push_back(std::make_unique<TilePlacement>(
          arenas(), *sequence.history, layout, where, std::move(live), how.poison, dice));
      return placements.back()->spans();
    };
    return take(scene, how, seed, place);
  }

  /// Each layout by run and in parts against token-major pages; what no row sees is poison.
  template <std::size_t count>
  void expect_bits_of_pages(const Scene& scene,
                            const NamedLayout (&layouts)[count],
                            uint64_t seed) {
    const Outputs pages = take_tiles(scene, kTokenMajor, {}, seed);
    for (const NamedLayout& named : layouts) {
      for (const bool parts : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << ", " << named.name << (parts ? ", in parts" : ", run")
                     << "; types " << scene.geometry.k_type << " and " << scene.geometry.v_type
                     << ", heads of " << scene.geometry.head_size_k << ", row class "
                     << scene.shape.row_class);
        const Take how{.parts = parts, .hide_unseen = true};
        ASSERT_TRUE(same_bits(pages, take_tiles(scene, named.layout, how, seed)));
      }
    }
  }

 private:
  /// The best of many random shapes, without sequences: first there is to be room for long ones.
  RandomScene empty_scene(uint64_t seed, const Limits& limits, Dice& dice) {
    constexpr uint32_t kSizes[] = {64, 128, 256};
    const uint32_t size = kSizes[seed % 3];
    Limits one_token = limits;
    one_token.tokens_min = one_token.tokens_max = 1;
    RandomScene best;
    uint32_t best_rank = 0;
    for (uint32_t tries = 200; tries != 0 && best_rank != 8 && !HasFailure(); --tries) {
      RandomScene made = random_scene(one_token, dice);
      const Geometry& geometry = made.scene.geometry;
      const bool fits = room_for(made.scene, limits) >= limits.tokens_max;
      const bool sized = geometry.head_size_k == size && geometry.head_size_v == size;
      const bool headed = geometry.kv_heads > 1 || seed % 4 == 3;
      const uint32_t rank = 1U + (fits ? 4U : 0U) + (sized ? 2U : 0U) + (headed ? 1U : 0U);
      if (rank > best_rank) {
        best = std::move(made);
        best_rank = rank;
      }
    }
    best.scene.sequences.clear();
    best.histories.clear();
    return best;
  }
};

KVSPAN_CASE(AttentionTiles,
            AreFoundInOrderAndByLists,
            "KV-BITS-1 KV-ATTN-4 KV-ATTN-5",
            takes_tuple,
            cost_ms(300)) {
  Limits limits;
  limits.tokens_max = 6 * kTokensOfATile;
  limits.entries_max = 2;
  for (uint64_t seed = 1; seed <= cases(settings(), 6, 3) && !HasFailure(); ++seed) {
    expect_bits_of_pages(scene_of(700 + seed, limits).scene, kWhole, seed);
  }
}

KVSPAN_CASE(AttentionTiles,
            SpansMayBeginAnywhereInOneList,
            "KV-BITS-1 KV-ATTN-4 KV-ATTN-5",
            takes_tuple,
            cost_ms(300)) {
  Limits limits;
  limits.tokens_min = 3 * kTokensOfATile;
  limits.tokens_max = 8 * kTokensOfATile;
  limits.entries_max = 2;
  for (uint64_t seed = 1; seed <= cases(settings(), 6, 3) && !HasFailure(); ++seed) {
    expect_bits_of_pages(scene_of(720 + seed, limits).scene, kCut, seed);
  }
}

// A kernel may hold as many places as a warp has lanes, or twice as many.
KVSPAN_CASE(AttentionTiles,
            ListsMayBeLongerThanAWarp,
            "KV-BITS-1 KV-ATTN-4 KV-ATTN-5",
            takes_tuple,
            cost_ms(300)) {
  for (uint64_t seed = 1; seed <= cases(settings(), 4, 2) && !HasFailure(); ++seed) {
    const uint64_t tiles = seed % 2 == 0 ? 64 : 32;
    Limits limits;
    limits.tokens_min = tiles * kTokensOfATile + 1;
    limits.tokens_max = (tiles + 4) * kTokensOfATile - 1;
    limits.rows_max = 2;
    limits.entries_max = 1;
    const RandomScene made = scene_of(740 + seed + seed / 2, limits);
    constexpr NamedLayout kLong[] = {kWhole[1], kCut[2]};
    expect_bits_of_pages(made.scene, kLong, seed);
  }
}

KVSPAN_CASE(AttentionTiles,
            WindowsMayBeginInsideATile,
            "KV-BITS-1 KV-ATTN-1 KV-ATTN-4",
            takes_tuple,
            needs::window,
            cost_ms(200)) {
  constexpr uint64_t kInside[] = {1, 31, 32, 63, 0, 47};
  Limits limits;
  limits.tokens_min = 5 * kTokensOfATile + 1;
  limits.tokens_max = 8 * kTokensOfATile;
  limits.entries_max = 1;
  for (uint64_t seed = 1; seed <= cases(settings(), 3, 3) && !HasFailure(); ++seed) {
    RandomScene made = scene_of(760 + seed, limits);
    Scene& scene = made.scene;
    scene.shape.options |= KVSPAN_OPTION_WINDOW;
    if (!offered(scene)) {
      continue;  // it has windows for other shapes
    }
    make_room(scene);
    Rows& rows = scene.sequences[0].rows;
    rows.window_begin.clear();
    for (uint32_t row = 0; row < rows.count; ++row) {
      rows.visible_end[row] = rows.token_total - row;
      rows.window_begin.push_back((1 + seed % 3) * kTokensOfATile + kInside[seed % 6] + row);
    }
    rows.split_tokens = split_for(scene.caps, rows.token_total);
    constexpr NamedLayout kBehindWindows[] = {kWhole[0], kWhole[1], kWhole[5], kCut[1], kCut[3]};
    expect_bits_of_pages(scene, kBehindWindows, seed);
  }
}

KVSPAN_CASE(AttentionTiles, BytesThatAreNoRowMoveNoBit, "KV-ATTN-1", takes_tuple, cost_ms(200)) {
  Limits limits;
  limits.tokens_max = 3 * kTokensOfATile;
  for (uint64_t seed = 1; seed <= cases(settings(), 4, 2) && !HasFailure(); ++seed) {
    const RandomScene made = scene_of(780 + seed, limits);
    const Outputs pages = take_tiles(made.scene, kTokenMajor, {}, seed);
    for (const NamedLayout& named : {kWhole[0], kWhole[5], kCut[1]}) {
      for (const Poison poison : kPoisons) {
        SCOPED_TRACE(testing::Message()
                     << "seed " << seed << ", " << named.name << ", poison " << int(poison));
        const Take how{.parts = seed % 2 != 0, .hide_unseen = true, .poison = poison};
        ASSERT_TRUE(same_bits(pages, take_tiles(made.scene, named.layout, how, seed)));
      }
    }
  }
}

}  // namespace
}  // namespace kvspan::conformance
