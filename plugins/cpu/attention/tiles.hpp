// SPDX-License-Identifier: Apache-2.0
// What a unit of attention work is cut from: tiles of pairs, chunks of pairs, splits, seen tokens.
// Read next: units.cpp (what a unit does), work.cpp (how many there are).
#pragma once

#include "attention/args.hpp"
#include "attention/kernel.hpp"

#include <cstdint>

namespace kvspan::cpu {

// A submit being done.
struct Context {
  const AttentionBody& body;
  const Kernels& kernels;
  uint64_t tile_pairs;  // of a tile, at most
};

// Tokens [begin, end) of a history.
struct Tokens {
  uint64_t begin;
  uint64_t end;

  [[nodiscard]] bool empty() const { return begin >= end; }
};

// Tiles of an entry: of all KV heads.
uint64_t head_tiles(const Context& context, const EntryView& entry);

// Tile `index` of head_tiles(). Neighbours share a KV head, so they share its pages in cache. The
// last tiles may have no pair.
PairTile tile_at(const Context& context, const EntryView& entry, uint64_t index);

// From the first to behind the last token that rows [first, end) or a tile's rows see.
Tokens seen_by(const EntryView& entry, uint64_t first, uint64_t end);
Tokens seen_by(const PairTile& tile);

// The part of `tokens` that is worth walking: what is seen, begun on the granule.
Tokens walkable(Tokens tokens, Tokens seen);

// Pairs [first, end) of all heads of an entry: row * q_heads + q_head.
struct Chunk {
  const EntryView* entry;
  uint64_t first;
  uint64_t end;
};

uint64_t total_chunks(const Context& context);
Chunk chunk_at(const Context& context, uint64_t index);

// Splits that some row of an entry sees.
struct Splits {
  uint64_t first;
  uint64_t count;
};

Splits splits_of(const EntryView& entry);

// The state of seen split number `index` of an entry in the workspace of run.
StateView workspace_state(const Context& context, const EntryView& entry, uint64_t index);

}  // namespace kvspan::cpu
