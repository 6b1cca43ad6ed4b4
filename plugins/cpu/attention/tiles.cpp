// SPDX-License-Identifier: Apache-2.0
// Read first: tiles.hpp.
#include "attention/tiles.hpp"

#include "attention/rules.hpp"

namespace kvspan::cpu {

namespace {

// Pairs that a unit of fold or finish takes: some 100 KiB of states.
constexpr uint64_t kChunkPairs = 128;

uint64_t ceil_div(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}

uint64_t pairs_of_head(const Context& context, const EntryView& entry) {
  return uint64_t{entry.row_count} * context.body.problem.group;
}

uint64_t tiles_of(const Context& context, const EntryView& entry) {
  return ceil_div(pairs_of_head(context, entry), context.tile_pairs);
}

uint64_t chunks_of(const Context& context, const EntryView& entry) {
  return ceil_div(uint64_t{entry.row_count} * context.body.problem.q_heads, kChunkPairs);
}

}  // namespace

uint64_t head_tiles(const Context& context, const EntryView& entry) {
  return tiles_of(context, entry) * context.body.problem.kv_heads;
}

PairTile tile_at(const Context& context, const EntryView& entry, uint64_t index) {
  const uint64_t tiles = tiles_of(context, entry);
  const uint64_t pairs = pairs_of_head(context, entry);
  const uint64_t each = ceil_div(pairs, tiles);
  const uint64_t first = index % tiles * each;
  const uint64_t count = first >= pairs ? 0 : pairs - first < each ? pairs - first : each;
  return {&context.body.problem,
          &entry,
          first,
          static_cast<uint32_t>(count),
          static_cast<uint32_t>(index / tiles)};
}

Tokens seen_by(const EntryView& entry, uint64_t first, uint64_t end) {
  Tokens seen{UINT64_MAX, 0};
  for (uint64_t row = first; row < end; ++row) {
    const uint64_t begin = entry.window_begin != nullptr ? entry.window_begin[row] : 0;
    if (begin < entry.visible_end[row]) {
      seen.begin = begin < seen.begin ? begin : seen.begin;
      seen.end = entry.visible_end[row] > seen.end ? entry.visible_end[row] : seen.end;
    }
  }
  return seen;
}

Tokens seen_by(const PairTile& tile) {
  const uint64_t group = tile.problem->group;
  return seen_by(
      *tile.entry, tile.first_pair / group, (tile.first_pair + tile.pair_count - 1) / group + 1);
}

Tokens walkable(Tokens tokens, Tokens seen) {
  const uint64_t begin = seen.begin / kGranuleTokens * kGranuleTokens;
  return {tokens.begin > begin ? tokens.begin : begin,
          tokens.end < seen.end ? tokens.end : seen.end};
}

Chunk chunk_at(const Context& context, uint64_t index) {
  const EntryView* entry = context.body.entries;
  while (index >= chunks_of(context, *entry)) {
    index -= chunks_of(context, *entry);
    ++entry;
  }
  const uint64_t pairs = uint64_t{entry->row_count} * context.body.problem.q_heads;
  const uint64_t first = index * kChunkPairs;
  return {entry, first, first + kChunkPairs < pairs ? first + kChunkPairs : pairs};
}

uint64_t total_chunks(const Context& context) {
  uint64_t total = 0;
  for (uint64_t i = 0; i < context.body.entry_count; ++i) {
    total += chunks_of(context, context.body.entries[i]);
  }
  return total;
}

Splits splits_of(const EntryView& entry) {
  const Tokens seen = seen_by(entry, 0, entry.row_count);
  if (seen.empty()) {
    return {0, 0};
  }
  const uint64_t first = seen.begin / entry.split_tokens;
  return {first, (seen.end - 1) / entry.split_tokens - first + 1};
}

StateView workspace_state(const Context& context, const EntryView& entry, uint64_t index) {
  const Problem& problem = context.body.problem;
  const auto bytes = [&](const EntryView& of) {
    return sdk::state_bytes(of.row_count, problem.q_heads, problem.head_size_v);
  };
  uint8_t* at = context.body.workspace;
  for (const EntryView* before = context.body.entries; before != &entry; ++before) {
    at += (kDecodeSplits + 1) * bytes(*before).total();
  }
  at += index * bytes(entry).total();
  return {reinterpret_cast<float*>(at), reinterpret_cast<float*>(at + bytes(entry).u)};
}

}  // namespace kvspan::cpu
