// SPDX-License-Identifier: Apache-2.0
// That every visible token has a span: rows, windows and suffix masks against an entry's spans.
// Cost: one pass over the rows of an entry, one over its spans for each gap that rows end at.
#pragma once

#include "kvspan/attention.h"
#include "kvspan/sdk/validate_range.hpp"

#include <cstdint>

namespace kvspan::sdk {

/// Tokens [begin, end).
struct TokenRange {
  std::uint64_t begin;
  std::uint64_t end;
};

namespace detail {

inline TokenRange meet(TokenRange a, TokenRange b) noexcept {
  const std::uint64_t begin = a.begin > b.begin ? a.begin : b.begin;
  const std::uint64_t end = a.end < b.end ? a.end : b.end;
  return {begin, end < begin ? begin : end};
}

/// The runs of tokens that an entry's spans hold without a gap, found one at a time and remembered:
/// rows mostly ask for the same one.
class Runs {
 public:
  explicit Runs(const kvspan_entry_t& entry) noexcept : entry_(&entry) {}

  /// Whether all tokens of `wanted` are in spans.
  bool hold(TokenRange wanted) noexcept {
    if (wanted.begin >= wanted.end) {
      return true;
    }
    if (wanted.begin < run_.begin || wanted.begin >= run_.end) {
      find(wanted.begin);
    }
    return wanted.begin >= run_.begin && wanted.end <= run_.end;
  }

 private:
  /// The rest of the run from the span that may hold `token` on.
  void find(std::uint64_t token) noexcept {
    std::uint32_t low = 0;
    std::uint32_t high = entry_->span_count;  // the last span that begins at or before token
    while (low < high) {
      const std::uint32_t middle = low + (high - low) / 2;
      if (entry_->spans[middle].first_token <= token) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == 0) {
      run_ = {0, 0};
      return;
    }
    run_ = of_span(low - 1);
    while (low < entry_->span_count && of_span(low).begin == run_.end) {
      run_.end = of_span(low++).end;
    }
  }

  TokenRange of_span(std::uint32_t i) const noexcept {
    const kvspan_span_t& span = entry_->spans[i];
    return {span.first_token, span.first_token + span.token_count};
  }

  const kvspan_entry_t* entry_;
  TokenRange run_{0, 0};
};

/// Tokens that row `row` sees, without regard to the suffix mask.
inline TokenRange seen_by_row(const kvspan_entry_t& entry, std::uint32_t row) noexcept {
  return {entry.window_begin == nullptr ? 0 : entry.window_begin[row], entry.visible_end[row]};
}

/// Tokens that some row sees.
inline TokenRange seen_by_entry(const kvspan_entry_t& entry) noexcept {
  TokenRange all{UINT64_MAX, 0};
  for (std::uint32_t row = 0; row < entry.row_count; ++row) {
    const TokenRange seen = seen_by_row(entry, row);
    if (seen.begin < seen.end) {
      all.begin = seen.begin < all.begin ? seen.begin : all.begin;
      all.end = seen.end > all.end ? seen.end : all.end;
    }
  }
  return all;
}

/// Whether the spans hold every token of `part` that `row` sees.
inline bool row_is_held(const kvspan_entry_t& entry,
                        std::uint32_t row,
                        TokenRange part,
                        Runs& runs) noexcept {
  const TokenRange seen = meet(seen_by_row(entry, row), part);
  if (runs.hold(seen)) {
    return true;
  }
  if (entry.suffix_mask == nullptr) {
    return false;
  }
  const std::uint64_t suffix_begin = entry.token_total - entry.suffix_count;
  if (!runs.hold(meet(seen, {0, suffix_begin}))) {
    return false;
  }
  for (std::uint32_t bit = 0; bit < entry.suffix_count; ++bit) {
    const std::uint64_t token = suffix_begin + bit;
    if ((entry.suffix_mask[row] >> bit & 1u) != 0 && !runs.hold(meet(seen, {token, token + 1}))) {
      return false;
    }
  }
  return true;
}

/// Every visible token of `part` has a span. `seen` is seen_by_entry's.
template <class BytesOf>
kvspan_result_t check_held(const kvspan_entry_t& entry,
                           TokenRange part,
                           TokenRange seen,
                           const Context<BytesOf>& context,
                           kvspan_error_t* error,
                           const char* where) noexcept {
  Runs runs(entry);
  if (runs.hold(meet(seen, part))) {
    return KVSPAN_OK;  // the usual case: no gap at all
  }
  for (std::uint32_t row = 0; row < entry.row_count; ++row) {
    if (!row_is_held(entry, row, part, runs)) {
      return refuse(context.spot,
                    error,
                    where,
                    "row %u sees tokens of %llu..%llu that no span holds: add the span",
                    row,
                    number(meet(seen_by_row(entry, row), part).begin),
                    number(meet(seen_by_row(entry, row), part).end));
    }
  }
  return KVSPAN_OK;
}

}  // namespace detail
}  // namespace kvspan::sdk
