// SPDX-License-Identifier: Apache-2.0
// Read first: copy_parts.hpp.
#include "copy_parts.hpp"

#include "kvspan/core/backend/backend.hpp"

#include <algorithm>
#include <cstdint>

namespace kvspan {

namespace {

std::uint64_t bytes_of(const kvspan_segment_t& segment) {
  return segment.rows * segment.bytes;
}

// The first part of a segment, at most `bytes_max`: whole rows, or of one row whole units; what it
// takes is gone from the segment.
kvspan_segment_t take(kvspan_segment_t& segment, std::uint64_t bytes_max, std::uint64_t unit) {
  kvspan_segment_t first = segment;
  if (segment.rows > 1) {
    first.rows = std::clamp<std::uint64_t>(bytes_max / segment.bytes, 1, segment.rows);
    segment.source_offset += first.rows * segment.source_pitch;
    segment.target_offset += first.rows * segment.target_pitch;
    segment.rows -= first.rows;
  } else {
    const std::uint64_t most = std::max(bytes_max / unit * unit, unit);
    first.bytes = std::min(segment.bytes, most);
    segment.source_offset += first.bytes;
    segment.target_offset += first.bytes;
    segment.bytes -= first.bytes;
    segment.rows = segment.bytes == 0 ? 0 : 1;
  }
  return first;
}

// A row that is larger than a submit may be: its rows come one by one.
void split_rows(std::vector<kvspan_segment_t>& out,
                const kvspan_segment_t& segment,
                std::uint64_t bytes_max) {
  if (segment.rows <= 1 || segment.bytes <= bytes_max) {
    out.push_back(segment);
    return;
  }
  for (std::uint64_t row = 0; row < segment.rows; ++row) {
    kvspan_segment_t one = segment;
    one.rows = 1;
    one.source_offset += row * segment.source_pitch;
    one.target_offset += row * segment.target_pitch;
    out.push_back(one);
  }
}

}  // namespace

bool fits_one_copy(const std::vector<kvspan_segment_t>& segments,
                   const kvspan_copy_limits_t& limits) {
  std::uint64_t bytes = 0;
  for (const kvspan_segment_t& segment : segments) {
    bytes += bytes_of(segment);
  }
  return segments.size() <= limits.segments_max && bytes <= limits.bytes_max;
}

std::vector<std::vector<kvspan_segment_t>> copy_parts(const std::vector<kvspan_segment_t>& segments,
                                                      const kvspan_copy_limits_t& limits) {
  const std::uint64_t unit = copy_alignment(limits);
  std::vector<kvspan_segment_t> rows;
  for (const kvspan_segment_t& segment : segments) {
    split_rows(rows, segment, limits.bytes_max);
  }
  std::vector<std::vector<kvspan_segment_t>> parts;
  std::uint64_t room = 0;
  for (kvspan_segment_t rest : rows) {
    while (bytes_of(rest) != 0) {
      const bool fits = !parts.empty() && parts.back().size() < limits.segments_max &&
                        std::min(bytes_of(rest), rest.rows > 1 ? rest.bytes : unit) <= room;
      if (!fits) {
        parts.emplace_back();
        room = limits.bytes_max;
      }
      parts.back().push_back(take(rest, room, unit));
      room -= std::min(room, bytes_of(parts.back().back()));
    }
  }
  return parts;
}

}  // namespace kvspan
