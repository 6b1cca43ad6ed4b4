// SPDX-License-Identifier: Apache-2.0
// Wave: addresses of pieces as the ABI's spans.
#include "wave.hpp"

namespace kvspan {

Wave::Wave(const PageLayout& page, bool v_in_k, kvspan_memory_t* memory, std::size_t slots_max)
    : page_(page), v_in_k_(v_in_k), memory_(memory) {
  slots_.reserve(slots_max);  // never moves: spans point into it
  spans_.reserve(slots_max + 1);
}

void Wave::add_span(const Tokens& tokens,
                    std::uint64_t k_offset,
                    std::uint64_t v_offset,
                    std::uint64_t stride) {
  kvspan_span_t span{};
  span.first_token = tokens.begin;
  span.token_count = tokens.end - tokens.begin;
  span.k.memory = memory_;
  span.k.offset = k_offset;
  span.k.page_stride = stride;
  span.k.row_stride = page_.k_token_bytes;
  span.k.head_stride = page_.k_row_bytes;
  span.k.page_tokens = page_.page_tokens;
  if (!v_in_k_) {
    span.v = span.k;
    span.v.offset = v_offset;
    span.v.row_stride = page_.v_token_bytes;
    span.v.head_stride = page_.v_row_bytes;
  }
  spans_.push_back(span);
}

void Wave::add_run(const Tokens& tokens, std::uint64_t offset, std::uint64_t stride) {
  add_span(tokens, offset, offset + page_.v_offset, stride);
  open_ = false;
}

// Whether the unit goes on where the last span, made of whole pages in slots, ended.
bool Wave::joins(const PageUnit& unit) const {
  return open_ && unit.first_row == 0 &&
         spans_.back().first_token + spans_.back().token_count == unit.page * page_.page_tokens;
}

// The unit's slot is the last of slots_.
void Wave::join(const PageUnit& unit, std::uint64_t offset) {
  kvspan_span_t& span = spans_.back();
  span.token_count += unit.rows;
  const bool listed = span.k.page_list != nullptr;
  if (!listed && slots_.back() == slots_[slots_.size() - 2] + 1) {
    return;
  }
  span.k.offset = offset;
  span.k.page_list = slots_.data() + first_slot_;
  span.k.page_count = static_cast<std::uint32_t>(slots_.size() - first_slot_);
  if (!v_in_k_) {
    span.v.offset = offset + page_.v_offset;
    span.v.page_list = span.k.page_list;
    span.v.page_count = span.k.page_count;
  }
}

void Wave::add_slot(const PageUnit& unit,
                    std::uint32_t slot,
                    std::uint64_t offset,
                    std::uint64_t stride) {
  const std::uint64_t first = unit.page * page_.page_tokens + unit.first_row;
  const std::uint64_t at = offset + slot * stride;
  slots_.push_back(slot);
  if (joins(unit)) {
    join(unit, offset);
  } else {
    add_span({first, first + unit.rows}, at, at + page_.v_offset, stride);
    first_slot_ = slots_.size() - 1;
  }
  // A unit that begins inside a page is a span alone: a list counts pages from a span's start.
  open_ = unit.first_row == 0 && unit.rows == page_.page_tokens;
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
