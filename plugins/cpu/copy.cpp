// SPDX-License-Identifier: Apache-2.0
// The copy table: rows of bytes, patterns, limits, measurements. Read first: queue.hpp.
#include "copy.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate_submit.hpp"

#include "queue.hpp"

#include <cstring>

namespace kvspan::cpu {
namespace {

constexpr kvspan_copy_limits_t kLimits = {
    sizeof(kvspan_copy_limits_t), kSegmentsMax, 1, 1, 1, 1, 1, kAllocationBytesMax};

// A cancel word is looked at every so many bytes.
constexpr uint64_t kCancelBytes = uint64_t{1} << 20;

kvspan_result_t copy_rows(const Execution& execution, const CopyRows& rows) {
  if (rows.bytes == rows.source_pitch && rows.bytes == rows.target_pitch) {
    const CopyRows one{rows.source, rows.target, rows.bytes * rows.rows, 1, 0, 0};
    return rows.rows > 1 ? copy_rows(execution, one) : KVSPAN_OK;
  }
  for (uint64_t row = 0; row < rows.rows; ++row) {
    const uint8_t* source = rows.source + row * rows.source_pitch;
    uint8_t* target = rows.target + row * rows.target_pitch;
    for (uint64_t left = rows.bytes; left > 0;) {
      const uint64_t part = left < kCancelBytes ? left : kCancelBytes;
      if (execution.cancelled()) {
        return KVSPAN_E_CANCELLED;
      }
      std::memcpy(target, source, part);
      source += part;
      target += part;
      left -= part;
    }
  }
  return KVSPAN_OK;
}

kvspan_result_t run_copy(const Execution& execution, const void* body) {
  const CopyBody& copy = *static_cast<const CopyBody*>(body);
  execution.device.counters.launches.fetch_add(copy.count, std::memory_order_relaxed);
  for (uint64_t i = 0; i < copy.count; ++i) {
    if (const kvspan_result_t bad = copy_rows(execution, copy.segments[i])) {
      return bad;
    }
  }
  return KVSPAN_OK;
}

uint64_t bytes_of(const kvspan_segment_t& segment) {
  return segment.bytes * segment.rows;
}

class CopyTask final : public Task {
 public:
  explicit CopyTask(sdk::List<kvspan_segment_t> segments) : segments_(segments) {
    uses_max = 2 * uint64_t{segments.count};
  }

  void lay_out(Cutter& cutter) override { cut_copy(cutter, arrays_, segments_.count); }

  void fill(Packet& packet, Uses& uses) override {
    uint64_t count = 0;
    packet.bytes = 0;
    for (uint32_t i = 0; i < segments_.count; ++i) {
      const kvspan_segment_t& segment = segments_.data[i];
      if (bytes_of(segment) == 0) {
        continue;
      }
      const bool one_row = segment.rows == 1;
      arrays_.segments[count++] = {address_of(segment.source, segment.source_offset),
                                   address_of(segment.target, segment.target_offset),
                                   segment.bytes,
                                   segment.rows,
                                   one_row ? 0 : segment.source_pitch,
                                   one_row ? 0 : segment.target_pitch};
      packet.bytes += bytes_of(segment);
    }
    // Sources first, then targets: neighbours are the same memory more often.
    for (uint32_t i = 0; i < segments_.count; ++i) {
      uses.add(segments_.data[i].source);
    }
    for (uint32_t i = 0; i < segments_.count; ++i) {
      uses.add(segments_.data[i].target);
    }
    *arrays_.body = {arrays_.segments, count};
    packet.body = arrays_.body;
    packet.copies = true;
    packet.execute = run_copy;
  }

