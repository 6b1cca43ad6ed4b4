// SPDX-License-Identifier: Apache-2.0
// Attention is within its error class for every three values together of K type, V type, head size,
// group, width, row class, options, error class and length corner: a 3-wise covering array, a row
// of it a call. All pairs of types at one shape: attention_numerics_test.cpp.
#include "kvspan/sdk/reference/quant.h"

#include "attention_case.hpp"
#include "covering_array.hpp"
#include "worker/case.hpp"

#include <algorithm>

namespace kvspan::conformance {
namespace {

KVSPAN_PROFILE(attention);

enum Factor : uint32_t {
  kKType,
  kVType,
  kHeadSize,
  kGroup,
  kWidth,
  kRowClass,
  kOption,
  kErrorClass,
  kLength
};

constexpr uint32_t kGroups[] = {1, 2, 5, 8};
constexpr uint32_t kWidths[] = {1, 3, 16};
constexpr uint32_t kOptions[] = {0,
                                 KVSPAN_OPTION_WINDOW,
                                 KVSPAN_OPTION_SUFFIX_MASK,
                                 KVSPAN_OPTION_SOFT_CAP,
                                 KVSPAN_OPTION_SINKS,
                                 KVSPAN_OPTION_ALIBI,
                                 KVSPAN_OPTION_V_IN_K,
                                 KVSPAN_OPTION_LSE,
                                 0x7Fu & ~KVSPAN_OPTION_V_IN_K};
constexpr uint32_t kLengths = 5;

uint64_t tokens_of(uint32_t corner, uint64_t granule) {
  const uint64_t corners[kLengths] = {
      1, std::max<uint64_t>(1, granule - 1), granule, granule + 1, 4 * granule + granule / 2 + 1};
  return corners[corner];
}

class AttentionCoverage : public AttentionTest {
 protected:
  /// One row of the array as a scene; its history goes to `history`.
  Scene scene_of(const Choice& row, History& history, Dice& dice);
  void add_options(Scene& scene, Rows& rows, Dice& dice);

  std::vector<Choice> rows_of_the_array();

