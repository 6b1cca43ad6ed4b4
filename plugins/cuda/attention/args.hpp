// SPDX-License-Identifier: Apache-2.0
// The body of an attention submit as it waits in its packet: the call's arguments, copied, with
// addresses in place of memories. Read next: args.cpp and items.cpp (how it is made and put on a
// stream), kernel.hpp (what the device reads of it).
#pragma once

#include "kvspan/attention.h"
#include "kvspan/sdk/validate.hpp"

#include "attention/kernel.hpp"
#include "attention/rules.hpp"
#include "host.hpp"
#include "queue.hpp"

#include <cstdint>

namespace kvspan::cuda {

using sdk::AttentionCall;

struct AttentionBody {
  AttentionCall call;
  bool side_by_side;  // run: splits are items of their own, their states in the workspace
  Kernel kernel;
  AttentionCallView view;
  const uint8_t* descriptors;  // all that view's addresses name, in the slab
  uint32_t small_bytes;        // of them, all but page lists
  uint64_t all_bytes;
};

struct AttentionArrays {
  AttentionBody* body = nullptr;
  EntryView* entries = nullptr;
  SpanView* spans = nullptr;
  uint32_t* pages = nullptr;
  uint64_t* rows = nullptr;  // up to four arrays of numbers a row, all entries
  AdvanceWork* advances = nullptr;
  uint32_t* order = nullptr;  // of run's entries
  FoldWork* folds = nullptr;
  StateView* accumulators = nullptr;
};

struct AttentionCounts {
  uint64_t entries = 0;
  uint64_t spans = 0;
  uint64_t pages = 0;
  uint64_t rows = 0;
  uint64_t advances = 0;
  uint64_t ordered = 0;  // entries
  uint64_t folds = 0;
  uint64_t items = 0;  // that the caller listed
  // Of spans and pages those that are copied, once for entries that share them; and numbers of
  // rows.
  uint64_t held_spans = 0;
  uint64_t held_pages = 0;
  uint64_t held_numbers = 0;
};

// Arrays of numbers that an entry's rows can have.
inline constexpr uint64_t kRowNumbersMax = 4;

inline void cut_attention(Cutter& cutter, AttentionArrays& arrays, const AttentionCounts& counts) {
  cutter.cut(arrays.body, 1);
  cutter.cut(arrays.entries, counts.entries);
  cutter.cut(arrays.spans, counts.held_spans);
  cutter.cut(arrays.rows, counts.held_numbers);
  cutter.cut(arrays.advances, counts.advances);
  cutter.cut(arrays.order, counts.ordered);
  cutter.cut(arrays.folds, counts.folds);
  cutter.cut(arrays.accumulators, counts.entries);
  cutter.cut(arrays.pages, counts.held_pages);  // last: see AttentionBody
}

// Memories that a submit of these counts names at most.
inline uint64_t attention_uses(const AttentionCounts& counts) {
  return 2 * counts.spans + 4 * counts.entries + 2 * counts.items + 3;
}

// The items of a call: advance's, fold's, or finish's accumulators; the others are NULL.
struct AttentionItems {
  const kvspan_advance_item_t* advances = nullptr;
  const kvspan_fold_item_t* folds = nullptr;
  const kvspan_state_t* accumulators = nullptr;
  uint32_t count = 0;
};

// Splits that some row of an entry sees: the first, and how many.
struct Splits {
  uint64_t first;
  uint64_t count;
};

[[nodiscard]] Splits splits_of(const kvspan_entry_t& entry);

// Entries of the lists that a span's planes take, copied.
[[nodiscard]] uint32_t list_entries(const kvspan_span_t& span, bool latent);

class AttentionTask final : public Task {
 public:
  // `args` and `items` have been checked for `call`.
  AttentionTask(const Card& card,
                const kvspan_attention_args_t& args,
                AttentionCall call,
                const AttentionItems& items);

  [[nodiscard]] const AttentionCounts& counts() const { return counts_; }

  void lay_out(Cutter& cutter) override;
  void fill(Packet& packet, Uses& uses) override;

 private:
  void fill_problem(Uses& uses);
  void fill_entry(uint32_t index, Uses& uses);
  void fill_span(const kvspan_span_t& span, Uses& uses);
  // `held_list`: the plane's list where it is held already, else nullptr.
  PlaneView fill_plane(const kvspan_plane_t& plane,
                       uint64_t tokens,
                       const uint32_t* held_list,
                       Uses& uses);
  void fill_advances(Uses& uses);
  void fill_folds(Uses& uses);
  void fill_accumulators(Uses& uses);
  void fill_run();
  void choose_tile();
  [[nodiscard]] uint64_t blocks_of(const kvspan_entry_t& entry) const;
  StateView view(const kvspan_state_t& state, Uses& uses) const;
  template <class T>
  const T* fill_rows(const T* source, uint32_t count);

  const Card& card_;
  const kvspan_attention_args_t& args_;
  const kvspan_attention_shape_t& shape_;
  const AttentionCall call_;
  const AttentionItems items_;
  const bool latent_;
  const Kernel kernel_;
  const uint64_t k_row_bytes_;
  const uint64_t v_row_bytes_;
  bool side_by_side_ = false;
  AttentionCounts counts_;
  AttentionArrays arrays_;
  SpanView* next_span_ = nullptr;
  uint32_t* next_page_ = nullptr;
  uint64_t* next_row_ = nullptr;
};

}  // namespace kvspan::cuda
