// SPDX-License-Identifier: Apache-2.0
// Checks of what every submit carries, and of the items of the copy and codec tables.
// Not here: attention (validate_attention.hpp, validate_items.hpp); that fences belong to the
// device and grow, and that memories stay alive: only their owner knows.
#pragma once

#include "kvspan/codec.h"
#include "kvspan/copy.h"
#include "kvspan/queue.h"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/validate_overlap.hpp"
#include "kvspan/sdk/validate_plane.hpp"
#include "kvspan/sdk/validate_range.hpp"

#include <cstddef>
#include <cstdint>

namespace kvspan::sdk {
namespace detail {

template <class BytesOf>
kvspan_result_t check_points(const List<kvspan_point_t>& points,
                             const Context<BytesOf>& context,
                             kvspan_error_t* error,
                             const char* where) noexcept {
  if (const kvspan_result_t bad = check_list(points, UINT32_MAX, context, error, where)) {
    return bad;
  }
  for (std::uint32_t i = 0; i < points.count; ++i) {
    if (points.data[i].fence == nullptr) {
      return refuse(context.spot, error, where, "point %u has no fence: name one", i);
    }
  }
  return KVSPAN_OK;
}

/// Offsets, sizes and pitches are multiples of the device's alignments.
template <class BytesOf>
kvspan_result_t check_segment_alignment(const kvspan_segment_t& segment,
                                        const Context<BytesOf>& context,
                                        kvspan_error_t* error,
                                        const char* where) noexcept {
  struct Field {
    const char* name;
    std::size_t offset;
    std::uint64_t value;
    std::uint64_t alignment;
  };

  const kvspan_copy_limits_t& limits = *context.limits;
  const std::uint64_t pitch = segment.rows > 1 ? limits.pitch_alignment : 1;
  const Field fields[] = {
      {"source_offset",
       offsetof(kvspan_segment_t, source_offset),
       segment.source_offset,
       limits.source_alignment},
      {"target_offset",
       offsetof(kvspan_segment_t, target_offset),
       segment.target_offset,
       limits.target_alignment},
      {"bytes", offsetof(kvspan_segment_t, bytes), segment.bytes, limits.bytes_alignment},
      {"source_pitch", offsetof(kvspan_segment_t, source_pitch), segment.source_pitch, pitch},
      {"target_pitch", offsetof(kvspan_segment_t, target_pitch), segment.target_pitch, pitch},
  };
  for (const Field& field : fields) {
    const Context<BytesOf> at = context.at(nullptr, field.offset);
    const kvspan_result_t bad =
        check_multiple(field.name, field.value, field.alignment, at, error, where);
    if (bad != KVSPAN_OK) {
      return bad;
    }
  }
  return KVSPAN_OK;
}

}  // namespace detail

/// The struct, its counts, its points' fences and its cancel word; unknown flags are refused. The
/// context's place.argument is the position of `submit`.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_submit(const kvspan_submit_t* submit,
                                           const Context<BytesOf>& context,
                                           kvspan_error_t* error,
                                           const char* where) noexcept {
  if (const kvspan_result_t bad = take(submit, error, where, context.spot.place.argument)) {
    return bad;
  }
  if ((submit->flags & ~KVSPAN_SUBMIT_MEASURE) != 0) {
    return refuse(context.at("submit", offsetof(kvspan_submit_t, flags)).spot,
                  error,
                  where,
                  "unknown flags 0x%x: use KVSPAN_SUBMIT_* only",
                  submit->flags);
  }
  const List<kvspan_point_t> waits{submit->waits, submit->wait_count};
  const List<kvspan_point_t> signals{submit->signals, submit->signal_count};
  const auto at_waits = context.at("submit waits", offsetof(kvspan_submit_t, waits));
  if (const kvspan_result_t bad = detail::check_points(waits, at_waits, error, where)) {
    return bad;
  }
  const auto at_signals = context.at("submit signals", offsetof(kvspan_submit_t, signals));
  if (const kvspan_result_t bad = detail::check_points(signals, at_signals, error, where)) {
    return bad;
  }
  if (submit->cancel_memory == nullptr) {
    return KVSPAN_OK;
  }
  const auto at_cancel = context.at("submit cancel word", offsetof(kvspan_submit_t, cancel_offset));
  const kvspan_range_t word{submit->cancel_memory, submit->cancel_offset, 4};
  return check_range_use(RangeUse{&word, 4, 4}, at_cancel, error, where);
}

/// Both sides inside their memories, on the device's alignments, without overlap of what is read
/// with what is written or of written rows with each other. No rows or no bytes touch nothing.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_segment(const kvspan_segment_t& segment,
                                            const Context<BytesOf>& context,
                                            kvspan_error_t* error,
                                            const char* where) noexcept {
  if (segment.bytes == 0 || segment.rows == 0) {
    return KVSPAN_OK;
  }
  Extent source(segment.source_offset);
  source.add(segment.rows - 1, segment.rows > 1 ? segment.source_pitch : 0).add(segment.bytes, 1);
  const auto at_source = context.at("source", offsetof(kvspan_segment_t, source_offset));
  kvspan_result_t bad = detail::check_end(source, segment.source, at_source, error, where);
  if (bad != KVSPAN_OK) {
    return bad;
  }
  Extent target(segment.target_offset);
  target.add(segment.rows - 1, segment.rows > 1 ? segment.target_pitch : 0).add(segment.bytes, 1);
  const auto at_target = context.at("target", offsetof(kvspan_segment_t, target_offset));
  bad = detail::check_end(target, segment.target, at_target, error, where);
  if (bad == KVSPAN_OK && context.limits != nullptr) {
    bad = detail::check_segment_alignment(segment, context, error, where);
  }
  if (bad != KVSPAN_OK) {
    return bad;
  }
  if (segment.rows > 1 && segment.target_pitch < segment.bytes) {
    return refuse(context.at("target", offsetof(kvspan_segment_t, target_pitch)).spot,
                  error,
                  where,
                  "a pitch of %llu lets rows of %llu bytes overlap: use a pitch of at least that",
                  detail::number(segment.target_pitch),
                  detail::number(segment.bytes));
  }
  if (segment.source == segment.target && sides_overlap(segment)) {
    return refuse(
        at_target.spot, error, where, "it overlaps its own source: copy through other memory");
  }
  return KVSPAN_OK;
}

