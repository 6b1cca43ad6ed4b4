// SPDX-License-Identifier: Apache-2.0
// Random attention scenes over everything the ABI lets a caller ask for, and a fixture that takes
// one scene through a chosen way: laid out as one run or scattered, in one call or in parts, with
// chosen poison around it. Read next: attention_numerics_test.cpp for how they are used.
#ifndef KVSPAN_CONFORMANCE_CASES_ATTENTION_CASE_H
#define KVSPAN_CONFORMANCE_CASES_ATTENTION_CASE_H

#include "scene.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace kvspan::conformance {

/// What a random scene may be. Its types and head sizes are those of the settings' tuples.
struct Limits {
  uint64_t tokens_min = 1;
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
 public:
  /// Runs a case's body once for each error class that the plugin's attention tells apart (a
  /// plugin may have a kernel a class); from the second on in a rig opened anew.
  void in_every_way(const std::function<void()>& body);

 protected:
  void SetUp() override;
  void TearDown() override;

  Arenas& arenas() { return *arenas_; }

  /// After reopen.
  void renew_arenas(uint64_t bytes);

  /// Whose turn it is.
  uint32_t error_class() const { return error_class_; }

  /// As the free function, asking for the error class whose turn it is.
  kvspan_attention_shape_t shape_of(const Geometry& geometry) const;

  /// Bits of the memory kinds that rig and attention offer for the shape.
  uint32_t kinds_for(kvspan_attention_shape_t shape);

  /// Whether the plugin offers shape_of(geometry), with KVSPAN_OPTION_* `options`.
  bool offers(const Geometry& geometry, uint32_t options = 0);

  /// Fills in scene.shape's memory kinds and scene.caps; whether the plugin offers the shape.
  bool offered(Scene& scene);
  /// After offered: the device's arena holds the states of such a scene.
  void make_room(const Scene& scene);

  /// Both, where the plugin must offer the shape; records a failure where it does not.
  void prepare(Scene& scene);

  /// Of shapes that the plugin offers.
  RandomScene random_scene(const Limits& limits, Dice& dice);

  /// Runs a scene; records failures. Empty after a failure.
  Outputs take(const Scene& scene, const Take& how, uint64_t seed);

  /// Lays a sequence's history out and returns its spans, whose lists live until take returns. Only
  /// tokens for which live[token] is true get their bytes; `live` empty = all of them.
  using Place = std::function<std::vector<kvspan_span_t>(
      const Sequence& sequence, std::vector<bool> live, Dice& dice)>;

  /// The same, laid out by `place`; `how.scattered` and `how.poison` are its business.
  Outputs take(const Scene& scene, const Take& how, uint64_t seed, const Place& place);

  /// Expects each output within the bound of the oracle.
  void expect_close(const Scene& scene, const Outputs& outputs);

 private:
  std::vector<uint32_t> classes_told_apart();
  std::unique_ptr<Arenas> arenas_;
  std::vector<uint32_t> apart_;  // found in the first SetUp
  uint32_t error_class_ = KVSPAN_ERROR_E0;
};

}  // namespace kvspan::conformance

#endif
