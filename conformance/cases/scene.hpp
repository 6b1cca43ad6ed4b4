// SPDX-License-Identifier: Apache-2.0
// One attention call as a test describes it, and the stage that puts it into memory, runs it in one
// call or in parts, reads the outputs back and checks that nothing else in memory has moved.
// Not here: what the outputs should be (oracle.hpp).
#ifndef KVSPAN_CONFORMANCE_CASES_SCENE_H
#define KVSPAN_CONFORMANCE_CASES_SCENE_H

#include "history.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvspan::conformance {

/// The rows of one sequence; arrays as in kvspan_entry_t, empty = NULL there.
struct Rows {
  uint32_t count = 0;
  std::vector<uint64_t> visible_end;
  std::vector<uint64_t> window_begin;
  std::vector<uint64_t> suffix_mask;
  std::vector<int64_t> positions;
  uint32_t suffix_count = 0;
  uint64_t token_total = 0;
  uint64_t split_tokens = 0;
  std::vector<float> q;  // [row, q_head, head_size_k], values that the query type holds exactly

  /// Whether row `row` sees `token`.
  bool sees(uint32_t row, uint64_t token) const;
};

struct Sequence {
  const History* history = nullptr;
  std::vector<kvspan_span_t> spans;
  Rows rows;
};

struct Scene {
  Geometry geometry;
  kvspan_attention_shape_t shape = {};
  kvspan_attention_caps_t caps = {};
  float scale = 0.125F;
  float soft_cap = 0.0F;
  std::vector<float> sinks;
  std::vector<float> slopes;
  std::vector<Sequence> sequences;
};

/// Whether the scene has the option and some row would see others without it. A mask must not say
/// the same backwards either: its bits have an order.
bool option_matters(const Scene& scene, uint32_t bit);

/// A shape of the geometry: decode class, 16 rows, f32 queries and outputs, class E0, device
/// memory.
kvspan_attention_shape_t shape_of(const Geometry& geometry);

/// query, which must succeed.
kvspan_attention_caps_t ask(Rig& rig, const kvspan_attention_shape_t& shape);

/// S for n visible tokens by the rule of the caps.
uint64_t split_for(const kvspan_attention_caps_t& caps, uint64_t tokens);

/// `count` normal values, rounded to what `type` (F32, F16, BF16) holds.
std::vector<float> random_rows(kvspan_type_t type, uint64_t count, Dice& dice);

/// `count` rows that see all of `tokens`, with S from the caps and random queries.
Rows rows_over(const Scene& scene, uint64_t tokens, uint32_t count, Dice& dice);

/// Outputs of one sequence, dense: out [row, q_head, head_size_v] of the output type, lse f32.
struct Output {
  Bytes out;
  Bytes lse;

  bool operator==(const Output& other) const { return out == other.out && lse == other.lse; }
};

using Outputs = std::vector<Output>;

/// The out bytes as f32 values.
std::vector<float> values_of(const Output& output, kvspan_type_t type);
std::vector<float> lse_of(const Output& output);

/// Describes the first difference.
::testing::AssertionResult same_bits(const Outputs& a, const Outputs& b);

/// Rows [first, first + count) of an output of `rows` rows.
Output part_of(const Output& output, uint32_t rows, uint32_t first, uint32_t count);

class Stage {
 public:
  /// Takes parts of the device arena for queries, outputs, workspace and states.
  Stage(Arenas& arenas, const Scene& scene, Dice& dice);
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  Stage(Stage&&) = delete;
  Stage& operator=(Stage&&) = delete;
  ~Stage() = default;

  /// Uploads everything and calls run.
  kvspan_result_t run(kvspan_error_t* error);
  /// Uploads everything, then advance over random cuts, fold in several calls, finish.
  kvspan_result_t by_parts(Dice& dice, kvspan_error_t* error);
  /// The same for the one sequence of a scene whose rows see every token, cut at `ends` (ascending,
  /// the last one is the number of tokens) and at the splits' ends: an advance for each piece.
  kvspan_result_t by_cut(const std::vector<uint64_t>& ends, kvspan_error_t* error);
  /// What was written; records a failure where anything else in the arenas has moved.
  Outputs outputs();

  kvspan_attention_args_t& args() { return args_; }

  std::vector<kvspan_entry_t>& entries() { return entries_; }

  kvspan_state_t state(uint32_t entry, uint64_t split);  // made on first use
  kvspan_state_t accumulator(uint32_t entry);
  void workspace_of(uint64_t bytes);
  /// Another stage in the same arenas may write its own outputs meanwhile.
  void tolerate(const Stage& other);

  void upload() { arenas_.upload(); }

 private:
  struct Written {
    uint64_t begin, end;
  };

  struct Cursor {
    uint32_t entry;
    uint64_t split;
    uint64_t at, end;
    bool fresh;
  };

  void stage_rows(uint32_t index, Dice& dice);
  void stage_neutral(uint32_t entry);
  kvspan_state_t make_state();
  std::vector<Cursor> cursors(Dice& dice) const;
  kvspan_result_t advance_wave(std::vector<Cursor>& all, Dice& dice, kvspan_error_t* error);
  kvspan_result_t fold_all(const std::vector<Cursor>& all, Dice& dice, kvspan_error_t* error);
  std::vector<kvspan_state_t> ready_for(const std::vector<Cursor>& all);
  kvspan_result_t advance_piece(const kvspan_advance_item_t& item, kvspan_error_t* error);
  kvspan_result_t finish(const std::vector<kvspan_state_t>& accumulators, kvspan_error_t* error);
  void take_floats(const std::vector<float>& values, kvspan_range_t& out);

  Arenas& arenas_;
  const Scene& scene_;
  Arena& arena_;
  kvspan_attention_args_t args_ = {};
  std::vector<kvspan_entry_t> entries_;
  std::vector<Written> written_;

  struct Made {
    uint32_t entry;
    uint64_t split;
    kvspan_state_t state;
  };

  std::vector<Made> states_;
};

}  // namespace kvspan::conformance

#endif
