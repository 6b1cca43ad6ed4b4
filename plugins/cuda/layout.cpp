// SPDX-License-Identifier: Apache-2.0
// Read first: layout.hpp.
#include "layout.hpp"

#include "attention/args.hpp"
#include "codec.hpp"
#include "copy.hpp"

namespace kvspan::cuda {

namespace {

// Bytes of a packet with `uses` memories whose task cuts with `cut`.
template <class Cut>
uint64_t packet_bytes(uint64_t uses, const Cut& cut) {
  Packet unused;
  Cutter counter(nullptr);
  cut_packet(counter, unused, {kPreparedPoints, kPreparedPoints, uses + 1});
  cut(counter);
  return counter.bytes();
}

uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

}  // namespace

uint64_t prepared_slab_bytes(const Limits& limits) {
  const uint64_t copy = packet_bytes(2 * limits.segments + 1, [&](Cutter& cutter) {
    CopyArrays arrays;
    cut_copy(cutter, arrays, limits.segments);
  });
  const uint64_t codec = packet_bytes(2 * limits.codec_items, [&](Cutter& cutter) {
    CodecArrays arrays;
    cut_codec(cutter, arrays, limits.codec_items, limits.pages);
  });
  // Advance carries spans and items, fold items only: the larger of both for either.
  AttentionCounts counts;
  counts.entries = limits.entries;
  counts.spans = limits.spans;
  counts.pages = limits.pages;
  counts.rows = limits.rows;
  counts.items = larger(limits.attention_items, limits.entries);
  counts.advances = limits.attention_items;
  counts.folds = counts.advances;
  counts.held_spans = counts.spans;
  counts.held_pages = counts.pages;
  counts.held_numbers = kRowNumbersMax * counts.rows;
  const uint64_t attention = packet_bytes(attention_uses(counts), [&](Cutter& cutter) {
    AttentionArrays arrays;
    cut_attention(cutter, arrays, counts);
  });
  return larger(copy, larger(codec, attention));
}

}  // namespace kvspan::cuda
