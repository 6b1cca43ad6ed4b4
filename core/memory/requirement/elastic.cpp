// SPDX-License-Identifier: Apache-2.0
// A byte that does not fit now never will, since the others only grow: so whole rounds can be taken
// at once, by bisection, up to the first in which somebody is refused.
#include "memory/requirement/elastic.hpp"

#include "kvspan/core/layout/checked.hpp"

#include <algorithm>
#include <numeric>

namespace kvspan {
namespace {

std::uint64_t room(const ElasticRegion& region) {
  return region.preferred > region.bytes ? region.preferred - region.bytes : 0;
}

// Each of `growing` has `rounds` bytes more, or what it prefers.
ElasticGap after_rounds(const ElasticGap& gap,
                        const std::vector<std::size_t>& growing,
                        std::uint64_t rounds) {
  ElasticGap grown = gap;
  for (const std::size_t index : growing) {
    grown.regions[index].bytes += std::min(rounds, room(gap.regions[index]));
  }
  return grown;
}

}  // namespace

bool fits(const ElasticGap& gap) {
  std::uint64_t at = gap.begin;
  for (const ElasticRegion& region : gap.regions) {
    const auto offset = checked_align_up(at, region.alignment);
    if (!offset || *offset > gap.end || region.bytes > gap.end - *offset) {
      return false;
    }
    at = *offset + region.bytes;
  }
  return true;
}

void grow(ElasticGap& gap) {
  std::vector<std::size_t> growing(gap.regions.size());
  std::iota(growing.begin(), growing.end(), 0);
  std::sort(growing.begin(), growing.end(), [&gap](std::size_t left, std::size_t right) {
    return gap.regions[left].id < gap.regions[right].id;
  });
  for (;;) {
    const auto is_full = [&gap](std::size_t index) { return room(gap.regions[index]) == 0; };
    growing.erase(std::remove_if(growing.begin(), growing.end(), is_full), growing.end());
    if (growing.empty()) {
      return;
    }
    std::uint64_t most = 0;
    for (const std::size_t index : growing) {
      most = std::max(most, room(gap.regions[index]));
    }
    std::uint64_t good = 0;
    for (std::uint64_t bad = most; good < bad;) {  // the most whole rounds that fit
      const std::uint64_t middle = good + (bad - good - 1) / 2 + 1;
      if (fits(after_rounds(gap, growing, middle))) {
        good = middle;
      } else {
        bad = middle - 1;
      }
    }
    gap = after_rounds(gap, growing, good);
    const auto is_stuck = [&gap](std::size_t index) {
      if (room(gap.regions[index]) == 0) {
        return true;
      }
      ++gap.regions[index].bytes;
      const bool stuck = !fits(gap);
      gap.regions[index].bytes -= stuck ? 1 : 0;
      return stuck;
    };
    growing.erase(std::remove_if(growing.begin(), growing.end(), is_stuck), growing.end());
  }
}

}  // namespace kvspan
