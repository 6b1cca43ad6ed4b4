// SPDX-License-Identifier: Apache-2.0
// Throws the dice for attention scenes and takes them through the plugin.
#include "attention_case.hpp"

#include "kvspan/sdk/reference/quant.h"

#include "oracle.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvspan::conformance {
namespace {

constexpr uint64_t kArenaBytes = uint64_t{24} << 20;
constexpr uint64_t kHistoryBytes = uint64_t{12} << 20;  // of those: histories, rows, outputs
constexpr uint32_t kThrowsMax = 2000;                   // for a shape that the plugin offers

/// Types and whether V lies in K, as the dice and one of the tuples say.
Geometry random_types(const Limits& limits, const Tuple& tuple, Dice& dice) {
  const uint32_t size = tuple.head_size.value_or(256);
  const auto fits = [size](kvspan_type_t type) {
    return size % kvspan_ref_block(type).elements == 0;
  };
  Geometry geometry;
  do {
    const kvspan_type_t k = kTypes[dice.below(8)];
    const kvspan_type_t v = kTypes[dice.below(8)];
    geometry.k_type = tuple.k_type.value_or(k);
    geometry.v_type = tuple.v_type.value_or(v);
  } while (!fits(geometry.k_type) || !fits(geometry.v_type));
  geometry.v_in_k = (limits.options & KVSPAN_OPTION_V_IN_K) != 0 && dice.hit(6) &&
                    tuple.fits(geometry.k_type, geometry.k_type);
  if (geometry.v_in_k) {
    geometry.v_type = geometry.k_type;
  }
  return geometry;
}

Geometry random_geometry(const Limits& limits, const std::vector<Tuple>& tuples, Dice& dice) {
  const Tuple tuple = tuples.empty() ? Tuple() : tuples[dice.below(tuples.size())];
  Geometry geometry = random_types(limits, tuple, dice);
  // A rule has one multiple for both sides: with a quantised side both sizes are whole blocks.
  const uint32_t block = std::max(kvspan_ref_block(geometry.k_type).elements,
                                  kvspan_ref_block(geometry.v_type).elements);
  const auto size = [&] {
    for (;;) {
      const auto thrown = dice.pick<uint32_t>({64, 64, 80, 96, 128, 128, 192, 256});
      const uint32_t made = tuple.head_size.value_or(thrown);
      if (made % block == 0) {
        return made;
      }
    }
  };
  geometry.head_size_k = size();
  do {
    geometry.head_size_v = size();
  } while (geometry.v_in_k && geometry.head_size_v > geometry.head_size_k);
  const auto group = static_cast<uint32_t>(dice.between(1, 8));
  geometry.kv_heads = static_cast<uint32_t>(dice.between(1, group > 4 ? 1 : 3));
  geometry.q_heads = geometry.kv_heads * group;
  return geometry;
}

void add_windows(const Scene& scene, Rows& rows, Dice& dice) {
  uint64_t widest = 1;
  for (uint32_t row = 0; row < rows.count; ++row) {
    rows.window_begin.push_back(dice.below(rows.visible_end[row] + 1));
    widest = std::max(widest, rows.visible_end[row] - rows.window_begin[row]);
  }
  rows.split_tokens = split_for(scene.caps, widest);
}

void add_mask(Rows& rows, Dice& dice) {
  rows.suffix_count =
      static_cast<uint32_t>(dice.between(1, std::min<uint64_t>(64, rows.token_total)));
  for (uint32_t row = 0; row < rows.count; ++row) {
    rows.suffix_mask.push_back(dice.next());
  }
}

void add_positions(Rows& rows, Dice& dice) {
  for (uint32_t row = 0; row < rows.count; ++row) {
    const auto end = static_cast<int64_t>(rows.visible_end[row]);
    rows.positions.push_back(end - 1 + static_cast<int64_t>(dice.below(5)) - 2);
  }
}

}  // namespace

void add_head_values(Scene& scene, Dice& dice) {
  const auto option = [&](uint32_t bit) { return (scene.shape.options & bit) != 0; };
  for (uint32_t head = 0; head < scene.geometry.q_heads; ++head) {
    if (option(KVSPAN_OPTION_SINKS)) {
      scene.sinks.push_back(4.0F * dice.uniform());
    }
    if (option(KVSPAN_OPTION_ALIBI)) {
      scene.slopes.push_back(1.0F / static_cast<float>(uint32_t{2} << (head % 8)));
    }
  }
}