  std::vector<uint32_t> head_sizes_;
};

/// Head sizes of the tuples beside the usual ones; a choice has to be that of some tuple.
std::vector<Choice> AttentionCoverage::rows_of_the_array() {
  head_sizes_ = {64, 80, 96, 128, 192, 256};
  const std::vector<Tuple>& tuples = settings().tuples;
  for (const Tuple& tuple : tuples) {
    const uint32_t size = tuple.head_size.value_or(64);
    if (std::count(head_sizes_.begin(), head_sizes_.end(), size) == 0) {
      head_sizes_.push_back(size);
    }
  }
  const auto allowed = [&](const Choice& row) {
    const auto chosen = [&](Factor factor) { return row[factor] != kOpen; };
    const auto blocks = [&](Factor factor) {
      return !chosen(factor) || !chosen(kHeadSize) ||
             head_sizes_[row[kHeadSize]] % kvspan_ref_block(kTypes[row[factor]]).elements == 0;
    };
    const bool latent = chosen(kOption) && kOptions[row[kOption]] == KVSPAN_OPTION_V_IN_K;
    const bool equal = !latent || !chosen(kKType) || !chosen(kVType) || row[kKType] == row[kVType];
    const auto fits = [&](const Tuple& tuple) {
      const auto is = [&](Factor factor, const std::optional<kvspan_type_t>& type) {
        const kvspan_type_t own = chosen(factor) ? kTypes[row[factor]] : type.value_or(0);
        const uint32_t block = kvspan_ref_block(own).elements;
        return !chosen(factor) ||
               (type.value_or(own) == own && tuple.head_size.value_or(block) % block == 0);
      };
      const uint32_t size = chosen(kHeadSize) ? head_sizes_[row[kHeadSize]] : 0;
      const bool one_type = !tuple.k_type || !tuple.v_type || tuple.k_type == tuple.v_type;
      return is(kKType, tuple.k_type) && is(kVType, tuple.v_type) && (!latent || one_type) &&
             (size == 0 || tuple.head_size.value_or(size) == size);
    };
    return blocks(kKType) && blocks(kVType) && equal &&
           (tuples.empty() || std::any_of(tuples.begin(), tuples.end(), fits));
  };
  return covering_array({8,
                         8,
                         static_cast<uint32_t>(head_sizes_.size()),
                         uint32_t{std::size(kGroups)},
                         uint32_t{std::size(kWidths)},
                         2,
                         uint32_t{std::size(kOptions)},
                         3,
                         kLengths},
                        allowed,
                        settings().seed + 1);
}

void AttentionCoverage::add_options(Scene& scene, Rows& rows, Dice& dice) {
  const auto option = [&](uint32_t bit) { return (scene.shape.options & bit) != 0; };
  scene.soft_cap = option(KVSPAN_OPTION_SOFT_CAP) ? 5.0F : 0.0F;
  add_head_values(scene, dice);
  rows.suffix_count = option(KVSPAN_OPTION_SUFFIX_MASK)
                          ? static_cast<uint32_t>(std::min<uint64_t>(64, rows.token_total))
                          : 0;
  for (uint32_t row = 0; row < rows.count; ++row) {
    if (option(KVSPAN_OPTION_WINDOW)) {
      rows.window_begin.push_back(rows.visible_end[row] / 3);
    }
    if (option(KVSPAN_OPTION_SUFFIX_MASK)) {
      rows.suffix_mask.push_back(dice.next());
    }
    if (option(KVSPAN_OPTION_ALIBI)) {
      rows.positions.push_back(static_cast<int64_t>(rows.token_total) + 3 - 2 * int64_t{row});
    }
  }
}

Scene AttentionCoverage::scene_of(const Choice& row, History& history, Dice& dice) {
  Scene scene;
  Geometry& geometry = scene.geometry;
  geometry.k_type = kTypes[row[kKType]];
  geometry.v_type = kTypes[row[kVType]];
  geometry.head_size_k = geometry.head_size_v = head_sizes_[row[kHeadSize]];
  geometry.kv_heads = kGroups[row[kGroup]] > 2 ? 1 : 2;
  geometry.q_heads = geometry.kv_heads * kGroups[row[kGroup]];
  geometry.v_in_k = kOptions[row[kOption]] == KVSPAN_OPTION_V_IN_K;
  scene.shape = shape_of(geometry);
  scene.shape.row_class = row[kRowClass];
  scene.shape.options |= kOptions[row[kOption]];
  scene.shape.error_class = row[kErrorClass];
  if (offered(scene)) {
    make_room(scene);
  }
  const uint64_t granule = std::max(1u, scene.caps.span_granule);
  const uint64_t tokens = tokens_of(row[kLength], granule);
  history = History::random(geometry, tokens, dice);
  Sequence sequence;
  sequence.history = &history;
  sequence.rows = rows_over(scene, tokens, kWidths[row[kWidth]], dice);
  for (uint32_t i = 0; i < sequence.rows.count; ++i) {
    const uint64_t behind = sequence.rows.count - 1 - i;  // as in a prompt
    sequence.rows.visible_end[i] = tokens > behind ? tokens - behind : 0;
  }
  add_options(scene, sequence.rows, dice);
  scene.sequences = {sequence};
  return scene;
}

KVSPAN_CASE(AttentionCoverage,
            EveryThreeChoicesTogetherAreWithinTheErrorClass,
            "KV-ATTN-3 KV-ATTN-4 KV-QUERY-2",
            takes_tuple,
            cost_ms(4000)) {
  const std::vector<Choice> rows = rows_of_the_array();
  const auto count =
      std::min<std::size_t>(rows.size(), cases(settings(), static_cast<uint32_t>(rows.size()), 24));
  uint32_t ran = 0;
  for (std::size_t i = 0; i < rows.size() && ran < count && !HasFailure(); ++i) {
    Dice dice(settings(), i);
    History history;
    const Scene scene = scene_of(rows[i], history, dice);
    SCOPED_TRACE(testing::Message()
                 << "row " << i << ": K " << scene.shape.k_type << ", V " << scene.shape.v_type
                 << ", head size " << scene.shape.head_size_k << ", heads " << scene.shape.q_heads
                 << "/" << scene.shape.kv_heads << ", " << scene.sequences[0].rows.count
                 << " rows of class " << scene.shape.row_class << ", options 0x" << std::hex
                 << scene.shape.options << std::dec << ", error class " << scene.shape.error_class
                 << ", " << history.tokens << " tokens");
    if (scene.caps.level == KVSPAN_LEVEL_UNSUPPORTED) {
      continue;  // what query refuses: refusal_attention_test.cpp
    }
    ++ran;
    const Take how{.scattered = true, .parts = i % 2 == 1, .hide_unseen = i % 3 == 0};
    expect_close(scene, take(scene, how, i));
  }
  RecordProperty("rows", static_cast<int>(rows.size()));
  RecordProperty("ran", static_cast<int>(ran));
  EXPECT_GT(ran, 0u) << "query refuses every row";
}

KVSPAN_CASE(AttentionCoverage, CornersOfTheLengthAreWithinTheErrorClass, "KV-ATTN-3 KV-ATTN-4") {
  head_sizes_ = {64};
  uint32_t ran = 0;
  for (const uint32_t type : {1u, 3u}) {  // of kTypes: f16, q8_0
    for (uint32_t corner = 0; corner < kLengths; ++corner) {
      for (const uint32_t chosen : {0u, 4u, 8u}) {  // of kOptions: none, sinks, all
        for (const bool parts : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << "type " << kTypes[type] << ", corner " << corner << ", options 0x"
                       << std::hex << kOptions[chosen] << (parts ? ", in parts" : ""));
          Dice dice(settings(), corner);
          History history;
          const Scene scene =
              scene_of({type, type, 0, 1, 1, 0, chosen, error_class(), corner}, history, dice);
          if (scene.caps.level != KVSPAN_LEVEL_UNSUPPORTED) {
            ++ran;
            expect_close(scene, take(scene, {.scattered = true, .parts = parts}, corner));
          }
        }
      }
    }
  }
  EXPECT_GT(ran, 0u) << "query refuses every corner";
}

}  // namespace
}  // namespace kvspan::conformance
