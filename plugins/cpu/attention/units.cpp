// SPDX-License-Identifier: Apache-2.0
// Read first: units.hpp, tiles.hpp.
#include "attention/units.hpp"

#include "attention/tiles.hpp"

#include <cstring>
#include <limits>

namespace kvspan::cpu {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void clear(float* u, float* m, float* l, uint64_t pairs, uint64_t stride) {
  std::memset(u, 0, sizeof(float) * pairs * stride);
  for (uint64_t p = 0; p < pairs; ++p) {
    m[p] = kMinusInfinity;
    l[p] = 0.0f;
  }
}

void walk_fresh(const Context& context, const PairTile& tile, Tokens tokens, Scratch& scratch) {
  clear(scratch.u, scratch.m, scratch.l, tile.pair_count, padded(tile.problem->head_size_v));
  if (!tokens.empty()) {
    context.kernels.walk(tile, tokens.begin, tokens.end, scratch);
  }
}

uint64_t state_index(const PairTile& tile, const Scratch& scratch, uint32_t pair) {
  return uint64_t{scratch.row[pair]} * tile.problem->q_heads + scratch.q_head[pair];
}

void load_state(const PairTile& tile, const StateView& state, Scratch& scratch) {
  const uint64_t size = tile.problem->head_size_v;
  clear(scratch.u, scratch.m, scratch.l, tile.pair_count, padded(tile.problem->head_size_v));
  for (uint32_t p = 0; p < tile.pair_count; ++p) {
    const uint64_t at = state_index(tile, scratch, p);
    std::memcpy(scratch.u + p * padded(tile.problem->head_size_v),
                state.u + at * size,
                sizeof(float) * size);
    scratch.m[p] = state.ml[2 * at];
    scratch.l[p] = state.ml[2 * at + 1];
  }
}

void store_state(const PairTile& tile, const Scratch& scratch, const StateView& state) {
  const uint64_t size = tile.problem->head_size_v;
  for (uint32_t p = 0; p < tile.pair_count; ++p) {
    const uint64_t at = state_index(tile, scratch, p);
    std::memcpy(state.u + at * size,
                scratch.u + p * padded(tile.problem->head_size_v),
                sizeof(float) * size);
    state.ml[2 * at] = scratch.m[p];
    state.ml[2 * at + 1] = scratch.l[p];
  }
}

void finish_pair(const Context& context,
                 const EntryView& entry,
                 const PairSource& accumulator,
                 uint64_t row,
                 uint32_t q_head) {
  const Problem& problem = context.body.problem;
  uint8_t* const out = entry.out.base + row * entry.out.row_stride + q_head * entry.out.head_stride;
  const float* const sink = problem.sinks != nullptr ? problem.sinks + q_head : nullptr;
  const float lse =
      context.kernels.finish(accumulator, sink, problem.head_size_v, entry.out.type, out);
  if (entry.lse != nullptr) {
    entry.lse[row * problem.q_heads + q_head] = lse;
  }
}

PairSource source_at(const StateView& state, uint64_t pair, uint64_t size) {
  return {state.u + pair * size, state.ml[2 * pair], state.ml[2 * pair + 1]};
}

}  // namespace

void advance_unit(void* opaque, uint64_t index, Scratch& scratch) {
  const Context& context = *static_cast<const Context*>(opaque);
  const AdvanceWork* item = context.body.advances;
  for (;; ++item) {
    const uint64_t units = head_tiles(context, context.body.entries[item->entry]);
    if (index < units) {
      break;
    }
    index -= units;
  }
  const PairTile tile = tile_at(context, context.body.entries[item->entry], index);
  if (tile.pair_count == 0) {
    return;
  }
  const Tokens tokens = walkable({item->first, item->end}, seen_by(tile));
  if (tokens.empty() && !item->fresh) {
    return;
  }
  context.kernels.load_queries(tile, scratch);
  if (item->fresh) {
    walk_fresh(context, tile, tokens, scratch);
  } else {
    load_state(tile, item->state, scratch);
    context.kernels.walk(tile, tokens.begin, tokens.end, scratch);
  }
  store_state(tile, scratch, item->state);
}

void fold_unit(void* opaque, uint64_t index, Scratch&) {
  const Context& context = *static_cast<const Context*>(opaque);
  const Chunk chunk = chunk_at(context, index);
  const uint32_t size = context.body.problem.head_size_v;
  const auto entry = static_cast<uint64_t>(chunk.entry - context.body.entries);
  for (uint64_t i = 0; i < context.body.item_count; ++i) {
    const FoldWork& item = context.body.folds[i];
    for (uint64_t pair = chunk.first; item.entry == entry && pair < chunk.end; ++pair) {
      float* const u = item.accumulator.u + pair * size;
      float* const ml = item.accumulator.ml + 2 * pair;
      if (item.fresh) {
        clear(u, ml, ml + 1, 1, size);
      }
      context.kernels.fold({u, ml, ml + 1}, source_at(item.source, pair, size), size);
    }
  }
}