void add_sequence(RandomScene& made, const Limits& limits, Dice& dice) {
  Scene& scene = made.scene;
  const uint64_t tokens = dice.between(limits.tokens_min, limits.tokens_max);
  const auto count = static_cast<uint32_t>(dice.between(1, limits.rows_max));
  made.histories.push_back(History::random(scene.geometry, tokens, dice));
  Sequence sequence;
  sequence.history = &made.histories.back();
  Rows& rows = sequence.rows = rows_over(scene, tokens, count, dice);
  const bool chain = dice.hit(2);  // rows see one token more each, as in a prompt
  for (uint32_t row = 0; row < count; ++row) {
    const uint64_t behind = chain ? count - 1 - row : dice.below(tokens);
    rows.visible_end[row] = tokens > behind ? tokens - behind : 0;
  }
  const uint32_t options = scene.shape.options;
  if ((options & KVSPAN_OPTION_WINDOW) != 0) {
    add_windows(scene, rows, dice);
  }
  if ((options & KVSPAN_OPTION_SUFFIX_MASK) != 0) {
    add_mask(rows, dice);
  }
  if ((options & KVSPAN_OPTION_ALIBI) != 0 && dice.hit(2)) {
    add_positions(rows, dice);
  }
  if (dice.hit(5)) {
    rows.split_tokens *= 2;  // fewer splits than the rule gives must work too
  }
  scene.sequences.push_back(sequence);
}

void AttentionTest::SetUp() {
  PluginTest::SetUp();
  if (HasFatalFailure() || IsSkipped()) {
    return;
  }
  ASSERT_NE(rig().tables().attention, nullptr) << "planned although there is no attention table";
  arenas_ = std::make_unique<Arenas>(rig(), kArenaBytes);
  if (apart_.empty()) {
    apart_ = classes_told_apart();
    error_class_ = apart_.front();
  }
}

void AttentionTest::renew_arenas(uint64_t bytes) {
  arenas_ = std::make_unique<Arenas>(rig(), bytes);
}

void AttentionTest::TearDown() {
  arenas_.reset();
  PluginTest::TearDown();
}

// Asked over f16, or over the first type that there is attention over.
std::vector<uint32_t> AttentionTest::classes_told_apart() {
  std::vector<uint32_t> apart;
  std::vector<kvspan_type_t> types = {KVSPAN_TYPE_F16};
  types.insert(types.end(), std::begin(kTypes), std::end(kTypes));
  for (const kvspan_type_t type : types) {
    Geometry geometry;
    geometry.k_type = geometry.v_type = type;
    uint32_t before = UINT32_MAX;
    for (const uint32_t asked : {KVSPAN_ERROR_E0, KVSPAN_ERROR_E1, KVSPAN_ERROR_E2}) {
      kvspan_attention_shape_t shape = conformance::shape_of(geometry);
      shape.error_class = asked;
      const kvspan_attention_caps_t caps = ask(rig(), shape);
      if (caps.level != KVSPAN_LEVEL_UNSUPPORTED && caps.error_class != before) {
        before = caps.error_class;
        apart.push_back(asked);
      }
    }
    if (!apart.empty()) {
      return apart;
    }
  }
  return {KVSPAN_ERROR_E0};
}

void AttentionTest::in_every_way(const std::function<void()>& body) {
  for (std::size_t i = 0; i < apart_.size() && !HasFailure(); ++i) {
    error_class_ = apart_[i];
    SCOPED_TRACE(testing::Message() << "error class E" << error_class_);
    if (i != 0) {
      TearDown();
      SetUp();
    }
    if (!HasFatalFailure()) {
      body();
    }
  }
  RecordProperty("error_classes", static_cast<int>(apart_.size()));
}

kvspan_attention_shape_t AttentionTest::shape_of(const Geometry& geometry) const {
  kvspan_attention_shape_t shape = conformance::shape_of(geometry);
  shape.error_class = error_class_;
  return shape;
}

uint32_t AttentionTest::kinds_for(kvspan_attention_shape_t shape) {
  uint32_t kinds = 1u << KVSPAN_MEMORY_DEVICE;
  for (const uint32_t kind : {KVSPAN_MEMORY_HOST, KVSPAN_MEMORY_IMPORTED}) {
    shape.memory_kinds = kinds | (1u << kind);
    if (rig().offers(kind) && ask(rig(), shape).level != KVSPAN_LEVEL_UNSUPPORTED) {
      kinds = shape.memory_kinds;
    }
  }
  return kinds;
}

bool AttentionTest::offers(const Geometry& geometry, uint32_t options) {
  kvspan_attention_shape_t shape = shape_of(geometry);
  shape.options |= options;
  return ask(rig(), shape).level != KVSPAN_LEVEL_UNSUPPORTED;
}

bool AttentionTest::offered(Scene& scene) {
  scene.shape.memory_kinds = kinds_for(scene.shape);
  scene.caps = ask(rig(), scene.shape);
  return scene.caps.level != KVSPAN_LEVEL_UNSUPPORTED;
}

// States are what grows with the plugin's number of splits.
void AttentionTest::make_room(const Scene& scene) {
  const kvspan_attention_caps_t& caps = scene.caps;
  constexpr uint64_t kGaps = 1024;
  const uint64_t state_bytes = caps.state_u_bytes + caps.state_ml_bytes + kGaps;
  const uint64_t states = uint64_t{scene.shape.entries_max} * (uint64_t{caps.split_count} + 1);
  const uint64_t workspace_bytes = std::max({caps.run_workspace_bytes,
                                             caps.advance_workspace_bytes,
                                             caps.fold_workspace_bytes,
                                             caps.finish_workspace_bytes});
  arenas().make_room(kHistoryBytes + states * state_bytes + 2 * workspace_bytes);
}

