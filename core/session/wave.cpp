// SPDX-License-Identifier: Apache-2.0
// Wave: addresses of pieces as the ABI's spans.
#include "wave.hpp"

#include <algorithm>
#include <numeric>

namespace kvspan {

Wave::Wave(const PageLayout& page,
           bool v_in_k,
           kvspan_memory_t* memory,
           std::size_t slots_max,
           std::size_t listed_max)
    : page_(page), v_in_k_(v_in_k), memory_(memory), listed_max_(listed_max) {
  places_.reserve(slots_max * (page.page_tokens / page.tile_tokens));  // spans point into it
  spans_.reserve(2 * slots_max + 1);
}

// The ABI's pages are our tiles; `offset` is the first one's.
void Wave::add_span(const Tokens& tokens, std::uint64_t offset) {
  kvspan_span_t span{};
  span.first_token = tokens.begin;
  span.token_count = tokens.end - tokens.begin;
  span.k.memory = memory_;
  span.k.offset = offset;
  span.k.page_stride = page_.tile_bytes;
  span.k.row_stride = page_.k_row_bytes;
  span.k.head_stride = page_.k_head_bytes;
  span.k.page_tokens = page_.tile_tokens;
  if (!v_in_k_) {
    span.v = span.k;
    span.v.offset = offset + page_.v_offset;
    span.v.row_stride = page_.v_row_bytes;
    span.v.head_stride = page_.v_head_bytes;
  }
  spans_.push_back(span);
}

void Wave::add_run(const Tokens& tokens, std::uint64_t offset) {
  add_span(tokens, offset);
  open_ = false;
}

// The last span's tiles by a list of the places since first_place_, in `unit_bytes` from `offset`.
void Wave::list_tiles(std::uint64_t offset, std::uint64_t unit_bytes) {
  kvspan_span_t& span = spans_.back();
  span.k.offset = offset;
  span.k.page_stride = unit_bytes;
  span.k.page_list = places_.data() + first_place_;
  span.k.page_count = static_cast<std::uint32_t>(places_.size() - first_place_);
  if (!v_in_k_) {
    span.v.offset = offset + page_.v_offset;
    span.v.page_stride = unit_bytes;
    span.v.page_list = span.k.page_list;
    span.v.page_count = span.k.page_count;
  }
}

// Whole tiles, and a begun one at the end, that lie from `at` behind `offset` on. Places are
// counted in what divides both a slot and a tile, since layers of other sizes may share the slots.
void Wave::add_tiles(const Tokens& tokens,
                     std::uint64_t offset,
                     std::uint64_t at,
                     std::uint64_t stride) {
  const std::uint64_t unit_bytes = std::gcd(stride, page_.tile_bytes);
  const auto first = static_cast<std::uint32_t>(at / unit_bytes);
  const auto step = static_cast<std::uint32_t>(page_.tile_bytes / unit_bytes);
  const std::uint64_t tokens_each = page_.tile_tokens;
  const std::uint64_t count = (tokens.end - tokens.begin + tokens_each - 1) / tokens_each;
  const bool adjoins =
      open_ && spans_.back().first_token + spans_.back().token_count == tokens.begin;
  const bool follows = adjoins && places_.back() + step == first;
  const bool lists = adjoins && (!follows || spans_.back().k.page_list != nullptr);
  const bool joins = adjoins && (!lists || places_.size() - first_place_ + count <= listed_max_);
  if (joins) {
    spans_.back().token_count += tokens.end - tokens.begin;
  } else {
    first_place_ = places_.size();
    add_span(tokens, offset + at);
  }
  for (std::uint32_t tile = 0; tile < count; ++tile) {
    places_.push_back(first + tile * step);
  }
  if (joins && lists) {
    list_tiles(offset, unit_bytes);
  }
  open_ = (tokens.end - tokens.begin) % tokens_each == 0;
}

void Wave::add_slot(const PageUnit& unit,
                    std::uint32_t slot,
                    std::uint64_t offset,
                    std::uint64_t stride) {
  const std::uint64_t first = unit.page * page_.page_tokens + unit.first_row;
  const std::uint64_t end = first + unit.rows;
  std::uint64_t at = slot * stride;
  std::uint64_t begin = first;
  // Rows from the midst of a tile are a span alone: a list counts tiles from a span's start.
  if (const std::uint64_t row = unit.first_row % page_.tile_tokens; row != 0) {
    begin = std::min(end, first + page_.tile_tokens - row);
    add_span({first, begin}, offset + at);
    at += page_.tile_bytes;
    open_ = false;
  }
  if (begin != end) {
    add_tiles({begin, end}, offset, at, stride);
  }
}

void Wave::trim(std::uint64_t end_token) {
  kvspan_span_t& last = spans_.back();
  last.token_count = end_token - last.first_token;
}

std::vector<Tokens> Wave::runs() const {
  std::vector<Tokens> runs;
  for (const kvspan_span_t& span : spans_) {
    const std::uint64_t end = span.first_token + span.token_count;
    if (!runs.empty() && runs.back().end == span.first_token) {
      runs.back().end = end;
    } else {
      runs.push_back({span.first_token, end});
    }
  }
  return runs;
}

}  // namespace kvspan
