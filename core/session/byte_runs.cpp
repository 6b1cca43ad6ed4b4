// SPDX-License-Identifier: Apache-2.0
// Read first: byte_runs.hpp.
#include "byte_runs.hpp"

#include <algorithm>

namespace kvspan {

namespace {

// K or V of a tile.
struct CutSide {
  std::uint64_t offset;  // from the page's start
  std::uint64_t row_bytes;
  std::uint64_t head_bytes;
  std::uint64_t bytes;  // of all heads
};

// Rows [first, end) of each head.
ByteRun run_of(const CutSide& side, std::uint64_t first, std::uint64_t end) {
  const std::uint64_t heads = side.bytes / side.head_bytes;
  return {side.offset + first * side.row_bytes,
          (end - first) * side.row_bytes,
          heads,
          heads == 1 ? 0 : side.head_bytes};
}

void add_part(std::vector<ByteRun>& runs,
              const PageLayout& page,
              std::uint64_t tile,
              std::uint64_t first,
              std::uint64_t end) {
  const std::uint64_t at = tile * page.tile_bytes;
  runs.push_back(run_of({at, page.k_row_bytes, page.k_head_bytes, page.k_tile_bytes}, first, end));
  if (page.v_tile_bytes != 0) {
    runs.push_back(run_of(
        {at + page.v_offset, page.v_row_bytes, page.v_head_bytes, page.v_tile_bytes}, first, end));
  }
}

}  // namespace

std::vector<ByteRun> runs_of(const PageLayout& page, std::uint64_t first_row, std::uint64_t rows) {
  std::vector<ByteRun> runs;
  const std::uint64_t each = page.tile_tokens;
  const std::uint64_t end_row = first_row + rows;
  for (std::uint64_t row = first_row; row < end_row;) {
    const std::uint64_t tile = row / each;
    const std::uint64_t whole = row % each == 0 ? (end_row - row) / each : 0;
    if (whole != 0) {
      runs.push_back({tile * page.tile_bytes, whole * page.tile_bytes, 1, 0});
      row += whole * each;
    } else {
      const std::uint64_t stop = std::min(end_row, (tile + 1) * each);
      add_part(runs, page, tile, row - tile * each, stop - tile * each);
      row = stop;
    }
  }
  return runs;
}

kvspan_segment_t segment_of(const PagePlaces& places, const ByteRun& run) {
  return {places.source,
          places.target,
          places.source_offset + run.offset,
          places.target_offset + run.offset,
          run.bytes,
          run.count,
          run.pitch,
          run.pitch};
}

}  // namespace kvspan
