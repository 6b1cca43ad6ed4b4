// SPDX-License-Identifier: Apache-2.0
// Row groups and split parts; S(n) itself is in memory/budget.hpp, since the planner bounds by it.
#include "kvspan/core/stream/row_groups.hpp"

#include "kvspan/core/memory/budget.hpp"

#include <algorithm>

namespace kvspan {

namespace {

std::uint64_t window_begin(const RowGroupRequest& request, std::uint64_t visible_end) {
  const std::uint64_t window = request.window_tokens;
  return window == 0 || visible_end <= window ? 0 : visible_end - window;
}

// S(n) of a row.
std::uint64_t split_tokens_of(const RowGroupRequest& request, std::uint32_t row) {
  const std::uint64_t end = request.first_token + row + 1;
  return split_tokens(
      end - window_begin(request, end), request.splits, request.granule, request.unit);
}

// The first row behind `row` that has another S, or the end: S never falls from a row to the next,
// and thousands of rows have two or three of them.
std::uint32_t group_end(const RowGroupRequest& request, std::uint32_t row) {
  const std::uint64_t tokens = split_tokens_of(request, row);
  std::uint32_t low = row + 1;
  std::uint32_t high = request.rows;
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (split_tokens_of(request, middle) == tokens) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace

std::vector<RowGroup> row_groups(const RowGroupRequest& request) {
  std::vector<RowGroup> groups;
  for (std::uint32_t row = 0; row < request.rows;) {
    const std::uint32_t end = group_end(request, row);
    const std::uint64_t begin = window_begin(request, request.first_token + row + 1);
    groups.push_back({row,
                      end - row,
                      split_tokens_of(request, row),
                      begin / request.granule * request.granule,
                      request.first_token + end});
    row = end;
  }
  return groups;
}

std::vector<SplitPart> split_parts(const RowGroup& group,
                                   std::uint64_t begin,
                                   std::uint64_t end,
                                   std::uint32_t granule,
                                   std::uint64_t total_tokens) {
  const std::uint64_t rounded = (group.visible_end + granule - 1) / granule * granule;
  const std::uint64_t stop = std::min(rounded, total_tokens);
  std::vector<SplitPart> parts;
  std::uint64_t at = std::max(begin, group.visible_begin);
  const std::uint64_t until = std::min(end, stop);
  while (at < until) {
    SplitPart part;
    part.split = at / group.split_tokens;
    const std::uint64_t split_begin = part.split * group.split_tokens;
    const std::uint64_t split_end = split_begin + group.split_tokens;
    part.begin = at;
    part.end = std::min(until, split_end);
    part.first = at == std::max(split_begin, group.visible_begin);
    part.last = part.end == std::min(split_end, stop);
    parts.push_back(part);
    at = part.end;
  }
  return parts;
}

}  // namespace kvspan
