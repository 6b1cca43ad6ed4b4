// SPDX-License-Identifier: Apache-2.0
// Random attention scenes over everything the ABI lets a caller ask for, and a fixture that takes
// one scene through a chosen way: laid out as one run or scattered, in one call or in parts, with
// chosen poison around it. Read next: attention_numerics_test.cpp for how they are used.
#ifndef KVSPAN_CONFORMANCE_CASES_ATTENTION_CASE_H
#define KVSPAN_CONFORMANCE_CASES_ATTENTION_CASE_H

#include "scene.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace kvspan::conformance {

/// What a random scene may be. Its types and head sizes are those of the settings' tuples.
struct Limits {
  uint64_t tokens_max = 400;
  uint32_t rows_max = 8;
  uint32_t entries_max = 3;
  uint32_t row_class = KVSPAN_ROWS_DECODE;
  uint32_t options = 0x7Fu;  // KVSPAN_OPTION_* that may be thrown
};

/// A scene with the histories that it reads.
struct RandomScene {
  std::deque<History> histories;
  Scene scene;
};

/// Gives every query head of the scene its sink and its slope, where the options have them.
void add_head_values(Scene& scene, Dice& dice);

/// Fills sequences [entry] of the scene with a random history and rows.
void add_sequence(RandomScene& made, const Limits& limits, Dice& dice);

/// How a scene is run.
struct Take {
  bool scattered = false;    // random pieces in all memory kinds of the shape, else one run
  bool parts = false;        // advance, fold and finish, else run
  bool hide_unseen = false;  // tokens that no row sees are poison too
  Poison poison = Poison::nan;
};

class AttentionTest : public PluginTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  Arenas& arenas() { return *arenas_; }

  /// After reopen.
  void renew_arenas(uint64_t bytes);

  /// Bits of the memory kinds that rig and attention offer for the shape.
  uint32_t kinds_for(kvspan_attention_shape_t shape);

  /// Fills in scene.shape's limits and scene.caps for the geometry, row class and options.
  void prepare(Scene& scene);

  RandomScene random_scene(const Limits& limits, Dice& dice);

  /// Runs a scene; records failures. Empty after a failure.
  Outputs take(const Scene& scene, const Take& how, uint64_t seed);

  /// Expects each output within the bound of the oracle.
  void expect_close(const Scene& scene, const Outputs& outputs);

 private:
  std::unique_ptr<Arenas> arenas_;
};

}  // namespace kvspan::conformance

#endif