void finish_unit(void* opaque, uint64_t index, Scratch&) {
  const Context& context = *static_cast<const Context*>(opaque);
  const Chunk chunk = chunk_at(context, index);
  const Problem& problem = context.body.problem;
  const StateView& state = context.body.accumulators[chunk.entry - context.body.entries];
  for (uint64_t pair = chunk.first; pair < chunk.end; ++pair) {
    finish_pair(context,
                *chunk.entry,
                source_at(state, pair, problem.head_size_v),
                pair / problem.q_heads,
                static_cast<uint32_t>(pair % problem.q_heads));
  }
}

void run_unit(void* opaque, uint64_t index, Scratch& scratch) {
  const Context& context = *static_cast<const Context*>(opaque);
  const EntryView* entry = context.body.entries;
  while (index >= head_tiles(context, *entry)) {
    index -= head_tiles(context, *entry);
    ++entry;
  }
  const PairTile tile = tile_at(context, *entry, index);
  if (tile.pair_count == 0) {
    return;
  }
  const uint32_t size = context.body.problem.head_size_v;
  const uint64_t stride = padded(size);
  const Tokens seen = seen_by(tile);
  context.kernels.load_queries(tile, scratch);
  clear(scratch.fold_u, scratch.fold_m, scratch.fold_l, tile.pair_count, stride);
  for (uint64_t split = seen.empty() ? 0 : seen.begin / entry->split_tokens;
       !seen.empty() && split <= (seen.end - 1) / entry->split_tokens;
       ++split) {
    const Tokens tokens{split * entry->split_tokens, (split + 1) * entry->split_tokens};
    walk_fresh(context, tile, walkable(tokens, seen), scratch);
    for (uint32_t p = 0; p < tile.pair_count; ++p) {
      context.kernels.fold({scratch.fold_u + p * stride, scratch.fold_m + p, scratch.fold_l + p},
                           {scratch.u + p * stride, scratch.m[p], scratch.l[p]},
                           size);
    }
  }
  for (uint32_t p = 0; p < tile.pair_count; ++p) {
    const PairSource result{scratch.fold_u + p * stride, scratch.fold_m[p], scratch.fold_l[p]};
    finish_pair(context, *entry, result, scratch.row[p], scratch.q_head[p]);
  }
}

void split_unit(void* opaque, uint64_t index, Scratch& scratch) {
  const Context& context = *static_cast<const Context*>(opaque);
  const EntryView* entry = context.body.entries;
  Splits splits = splits_of(*entry);
  while (index >= splits.count * head_tiles(context, *entry)) {
    index -= splits.count * head_tiles(context, *entry);
    ++entry;
    splits = splits_of(*entry);
  }
  const uint64_t split = index % splits.count;
  const PairTile tile = tile_at(context, *entry, index / splits.count);
  if (tile.pair_count == 0) {
    return;
  }
  const Tokens tokens{(splits.first + split) * entry->split_tokens,
                      (splits.first + split + 1) * entry->split_tokens};
  context.kernels.load_queries(tile, scratch);
  walk_fresh(context, tile, walkable(tokens, seen_by(tile)), scratch);
  store_state(tile, scratch, workspace_state(context, *entry, split));
}

void fold_splits_unit(void* opaque, uint64_t index, Scratch& scratch) {
  const Context& context = *static_cast<const Context*>(opaque);
  const Problem& problem = context.body.problem;
  const Chunk chunk = chunk_at(context, index);
  const uint64_t count = splits_of(*chunk.entry).count;
  for (uint64_t pair = chunk.first; pair < chunk.end; ++pair) {
    clear(scratch.fold_u, scratch.fold_m, scratch.fold_l, 1, problem.head_size_v);
    for (uint64_t split = 0; split < count; ++split) {
      const StateView state = workspace_state(context, *chunk.entry, split);
      context.kernels.fold({scratch.fold_u, scratch.fold_m, scratch.fold_l},
                           source_at(state, pair, problem.head_size_v),
                           problem.head_size_v);
    }
    finish_pair(context,
                *chunk.entry,
                {scratch.fold_u, *scratch.fold_m, *scratch.fold_l},
                pair / problem.q_heads,
                static_cast<uint32_t>(pair % problem.q_heads));
  }
}

}  // namespace kvspan::cpu
