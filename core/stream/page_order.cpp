// SPDX-License-Identifier: Apache-2.0
// page_order(): a cursor a split, a run of pages of each in turn, some splits or all at once.
#include "kvspan/core/stream/page_order.hpp"

#include <algorithm>

namespace kvspan {

namespace {

std::vector<PageUnit> in_order(const PageOrderRequest& request) {
  std::vector<PageUnit> units;
  for (std::uint64_t page = request.first_page; page < request.end_page; ++page) {
    units.push_back({page, 0, request.page_tokens});
  }
  return units;
}

// Tokens of a split that are still to come.
struct Cursor {
  std::uint64_t next;
  std::uint64_t end;
  std::uint64_t turn;  // its first
};

// The units of these splits, in turns, behind `units`.
void feed(const PageOrderRequest& request,
          std::vector<Cursor> cursors,
          std::vector<PageUnit>& units) {
  const std::uint64_t page_tokens = request.page_tokens;
  for (std::uint64_t turn = 0; !cursors.empty(); ++turn) {
    for (Cursor& cursor : cursors) {
      const std::uint32_t pages = turn < cursor.turn ? 0 : request.run_pages;
      for (std::uint32_t page_of = 0; page_of < pages && cursor.next != cursor.end; ++page_of) {
        const std::uint64_t page = cursor.next / page_tokens;
        const std::uint64_t stop = std::min(cursor.end, (page + 1) * page_tokens);
        units.push_back({page,
                         static_cast<std::uint32_t>(cursor.next % page_tokens),
                         static_cast<std::uint32_t>(stop - cursor.next)});
        cursor.next = stop;
      }
    }
    std::erase_if(cursors, [](const Cursor& cursor) { return cursor.next == cursor.end; });
  }
}

}  // namespace

std::vector<PageUnit> page_order(const PageOrderRequest& request) {
  const std::uint64_t page_tokens = request.page_tokens;
  const std::uint64_t split_tokens = request.split_tokens;
  if (split_tokens < 2 * page_tokens) {
    return in_order(request);
  }
  const std::uint64_t begin = request.first_page * page_tokens;
  const std::uint64_t end = request.end_page * page_tokens;
  std::vector<Cursor> cursors;
  for (std::uint64_t at = begin; at < end;) {
    const std::uint64_t seen = std::max(at, request.first_token);
    const std::uint64_t split_end = (seen / split_tokens + 1) * split_tokens;
    cursors.push_back(
        {at, std::min(split_end, end), seen % split_tokens / (request.run_pages * page_tokens)});
    at = split_end;
  }
  std::vector<PageUnit> units;
  units.reserve(request.end_page - request.first_page + cursors.size());
  // As few rounds as it takes, alike in size.
  const std::size_t most = request.splits_at_once == 0 ? cursors.size() : request.splits_at_once;
  const std::size_t rounds = cursors.empty() ? 0 : (cursors.size() + most - 1) / most;
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto first = static_cast<std::ptrdiff_t>(cursors.size() * round / rounds);
    const auto last = static_cast<std::ptrdiff_t>(cursors.size() * (round + 1) / rounds);
    feed(request, {cursors.begin() + first, cursors.begin() + last}, units);
  }
  return units;
}

}  // namespace kvspan
