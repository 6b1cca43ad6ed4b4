// SPDX-License-Identifier: Apache-2.0
// Rows of a page as runs of bytes that a copy may move. Private to core/session.
#pragma once

#include "kvspan/core/layout/geometry.hpp"
#include "kvspan/kvspan.h"

#include <cstdint>
#include <vector>

namespace kvspan {

// `count` runs of `bytes`, `pitch` apart.
struct ByteRun {
  std::uint64_t offset = 0;  // from the page's start
  std::uint64_t bytes = 0;
  std::uint64_t count = 1;
  std::uint64_t pitch = 0;

  [[nodiscard]] bool operator==(const ByteRun&) const = default;
};

// The most runs that rows of a page make: K and V of a begun tile, whole tiles, K and V of another.
inline constexpr std::uint32_t kByteRunsMax = 5;

// Bytes of rows of a page, at least one, in ascending tiles: whole tiles are one run, of others
// each head's rows. Rows lie as far apart as copies must be aligned (Geometry::row_alignment), so
// a copy of rows reaches no other row: one that fails leaves committed neighbours as they are.
[[nodiscard]] std::vector<ByteRun> runs_of(const PageLayout& page,
                                           std::uint64_t first_row,
                                           std::uint64_t rows);

// A run as a segment between two places of the same page.
struct PagePlaces {
  kvspan_memory_t* source;
  std::uint64_t source_offset;  // of the page
  kvspan_memory_t* target;
  std::uint64_t target_offset;
};

[[nodiscard]] kvspan_segment_t segment_of(const PagePlaces& places, const ByteRun& run);

}  // namespace kvspan
