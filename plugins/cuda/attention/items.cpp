// SPDX-License-Identifier: Apache-2.0
// The items of an attention call as kernels find them: states by address, blocks numbered, the
// longest first. Read first: args.hpp, order.hpp.
#include "attention/args.hpp"
#include "attention/order.hpp"

namespace kvspan::cuda {

Splits splits_of(const kvspan_entry_t& entry) {
  const sdk::TokenRange seen = sdk::detail::seen_by_entry(entry);
  if (seen.begin >= seen.end) {
    return {0, 0};
  }
  const uint64_t first = seen.begin / entry.split_tokens;
  return {first, (seen.end - 1) / entry.split_tokens - first + 1};
}

namespace {

// Of run.
uint64_t items_of(const EntryView& entry, bool side_by_side) {
  return side_by_side ? entry.run_count : 1;
}

}  // namespace

StateView AttentionTask::view(const kvspan_state_t& state, Uses& uses) const {
  uses.add(state.memory);
  return {reinterpret_cast<float*>(address_of(state.memory, state.u_offset)),
          reinterpret_cast<float*>(address_of(state.memory, state.ml_offset))};
}

// Of one item.
uint64_t AttentionTask::blocks_of(const kvspan_entry_t& entry) const {
  const AttentionCallView& call = arrays_.body->view;
  return tiles_of(entry.row_count, call.problem.group, call.tile_pairs) * shape_.kv_heads;
}

void AttentionTask::fill_advances(Uses& uses) {
  for (uint32_t i = 0; i < items_.count; ++i) {
    const kvspan_advance_item_t& item = items_.advances[i];
    arrays_.advances[i] = {view(item.state, uses),
                           item.first_token,
                           item.first_token + item.token_count,
                           0,
                           item.entry,
                           (item.flags & KVSPAN_ITEM_FRESH) != 0 ? Walk::fresh : Walk::resume};
  }
  AttentionCallView& call = arrays_.body->view;
  call.advance_count = items_.count;
  put_longest_first(arrays_.advances, items_.count);
  for (uint32_t i = 0; i < items_.count; ++i) {
    AdvanceWork& item = arrays_.advances[i];
    item.first_block = call.blocks;
    call.blocks += blocks_of(args_.entries[item.entry]);
  }
}

// By entry, then in the caller's order: first counts, then places.
void AttentionTask::fill_folds(Uses& uses) {
  for (uint32_t i = 0; i < items_.count; ++i) {
    ++arrays_.entries[items_.folds[i].entry].fold_count;
  }
  uint64_t before = 0;
  for (uint32_t i = 0; i < args_.entry_count; ++i) {
    EntryView& entry = arrays_.entries[i];
    entry.first_fold = before;
    before += entry.fold_count;
    entry.fold_count = 0;
  }
  for (uint32_t i = 0; i < items_.count; ++i) {
    const kvspan_fold_item_t& item = items_.folds[i];
    EntryView& entry = arrays_.entries[item.entry];
    arrays_.folds[entry.first_fold + entry.fold_count++] = {
        view(item.source, uses),
        view(item.accumulator, uses),
        (item.flags & KVSPAN_ITEM_FRESH) != 0 ? 1u : 0u};
  }
}

void AttentionTask::fill_accumulators(Uses& uses) {
  for (uint32_t i = 0; i < items_.count; ++i) {
    arrays_.accumulators[i] = view(items_.accumulators[i], uses);
  }
}

// Items of run are not listed: kernels find them from the entry. Splits side by side have a state
// each in the workspace, one after another; else the tensor-core kernel has its accumulator there.
void AttentionTask::fill_run() {
  AttentionCallView& call = arrays_.body->view;
  const bool keeps = side_by_side_ || kernel_ != Kernel::f32;
  uint8_t* workspace = keeps ? address_of(args_.workspace.memory, args_.workspace.offset) : nullptr;
  for (uint32_t i = 0; i < args_.entry_count; ++i) {
    const kvspan_entry_t& from = args_.entries[i];
    EntryView& entry = arrays_.entries[i];
    const sdk::StateBytes bytes =
        sdk::state_bytes(from.row_count, shape_.q_heads, shape_.head_size_v);
    const Splits splits = side_by_side_ ? splits_of(from) : Splits{0, 0};
    entry.run_states = workspace;
    entry.run_stride = bytes.total();
    entry.run_ml = bytes.u;
    entry.run_first = splits.first;
    entry.run_count = splits.count;
    workspace += keeps ? items_of(entry, side_by_side_) * bytes.total() : 0;
  }
  const bool ordered =
      counts_.ordered != 0 && order_entries(arrays_.entries, args_.entry_count, arrays_.order);
  call.order = ordered ? arrays_.order : nullptr;
  for (uint32_t i = 0; i < args_.entry_count; ++i) {
    const uint32_t index = ordered ? arrays_.order[i] : i;
    EntryView& entry = arrays_.entries[index];
    entry.first_block = call.blocks;
    call.blocks += items_of(entry, side_by_side_) * blocks_of(args_.entries[index]);
  }
}

}  // namespace kvspan::cuda
