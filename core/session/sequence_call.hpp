// SPDX-License-Identifier: Apache-2.0
// One sequence's rows of a step in one layer, as the ABI's entries: groups of rows with one split
// length, their states and accumulators, and what has been folded. Private to core/session. Read
// next: attend.cpp.
#pragma once

#include "state.hpp"
#include "wave.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvspan {

// The row groups of one sequence in one layer as ABI entries, with their states and how far each
// has come.
class SequenceCall {
 public:
  // Where states and accumulators of all groups lie, and how many splits may be open at once.
  struct Places {
    kvspan_memory_t* memory;
    std::uint64_t states_offset;
    std::uint64_t accumulators_offset;
    std::uint32_t splits_in_flight;
  };

  // The references outlive the call.
  SequenceCall(const LayerGeometry& geometry,
               const kvspan_attention_caps_t& caps,
               const StepPart& part,
               const Places& places,
               std::vector<RowGroup> groups);

  [[nodiscard]] std::uint64_t total_tokens() const { return total_tokens_; }

  [[nodiscard]] std::uint32_t splits_in_flight() const { return places_.splits_in_flight; }

  // Entries that all see `spans`, which outlive them.
  [[nodiscard]] std::vector<kvspan_entry_t> entries(const AttendRows& rows,
                                                    std::span<const kvspan_span_t> spans) const;

  // Parts of splits in runs of tokens: [entry][part], ascending, a split once.
  [[nodiscard]] std::vector<std::vector<SplitPart>> parts(std::span<const Tokens> runs) const;

  [[nodiscard]] std::size_t entry_count() const { return groups_.size(); }

  [[nodiscard]] const RowGroup& group(std::size_t entry) const { return groups_[entry]; }

  // Whether every entry's splits may be open at once.
  [[nodiscard]] bool all_open() const;

  [[nodiscard]] kvspan_state_t state(std::size_t entry, std::uint64_t split) const;

  // Folds a complete split; the first of an entry starts its accumulator.
  [[nodiscard]] kvspan_fold_item_t fold_item(std::size_t entry, std::uint64_t split);

  [[nodiscard]] const std::vector<kvspan_state_t>& accumulators() const { return accumulators_; }

 private:
  const LayerGeometry& geometry_;
  const kvspan_attention_caps_t& caps_;
  const StepPart& part_;
  Places places_;
  std::vector<RowGroup> groups_;
  std::uint64_t total_tokens_ = 0;
  std::vector<std::uint64_t> visible_end_;    // [row]
  std::vector<std::uint64_t> window_begin_;   // [row]
  std::vector<std::uint64_t> state_bases_;    // [entry]
  std::vector<std::uint64_t> u_bytes_;        // [entry]
  std::vector<std::uint64_t> state_bytes_;    // [entry]
  std::vector<kvspan_state_t> accumulators_;  // [entry]
  std::vector<bool> folded_;                  // [entry]
};

}  // namespace kvspan
