// SPDX-License-Identifier: Apache-2.0
// The copy table: bytes from segments to segments, and fills. The SDK checks the arguments; a body
// moves the bytes on the queue's thread. Replace the two bodies by your copy engine, and the limits
// by what it can do: within them everything must work, beyond them everything is refused.
#include "kvspan/copy.h"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate_submit.hpp"

#include "queue.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

namespace mine {
namespace {

namespace sdk = kvspan::sdk;

constexpr kvspan_copy_limits_t kLimits = {
    sizeof(kvspan_copy_limits_t), kSegmentsMax, 1, 1, 1, 1, 1, kAllocationBytesMax};

void copy_segment(const kvspan_segment_t& segment) {
  for (uint64_t row = 0; row < segment.rows; ++row) {
    std::memcpy(address_of(segment.target, segment.target_offset + row * segment.target_pitch),
                address_of(segment.source, segment.source_offset + row * segment.source_pitch),
                segment.bytes);
  }
}

Job copy_job(const kvspan_segment_t* segments, uint32_t count) {
  Job job;
  std::vector<kvspan_segment_t> kept;
  for (uint32_t i = 0; i < count; ++i) {
    if (segments[i].bytes != 0 && segments[i].rows != 0) {  // an empty one's pointers mean nothing
      kept.push_back(segments[i]);
      job.memories.push_back(segments[i].source);
      job.memories.push_back(segments[i].target);
      job.bytes += segments[i].bytes * segments[i].rows;
    }
  }
  job.body = [kept = std::move(kept)] { std::for_each(kept.begin(), kept.end(), copy_segment); };
  return job;
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
    const std::lock_guard lock(queue.device.mutex);
    sdk::Context context(OwnBytes{&queue.device});
    context.spot.place.argument = 2;
    context.limits = &kLimits;
    const sdk::List<kvspan_segment_t> list{segments, count};
    if (const kvspan_result_t bad = sdk::check_segments(list, context, error, kWhere)) {
      return bad;
    }
    const PreparedLimit limit{&kvspan_prepare_t::segments_max, "copy segments"};
    if (const kvspan_result_t bad = check_prepared(queue.device, limit, count, error, kWhere)) {
      return bad;
    }
    return enqueue(queue, copy_job(segments, count), submit, 4, error, kWhere);
  });
}

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
    const std::lock_guard lock(queue.device.mutex);
    sdk::Context context(OwnBytes{&queue.device});
    context.limits = &kLimits;
    if (const kvspan_result_t bad = sdk::check_fill(range, pattern_bytes, context, error, kWhere)) {
      return bad;
    }
    Job job;
    job.memories.push_back(range->memory);
    job.bytes = range->bytes;
    job.body = [range = *range, pattern, pattern_bytes] {  // little end first, as this machine is
      for (uint64_t at = 0; at < range.bytes; at += pattern_bytes) {
        std::memcpy(address_of(range.memory, range.offset + at), &pattern, pattern_bytes);
      }
    };
    return enqueue(queue, std::move(job), submit, 5, error, kWhere);
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
  if (handle == nullptr || out_count == nullptr || (out_measurements == nullptr && capacity != 0)) {
    const sdk::Place place{handle == nullptr ? 1u : out_count == nullptr ? 4u : 2u};
    return sdk::fail_argument(error, place, "copy.feedback", "a pointer is NULL: pass one");
  }
  Queue& queue = *queue_of(handle);
  const std::lock_guard lock(queue.device.mutex);
  const auto taken = std::min<std::size_t>(capacity, queue.measurements.size());
  const auto end = queue.measurements.begin() + static_cast<std::ptrdiff_t>(taken);
  std::copy(queue.measurements.begin(), end, out_measurements);
  queue.measurements.erase(queue.measurements.begin(), end);
  *out_count = static_cast<uint32_t>(taken);
  return KVSPAN_OK;
}

}  // namespace

const kvspan_copy_table_t kCopyTable = {
    sizeof(kvspan_copy_table_t), 0, copy_copy, copy_fill, copy_limits, copy_feedback};

}  // namespace mine