/// Every segment, their number and their bytes together against the device's limits. Overlap
/// between segments is the caller's duty.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_segments(const List<kvspan_segment_t>& segments,
                                             const Context<BytesOf>& context,
                                             kvspan_error_t* error,
                                             const char* where) noexcept {
  const std::uint64_t count_max =
      context.limits != nullptr ? context.limits->segments_max : UINT32_MAX;
  const auto at_list = context.at("segments", UINT32_MAX);
  if (const kvspan_result_t bad = detail::check_list(segments, count_max, at_list, error, where)) {
    return bad;
  }
  Extent total(0);
  for (std::uint32_t i = 0; i < segments.count; ++i) {
    const auto at_segment = context.element("segment", i);
    if (const kvspan_result_t bad = check_segment(segments.data[i], at_segment, error, where)) {
      return bad;
    }
    total.add(segments.data[i].rows, segments.data[i].bytes);
  }
  const std::uint64_t bytes_max =
      context.limits != nullptr ? context.limits->bytes_max : UINT64_MAX;
  if (!total.fits() || total.bytes() > bytes_max) {
    return refuse(context.at("segments", offsetof(kvspan_segment_t, bytes)).spot,
                  error,
                  where,
                  "%llu bytes in one submit, %llu allowed: use more submits",
                  detail::number(total.fits() ? total.bytes() : UINT64_MAX),
                  detail::number(bytes_max));
  }
  return KVSPAN_OK;
}

/// What the copy table's fill takes: pattern of 1, 2, 4 or 8 bytes that divides the range. The
/// range is argument 2 of the slot, pattern_bytes argument 4.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_fill(const kvspan_range_t* range,
                                         std::uint32_t pattern_bytes,
                                         const Context<BytesOf>& context,
                                         kvspan_error_t* error,
                                         const char* where) noexcept {
  if (range == nullptr) {
    return fail_argument(error, Place{2}, where, "the range is NULL: pass one");
  }
  if (pattern_bytes == 0 || pattern_bytes > 8 || (pattern_bytes & (pattern_bytes - 1)) != 0) {
    return fail_argument(
        error, Place{4}, where, "a pattern of %u bytes: use one of 1, 2, 4 or 8", pattern_bytes);
  }
  Context<BytesOf> at_range = context.at("range", offsetof(kvspan_range_t, offset));
  at_range.spot.place.argument = 2;
  if (const kvspan_result_t bad = check_range(*range, at_range, error, where)) {
    return bad;
  }
  const std::uint64_t limit = context.limits != nullptr ? context.limits->fill_alignment : 1;
  if (const kvspan_result_t bad =
          detail::check_multiple("offset", range->offset, limit, at_range, error, where)) {
    return bad;
  }
  Context<BytesOf> at_bytes = at_range.at("range", offsetof(kvspan_range_t, bytes));
  const std::uint64_t multiple = limit > pattern_bytes ? limit : pattern_bytes;
  return detail::check_multiple("bytes", range->bytes, multiple, at_bytes, error, where);
}

/// One codec item: rows and plane inside their memories. No rows touch nothing.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_codec_item(const kvspan_codec_item_t& item,
                                               const Context<BytesOf>& context,
                                               kvspan_error_t* error,
                                               const char* where) noexcept {
  const auto at_rows = context.at("rows", offsetof(kvspan_codec_item_t, rows));
  const RowsUse rows{&item.rows, item.row_count, item.head_count, item.head_size};
  if (const kvspan_result_t bad = check_rows(rows, at_rows, error, where)) {
    return bad;
  }
  const auto at_plane = context.at("plane", offsetof(kvspan_codec_item_t, plane));
  const PlaneUse plane{
      &item.plane, item.type, item.first_token, item.row_count, item.head_count, item.head_size};
  return check_plane(plane, at_plane, error, where);
}

/// Every item, and their number against context.items_max.
template <class BytesOf>
[[nodiscard]] kvspan_result_t check_codec_items(const List<kvspan_codec_item_t>& items,
                                                const Context<BytesOf>& context,
                                                kvspan_error_t* error,
                                                const char* where) noexcept {
  const auto at_list = context.at("items", UINT32_MAX);
  if (const kvspan_result_t bad =
          detail::check_list(items, context.items_max, at_list, error, where)) {
    return bad;
  }
  for (std::uint32_t i = 0; i < items.count; ++i) {
    const auto at_item = context.element("item", i);
    if (const kvspan_result_t bad = check_codec_item(items.data[i], at_item, error, where)) {
      return bad;
    }
  }
  return KVSPAN_OK;
}

}  // namespace kvspan::sdk
