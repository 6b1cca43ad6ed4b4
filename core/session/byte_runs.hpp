// SPDX-License-Identifier: Apache-2.0
// Rows of a page as runs of bytes that a copy may move. Private to core/session.
#pragma once

#include "kvspan/core/layout/geometry.hpp"
#include "kvspan/kvspan.h"

#include <cstdint>
#include <vector>

namespace kvspan {

struct ByteRun {
  std::uint64_t offset = 0;  // from the page's start
  std::uint64_t bytes = 0;
};

// Bytes of rows in each plane, widened to `alignment`. Planes begin and end on it, so the widening
// stays in the plane; it takes along neighbours that are equal on both sides, or dead rows that
// nobody reads.
[[nodiscard]] std::vector<ByteRun> runs_of(const PageLayout& page,
                                           std::uint64_t first_row,
                                           std::uint64_t rows,
                                           std::uint64_t alignment);

// A multiple of all alignments of a copy.
[[nodiscard]] std::uint64_t copy_alignment(const kvspan_copy_limits_t& limits);

}  // namespace kvspan
