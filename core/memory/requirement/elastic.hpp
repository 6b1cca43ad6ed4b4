// SPDX-License-Identifier: Apache-2.0
// Sharing a gap's free bytes among the regions in it: equal growth, byte by byte, in closed form.
// Private to core/memory.
#pragma once

#include <cstdint>
#include <vector>

namespace kvspan {

struct ElasticRegion {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;      // now; grows
  std::uint64_t preferred = 0;  // at most; the same as bytes or less: does not grow
  std::uint64_t alignment = 1;  // of its offset
};

// Regions that follow each other from `begin`, each at its first aligned offset, and end by `end`.
struct ElasticGap {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::vector<ElasticRegion> regions;  // by offset
};

// Whether everything in the gap fits with its bytes of now.
[[nodiscard]] bool fits(const ElasticGap& gap);

// Grows the regions as lay_out() says. The gap fits before and after.
void grow(ElasticGap& gap);

}  // namespace kvspan
