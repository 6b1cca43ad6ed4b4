// SPDX-License-Identifier: Apache-2.0
// Read first: byte_runs.hpp.
#include "byte_runs.hpp"

#include <algorithm>

namespace kvspan {

namespace {

ByteRun run_of(std::uint64_t plane_offset,
               std::uint64_t plane_bytes,
               std::uint64_t token_bytes,
               std::uint64_t first_row,
               std::uint64_t rows,
               std::uint64_t alignment) {
  const std::uint64_t begin = first_row * token_bytes / alignment * alignment;
  const std::uint64_t end = (first_row + rows) * token_bytes;
  const std::uint64_t rounded = std::min((end + alignment - 1) / alignment * alignment,
                                         (plane_bytes + alignment - 1) / alignment * alignment);
  return {plane_offset + begin, rounded - begin};
}

}  // namespace

std::vector<ByteRun> runs_of(const PageLayout& page,
                             std::uint64_t first_row,
                             std::uint64_t rows,
                             std::uint64_t alignment) {
  std::vector<ByteRun> runs;
  runs.push_back(run_of(0, page.k_plane_bytes, page.k_token_bytes, first_row, rows, alignment));
  if (page.v_plane_bytes != 0) {
    runs.push_back(
        run_of(page.v_offset, page.v_plane_bytes, page.v_token_bytes, first_row, rows, alignment));
  }
  return runs;
}

std::uint64_t copy_alignment(const kvspan_copy_limits_t& limits) {
  return std::max(
      {limits.source_alignment, limits.target_alignment, limits.bytes_alignment, std::uint64_t{1}});
}

}  // namespace kvspan