 private:
  sdk::List<kvspan_segment_t> segments_;
  CopyArrays arrays_;
};

kvspan_result_t check_segments(const Device& device,
                               const sdk::List<kvspan_segment_t>& segments,
                               kvspan_error_t* error,
                               const char* where) {
  sdk::Context context(OwnBytes{&device});
  context.limits = &kLimits;
  context.spot.place.argument = 2;
  return sdk::check_segments(segments, context, error, where);
}

kvspan_result_t KVSPAN_CALL copy_copy(kvspan_queue_t* handle,
                                      const kvspan_segment_t* segments,
                                      uint32_t count,
                                      const kvspan_submit_t* submit,
                                      kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "copy.copy";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, {1}, kWhere, "the queue is NULL: pass one");
    }
    Queue& queue = *queue_of(handle);
    const sdk::List<kvspan_segment_t> list{segments, count};
    if (const kvspan_result_t bad = check_segments(queue.device(), list, error, kWhere)) {
      return bad;
    }
    if (const kvspan_result_t bad =
            check_prepared(queue.device(), &Limits::segments, count, "segments", error, kWhere)) {
      return bad;
    }
    CopyTask task(list);
    return queue.submit(task, submit, 4, error, kWhere);
  });
}

struct FillBody {
  uint8_t* target;
  uint64_t bytes;
  uint64_t pattern;
  uint32_t pattern_bytes;
};

kvspan_result_t run_fill(const Execution& execution, const void* body) {
  const FillBody& fill = *static_cast<const FillBody*>(body);
  execution.device.counters.launches.fetch_add(1, std::memory_order_relaxed);
  for (uint64_t at = 0; at < fill.bytes; at += fill.pattern_bytes) {
    if (at % kCancelBytes == 0 && execution.cancelled()) {
      return KVSPAN_E_CANCELLED;
    }
    std::memcpy(fill.target + at, &fill.pattern, fill.pattern_bytes);
  }
  return KVSPAN_OK;
}

class FillTask final : public Task {
 public:
  FillTask(const kvspan_range_t& range, uint64_t pattern, uint32_t pattern_bytes)
      : range_(range), pattern_(pattern), pattern_bytes_(pattern_bytes) {
    uses_max = 1;
  }

  void lay_out(Cutter& cutter) override { cutter.cut(body_, 1); }

  void fill(Packet& packet, Uses& uses) override {
    *body_ = {address_of(range_.memory, range_.offset), range_.bytes, pattern_, pattern_bytes_};
    uses.add(range_.memory);
    packet.body = body_;
    packet.bytes = range_.bytes;
    packet.execute = run_fill;
  }

 private:
  kvspan_range_t range_;
  uint64_t pattern_;
  uint32_t pattern_bytes_;
  FillBody* body_ = nullptr;
};

kvspan_result_t KVSPAN_CALL copy_fill(kvspan_queue_t* handle,
                                      const kvspan_range_t* range,
                                      uint64_t pattern,
                                      uint32_t pattern_bytes,
                                      const kvspan_submit_t* submit,
                                      kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "copy.fill";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, {1}, kWhere, "the queue is NULL: pass one");
    }
    Queue& queue = *queue_of(handle);
    sdk::Context context(OwnBytes{&queue.device()});
    context.limits = &kLimits;
    if (const kvspan_result_t bad = sdk::check_fill(range, pattern_bytes, context, error, kWhere)) {
      return bad;
    }
    FillTask task(*range, pattern, pattern_bytes);
    return queue.submit(task, submit, 5, error, kWhere);
  });
}

kvspan_result_t KVSPAN_CALL copy_limits(kvspan_device_t* handle,
                                        kvspan_copy_limits_t* out_limits,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "copy.limits";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the device is NULL: pass one");
  }
  return sdk::give(out_limits, kLimits, error, kWhere, 2);
}

kvspan_result_t KVSPAN_CALL copy_feedback(kvspan_queue_t* handle,
                                          kvspan_measurement_t* out_measurements,
                                          uint32_t capacity,
                                          uint32_t* out_count,
                                          kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "copy.feedback";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_count == nullptr ||
        (out_measurements == nullptr && capacity != 0)) {
      const uint32_t argument = handle == nullptr ? 1u : out_count == nullptr ? 4u : 2u;
      return sdk::fail_argument(error, {argument}, kWhere, "an argument is NULL: pass one");
    }
    *out_count = queue_of(handle)->take_measurements(out_measurements, capacity);
    return KVSPAN_OK;
  });
}

}  // namespace

const kvspan_copy_table_t kCopyTable = {
    sizeof(kvspan_copy_table_t), 0, copy_copy, copy_fill, copy_limits, copy_feedback};

}  // namespace kvspan::cpu
