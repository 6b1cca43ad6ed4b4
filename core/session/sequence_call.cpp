// SPDX-License-Identifier: Apache-2.0
// SequenceCall: row groups to entries; layout of states inside the plan's bound.
#include "sequence_call.hpp"

#include "kvspan/core/layout/checked.hpp"

#include <algorithm>
#include <utility>

namespace kvspan {

SequenceCall::SequenceCall(const LayerGeometry& geometry,
                           const kvspan_attention_caps_t& caps,
                           const StepPart& part,
                           const Places& places,
                           std::vector<RowGroup> groups)
    : geometry_(geometry), caps_(caps), part_(part), places_(places), groups_(std::move(groups)) {
  total_tokens_ = part.first_token + part.rows;
  for (std::uint32_t row = 0; row < part.rows; ++row) {
    const std::uint64_t end = part.first_token + row + 1;
    const std::uint64_t window = geometry.window_tokens;
    visible_end_.push_back(end);
    window_begin_.push_back(window == 0 || end <= window ? 0 : end - window);
  }
  std::uint64_t state_at = places.states_offset;
  std::uint64_t accumulator_at = places.accumulators_offset;
  for (const RowGroup& group : groups_) {
    const std::uint64_t alignment = std::max<std::uint64_t>(caps.state_alignment, 1);
    const std::uint64_t heads = geometry.q_heads;
    const std::uint64_t u_bytes =
        align_up(group.rows * heads * geometry.head_size_v * sizeof(float), alignment);
    const std::uint64_t ml_bytes = align_up(group.rows * heads * 2 * sizeof(float), alignment);
    state_bases_.push_back(state_at);
    u_bytes_.push_back(u_bytes);
    state_bytes_.push_back(u_bytes + ml_bytes);
    accumulators_.push_back({places.memory, accumulator_at, accumulator_at + u_bytes});
    state_at += places.splits_in_flight * (u_bytes + ml_bytes);
    accumulator_at += u_bytes + ml_bytes;
    folded_.push_back(false);
  }
}

std::vector<kvspan_entry_t> SequenceCall::entries(const AttendRows& rows,
                                                  std::span<const kvspan_span_t> spans) const {
  std::vector<kvspan_entry_t> out;
  for (const RowGroup& group : groups_) {
    const std::uint64_t row = part_.first_row + group.first_row;
    kvspan_entry_t entry{};
    entry.spans = spans.data();
    entry.span_count = static_cast<std::uint32_t>(spans.size());
    entry.visible_end = visible_end_.data() + group.first_row;
    entry.window_begin =
        geometry_.window_tokens == 0 ? nullptr : window_begin_.data() + group.first_row;
    entry.row_count = group.rows;
    entry.token_total = total_tokens_;
    entry.split_tokens = group.split_tokens;
    entry.q = rows.q;
    entry.q.offset += row * rows.q.row_stride;
    entry.out = rows.out;
    entry.out.offset += row * rows.out.row_stride;
    if (rows.lse.memory != nullptr) {
      const std::uint64_t row_bytes = geometry_.q_heads * sizeof(float);
      entry.lse = {rows.lse.memory, rows.lse.offset + row * row_bytes, group.rows * row_bytes};
    }
    out.push_back(entry);
  }
  return out;
}

std::vector<std::vector<SplitPart>> SequenceCall::parts(std::span<const Tokens> runs) const {
  std::vector<std::vector<SplitPart>> out;
  for (const RowGroup& group : groups_) {
    std::vector<SplitPart>& parts = out.emplace_back();
    for (const Tokens& run : runs) {
      const std::vector<SplitPart> more =
          split_parts(group, run.begin, run.end, caps_.span_granule, total_tokens_);
      parts.insert(parts.end(), more.begin(), more.end());
    }
  }
  return out;
}

bool SequenceCall::all_open() const {
  return std::all_of(groups_.begin(), groups_.end(), [this](const RowGroup& group) {
    return split_count(group) <= places_.splits_in_flight;
  });
}

kvspan_state_t SequenceCall::state(std::size_t entry, std::uint64_t split) const {
  const std::uint64_t at =
      state_bases_[entry] + split % places_.splits_in_flight * state_bytes_[entry];
  return {places_.memory, at, at + u_bytes_[entry]};
}

kvspan_fold_item_t SequenceCall::fold_item(std::size_t entry, std::uint64_t split) {
  kvspan_fold_item_t item{};
  item.entry = static_cast<std::uint32_t>(entry);
  item.flags = folded_[entry] ? 0 : KVSPAN_ITEM_FRESH;
  item.source = state(entry, split);
  item.accumulator = accumulators_[entry];
  folded_[entry] = true;
  return item;
}

}  // namespace kvspan