void AttentionTest::prepare(Scene& scene) {
  const bool is_offered = offered(scene);
  const kvspan_attention_shape_t& shape = scene.shape;
  EXPECT_TRUE(is_offered) << "query refuses K type " << shape.k_type << " head "
                          << shape.head_size_k << ", V type " << shape.v_type << " head "
                          << shape.head_size_v << ", heads " << shape.q_heads << "/"
                          << shape.kv_heads << ", q " << shape.q_type << ", out " << shape.out_type
                          << std::hex << ", options 0x" << shape.options << ", reasons 0x"
                          << scene.caps.reasons;
  if (is_offered) {
    make_room(scene);
  }
}

RandomScene AttentionTest::random_scene(const Limits& limits, Dice& dice) {
  RandomScene made;
  Scene& scene = made.scene;
  for (uint32_t thrown = 0; scene.caps.level == KVSPAN_LEVEL_UNSUPPORTED; ++thrown) {
    if (thrown == kThrowsMax) {
      ADD_FAILURE() << "query refuses " << kThrowsMax
                    << " random shapes; the last one's reasons: 0x" << std::hex
                    << scene.caps.reasons;
      break;
    }
    scene.geometry = random_geometry(limits, settings().tuples, dice);
    scene.shape = shape_of(scene.geometry);
    scene.shape.row_class = limits.row_class;
    scene.shape.rows_max = limits.rows_max;
    scene.shape.options |= static_cast<uint32_t>(dice.next() & dice.next()) & limits.options &
                           ~static_cast<uint32_t>(KVSPAN_OPTION_V_IN_K);
    scene.shape.q_type = dice.pick<uint32_t>({KVSPAN_TYPE_F32, KVSPAN_TYPE_F16, KVSPAN_TYPE_BF16});
    scene.shape.out_type =
        dice.pick<uint32_t>({KVSPAN_TYPE_F32, KVSPAN_TYPE_F32, KVSPAN_TYPE_F16, KVSPAN_TYPE_BF16});
    offered(scene);
  }
  make_room(scene);
  scene.scale =
      (0.5F + static_cast<float>(dice.below(3))) / static_cast<float>(dice.pick<uint32_t>({8, 12}));
  if ((scene.shape.options & KVSPAN_OPTION_SOFT_CAP) != 0) {
    scene.soft_cap = dice.pick<float>({0.5F, 5.0F, 50.0F});
  }
  add_head_values(scene, dice);
  const uint64_t entries = dice.between(1, limits.entries_max);
  for (uint64_t i = 0; i < entries; ++i) {
    add_sequence(made, limits, dice);
  }
  return made;
}

Outputs AttentionTest::take(const Scene& scene, const Take& how, uint64_t seed) {
  std::vector<std::unique_ptr<Placement>> placements;
  const Place place = [&](const Sequence& sequence, std::vector<bool> live, Dice& dice) {
    const History& history = *sequence.history;
    const std::vector<Piece> pieces =
        how.scattered
            ? random_pieces(history.tokens, scene.caps.span_granule, scene.shape.memory_kinds, dice)
            : one_piece(history.tokens);
    placements.push_back(
        std::make_unique<Placement>(arenas(), history, pieces, std::move(live), how.poison, dice));
    return placements.back()->spans();
  };
  return take(scene, how, seed, place);
}

Outputs AttentionTest::take(const Scene& scene,
                            const Take& how,
                            uint64_t seed,
                            const Place& place) {
  if (scene.caps.level == KVSPAN_LEVEL_UNSUPPORTED) {
    return {};  // prepare has recorded it
  }
  Dice dice(seed);
  arenas().reset();
  Scene placed = scene;
  for (Sequence& sequence : placed.sequences) {
    std::vector<bool> live;
    for (uint64_t t = 0; t < sequence.history->tokens && how.hide_unseen; ++t) {
      bool seen = false;
      for (uint32_t row = 0; row < sequence.rows.count && !seen; ++row) {
        seen = sequence.rows.sees(row, t);
      }
      live.push_back(seen);
    }
    sequence.spans = place(sequence, std::move(live), dice);
  }
  Stage stage(arenas(), placed, dice);
  kvspan_error_t error = fresh_error();
  const kvspan_result_t result = how.parts ? stage.by_parts(dice, &error) : stage.run(&error);
  if (result != KVSPAN_OK) {
    ADD_FAILURE() << told(result, error);
    return {};
  }
  return stage.outputs();
}

void AttentionTest::expect_close(const Scene& scene, const Outputs& outputs) {
  ASSERT_EQ(outputs.size(), scene.sequences.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_TRUE(close_to(outputs[i], expect(scene, scene.sequences[i]), scene)) << "sequence " << i;
  }
}

}  // namespace kvspan::conformance
