// SPDX-License-Identifier: Apache-2.0
// Where a kernel finds the descriptors of its call: in its arguments, in the queue's room, or in host
// memory. Device code only. Read first: HeldCall in kernel.hpp.
#pragma once

#include "attention/kernel.hpp"
#include "divide.cuh"
#include "search.cuh"

#include <cstdint>

namespace kvspan::cuda {

// `pointer`, or where the arguments hold what it names.
template <class T>
__device__ const T* reach(const HeldCall& call, const T* pointer) {
  const uint64_t offset =
      reinterpret_cast<uint64_t>(pointer) - reinterpret_cast<uint64_t>(call.from);
  if (pointer == nullptr || offset >= call.bytes) {
    return pointer;
  }
  return reinterpret_cast<const T*>((call.room != nullptr ? call.room : call.held) + offset);
}

// A call whose first descriptors a block has copied to shared memory, in one trip.
struct NearCall {
  const AttentionCallView& view;
  const HeldCall& call;
  const uint8_t* near;
  uint32_t near_bytes;
};

template <class T>
__device__ const T* reach(const NearCall& call, const T* pointer) {
  const uint64_t offset =
      reinterpret_cast<uint64_t>(pointer) - reinterpret_cast<uint64_t>(call.call.from);
  return pointer != nullptr && offset < call.near_bytes
             ? reinterpret_cast<const T*>(call.near + offset)
             : reach(call.call, pointer);
}

// Tokens that a row sees end there. Rows of a chunk mostly see one more each, which needs no list.
__device__ inline uint64_t visible_end_of(const EntryView& entry, uint64_t row) {
  return entry.visible_end != nullptr ? entry.visible_end[row] : entry.visible_first + row;
}

// The addresses inside a descriptor that was copied from the call. What begins near ends near: see
// copy_near.
template <class Call>
__device__ inline void reach_all(const Call& call, EntryView& entry) {
  entry.spans = reach(call, entry.spans);
  entry.visible_end = reach(call, entry.visible_end);
  entry.window_begin = reach(call, entry.window_begin);
  entry.suffix_mask = reach(call, entry.suffix_mask);
  entry.positions = reach(call, entry.positions);
}

template <class Call>
__device__ inline void reach_all(const Call& call, SpanView& span) {
  span.k.page_list = reach(call, span.k.page_list);
  span.v.page_list = reach(call, span.v.page_list);
}

// tiles_of().
__device__ inline uint64_t tiles_on_device(uint64_t rows, uint64_t group, uint32_t tile_pairs) {
  return divided(rows * group + tile_pairs - 1, tile_pairs);
}

// The item of a block; a whole warp asks for the same.
template <class Call>
__device__ inline AdvanceWork item_at(const Call& call, uint64_t block, uint32_t tile_pairs) {
  const AttentionCallView& view = call.view;
  if (view.advances != nullptr) {
    const AdvanceWork* const items = reach(call, view.advances);
    return items[find_last(
        view.advance_count, block, [&](uint64_t index) { return items[index].first_block; })];
  }
  const EntryView* const entries = reach(call, view.entries);
  const uint32_t* const order = reach(call, view.order);
  const auto entry_at = [&](uint64_t at) { return order != nullptr ? order[at] : at; };
  const uint64_t index = entry_at(find_last(
      view.entry_count, block, [&](uint64_t at) { return entries[entry_at(at)].first_block; }));
  const EntryView& entry = entries[index];
  const StateView first{reinterpret_cast<float*>(entry.run_states),
                        reinterpret_cast<float*>(entry.run_states + entry.run_ml)};
  if (entry.run_count == 0) {
    return {first,
            0,
            entry.token_total,
            entry.first_block,
            static_cast<uint32_t>(index),
            Walk::splits};
  }
  const uint64_t each =
      tiles_on_device(entry.row_count, view.problem.group, tile_pairs) * view.problem.kv_heads;
  const uint64_t split = divided(block - entry.first_block, each);
  const uint64_t token = (entry.run_first + split) * entry.split_tokens;
  const uint64_t left = entry.token_total - token;
  uint8_t* const state = entry.run_states + split * entry.run_stride;
  return {{reinterpret_cast<float*>(state), reinterpret_cast<float*>(state + entry.run_ml)},
          token,
          token + (left < entry.split_tokens ? left : entry.split_tokens),
          entry.first_block + split * each,
          static_cast<uint32_t>(index),
          Walk::fresh};
}

}  // namespace kvspan::cuda
