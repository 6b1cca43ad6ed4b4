// SPDX-License-Identifier: Apache-2.0
// Whether the rows that a copy segment reads meet the rows that it writes, exactly: interleaved
// columns of one matrix do not overlap although their bounding boxes do.
#pragma once

#include "kvspan/copy.h"

#include <cstdint>

namespace kvspan::sdk {
namespace detail {

__extension__ typedef __int128 Wide;  // differences and products of 64-bit offsets

/// Whether some k in [-(rows - 1), rows - 1] has |distance + k * pitch| < bytes; pitch > 0.
inline bool equal_pitch_overlap(Wide distance, Wide pitch, Wide bytes, Wide rows) noexcept {
  const Wide apart = distance < 0 ? -distance : distance;
  Wide k = apart / pitch;  // the two multiples around it are nearest
  k = k < rows - 1 ? k : rows - 1;
  const Wide below = apart - k * pitch;
  const Wide above = k + 1 <= rows - 1 ? (k + 1) * pitch - apart : bytes;
  return below < bytes || above < bytes;
}

/// Whether [start, start + bytes) meets one of `rows` rows of `bytes` bytes, pitch >= bytes apart,
/// the first at `first`: only the row at or before start and the one behind it can.
inline bool meets_rows(Wide start, Wide bytes, Wide first, Wide pitch, Wide rows) noexcept {
  const Wide row = start <= first ? 0 : (start - first) / pitch;
  const Wide here = first + row * pitch;
  const bool meets_here = row < rows && start < here + bytes && here < start + bytes;
  return meets_here || (row + 1 < rows && here + pitch < start + bytes);
}

}  // namespace detail

/// Source and target of `segment` are one memory and both lie inside it; target_pitch >= bytes
/// where there is more than one row. Constant time, but for two pitches that differ: then one step
/// a source row that lies within the target's bounds.
inline bool sides_overlap(const kvspan_segment_t& segment) noexcept {
  using detail::Wide;
  const Wide bytes = segment.bytes;
  const Wide rows = segment.rows;
  const Wide source = segment.source_offset;
  const Wide target = segment.target_offset;
  const Wide source_pitch = rows > 1 ? segment.source_pitch : 0;
  const Wide target_pitch = rows > 1 ? segment.target_pitch : 0;
  const Wide source_end = source + (rows - 1) * source_pitch + bytes;
  const Wide target_end = target + (rows - 1) * target_pitch + bytes;
  if (source_end <= target || target_end <= source) {
    return false;
  }
  if (rows == 1) {
    return true;
  }
  if (source_pitch == target_pitch) {
    return detail::equal_pitch_overlap(target - source, source_pitch, bytes, rows);
  }
  if (source_pitch == 0) {
    return detail::meets_rows(source, bytes, target, target_pitch, rows);
  }
  Wide row = source + bytes > target ? 0 : (target - source - bytes) / source_pitch;
  for (; row < rows && source + row * source_pitch < target_end; ++row) {
    const Wide start = source + row * source_pitch;
    if (detail::meets_rows(start, bytes, target, target_pitch, rows)) {
      return true;
    }
  }
  return false;
}

}  // namespace kvspan::sdk
