// SPDX-License-Identifier: Apache-2.0
// Read first: deal.hpp.
#include "deal.hpp"

#include <algorithm>

namespace kvspan {

namespace {

// Adds tokens that lie behind all of `to`, or nothing.
void add(const Tokens& tokens, std::vector<Tokens>& to) {
  if (tokens.begin >= tokens.end) {
    return;
  }
  if (!to.empty() && to.back().end == tokens.begin) {
    to.back().end = tokens.end;
  } else {
    to.push_back(tokens);
  }
}

}  // namespace

Deal::Deal(const Tokens& resident,
           std::uint64_t split_tokens,
           std::uint64_t granule_tokens,
           std::uint64_t waves)
    : resident_(resident),
      split_(split_tokens),
      granule_(granule_tokens),
      waves_(waves),
      behind_(std::max(resident.begin, resident.end / split_tokens * split_tokens)) {}

std::vector<Tokens> Deal::next(const std::vector<Tokens>& streamed) {
  std::vector<Tokens> out;
  ++wave_;
  const std::uint64_t granules = split_ / granule_;
  const std::uint64_t until =
      wave_ < waves_ ? granules * wave_ / waves_ * granule_ : split_;  // of each split
  const std::uint64_t last = resident_.end / split_;  // the split that goes on streaming
  for (std::uint64_t split = resident_.begin / split_; split < last; ++split) {
    const std::uint64_t base = split * split_;
    add({std::max(resident_.begin, base + offset_), base + until}, out);
  }
  const bool goes_on = !streamed.empty() && streamed.front().begin < (last + 1) * split_;
  const std::uint64_t end =
      goes_on ? resident_.end : std::max(behind_, std::min(resident_.end, last * split_ + until));
  add({behind_, end}, out);
  behind_ = end;
  offset_ = until;
  return out;
}

std::vector<Tokens> walked(const std::vector<Tokens>& pieces,
                           const std::vector<Tokens>& runs,
                           std::uint64_t end) {
  std::vector<Tokens> out;
  for (const Tokens& piece : pieces) {
    add(piece, out);
  }
  for (const Tokens& run : runs) {
    add({std::max(run.begin, end), run.end}, out);
  }
  return out;
}

}  // namespace kvspan
