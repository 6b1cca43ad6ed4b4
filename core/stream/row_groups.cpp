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

}  // namespace

std::vector<RowGroup> row_groups(const RowGroupRequest& request) {
  std::vector<RowGroup> groups;
  for (std::uint32_t row = 0; row < request.rows; ++row) {
    const std::uint64_t end = request.first_token + row + 1;
    const std::uint64_t begin = window_begin(request, end);
    const std::uint64_t tokens =
        split_tokens(end - begin, request.splits, request.granule, request.unit);
    if (groups.empty() || groups.back().split_tokens != tokens) {
      groups.push_back({row, 0, tokens, begin / request.granule * request.granule, 0});
    }
    ++groups.back().rows;
    groups.back().visible_end = end;
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
