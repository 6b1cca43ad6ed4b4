// SPDX-License-Identifier: Apache-2.0
// The copy table. A copy reads its source when it starts or when it ends, as the seed says, and
// writes when it ends; its segments go in any order. Read next: scheduler.hpp.
#include "kvspan/copy.h"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate_submit.hpp"

#include "queue.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace kvspan::stub {
namespace {

/// Copies larger than this always read at their end: an early read keeps the bytes in host memory.
constexpr std::uint64_t kEarlyBytesMax = 16ull << 20;

constexpr kvspan_copy_limits_t kLimits = {
    sizeof(kvspan_copy_limits_t), kSegmentsMax, 1, 1, 1, 1, 1, kAllocationBytesMax};

std::uint64_t bytes_of(const kvspan_segment_t& segment) {
  return segment.bytes * segment.rows;
}

class CopyBody final : public Body {
 public:
  CopyBody(std::vector<kvspan_segment_t> segments, std::uint64_t bytes)
      : segments_(std::move(segments)), bytes_(bytes) {}

  void start(Random& random) override {
    for (std::size_t left = segments_.size(); left > 1; --left) {
      std::swap(segments_[left - 1], segments_[random.up_to(left - 1)]);
    }
    if (random.up_to(1) == 0 || bytes_ > kEarlyBytesMax) {
      return;
    }
    try {
      early_.resize(bytes_);
    } catch (const std::bad_alloc&) {
      return;  // late is as right as early
    }
    std::byte* next = early_.data();
    for_each_row([&next](const std::byte* source, std::byte*, std::uint64_t bytes) {
      std::memcpy(next, source, bytes);
      next += bytes;
    });
  }

  void finish() override {
    const std::byte* next = early_.empty() ? nullptr : early_.data();
    for_each_row([&next](const std::byte* source, std::byte* target, std::uint64_t bytes) {
      std::memcpy(target, next == nullptr ? source : next, bytes);
      next = next == nullptr ? nullptr : next + bytes;
    });
  }

 private:
  template <class Visit>
  void for_each_row(Visit&& visit) const {
    for (const kvspan_segment_t& segment : segments_) {
      if (segment.bytes == 0) {
        continue;
      }
      for (std::uint64_t row = 0; row < segment.rows; ++row) {
        visit(address_of(segment.source, segment.source_offset + row * segment.source_pitch),
              address_of(segment.target, segment.target_offset + row * segment.target_pitch),
              segment.bytes);
      }
    }
  }

  std::vector<kvspan_segment_t> segments_;
  const std::uint64_t bytes_;
  std::vector<std::byte> early_;
};

class FillBody final : public Body {
 public:
  FillBody(const kvspan_range_t& range, std::uint64_t pattern, std::uint32_t pattern_bytes)
      : range_(range), pattern_(pattern), pattern_bytes_(pattern_bytes) {}

  void finish() override {
    for (std::uint64_t at = 0; at < range_.bytes; at += pattern_bytes_) {
      std::memcpy(address_of(range_.memory, range_.offset + at), &pattern_, pattern_bytes_);
    }
  }

 private:
  const kvspan_range_t range_;
  const std::uint64_t pattern_;  // little end first, as this machine is
  const std::uint32_t pattern_bytes_;
};

kvspan_result_t KVSPAN_CALL copy_copy(kvspan_queue_t* handle,
                                      const kvspan_segment_t* segments,
                                      std::uint32_t count,
                                      const kvspan_submit_t* submit,
                                      kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "copy.copy";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the queue is NULL: pass one");
    }
    Queue& queue = *queue_of(handle);
    const std::lock_guard lock(queue.device.plugin.mutex);
    sdk::Context context(OwnBytes{&queue.device});
    context.spot.place.argument = 2;
    context.limits = &kLimits;
    const sdk::List<kvspan_segment_t> list{segments, count};
    kvspan_result_t bad = sdk::check_segments(list, context, error, kWhere);
    if (bad == KVSPAN_OK) {
      bad = check_prepared(
          queue.device, {&kvspan_prepare_t::segments_max, "copy segments"}, count, error, kWhere);
    }
    if (bad != KVSPAN_OK) {
      return bad;
    }
    Job job;
    std::vector<kvspan_segment_t> kept;
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint64_t bytes = bytes_of(segments[i]);
      if (bytes != 0) {  // the pointers of an empty segment mean nothing
        kept.push_back(segments[i]);
        job.bytes += bytes;
        job.memories.push_back(segments[i].source);
        job.memories.push_back(segments[i].target);
      }
    }
    job.body = std::make_unique<CopyBody>(std::move(kept), job.bytes);
    return enqueue(queue, std::move(job), submit, 4, error, kWhere);
  });
}

kvspan_result_t KVSPAN_CALL copy_fill(kvspan_queue_t* handle,
                                      const kvspan_range_t* range,
                                      std::uint64_t pattern,
                                      std::uint32_t pattern_bytes,
                                      const kvspan_submit_t* submit,
                                      kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "copy.fill";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the queue is NULL: pass one");
    }
    Queue& queue = *queue_of(handle);
    const std::lock_guard lock(queue.device.plugin.mutex);
    sdk::Context context(OwnBytes{&queue.device});
    context.limits = &kLimits;
    const kvspan_result_t bad = sdk::check_fill(range, pattern_bytes, context, error, kWhere);
    if (bad != KVSPAN_OK) {
      return bad;
    }
    Job job;
    job.bytes = range->bytes;
    job.memories.push_back(range->memory);
    job.body = std::make_unique<FillBody>(*range, pattern, pattern_bytes);
    return enqueue(queue, std::move(job), submit, 5, error, kWhere);
  });
}

kvspan_result_t KVSPAN_CALL copy_limits(kvspan_device_t* handle,
                                        kvspan_copy_limits_t* out_limits,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "copy.limits";
  if (handle == nullptr) {
    return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the device is NULL: pass one");
  }
  return sdk::give(out_limits, kLimits, error, kWhere, 2);
}

kvspan_result_t KVSPAN_CALL copy_feedback(kvspan_queue_t* handle,
                                          kvspan_measurement_t* out_measurements,
                                          std::uint32_t capacity,
                                          std::uint32_t* out_count,
                                          kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "copy.feedback";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_count == nullptr ||
        (out_measurements == nullptr && capacity != 0)) {
      const sdk::Place place{handle == nullptr ? 1u : out_count == nullptr ? 4u : 2u};
      return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
    }
    Queue& queue = *queue_of(handle);
    const std::lock_guard lock(queue.device.plugin.mutex);
    const std::size_t taken = std::min<std::size_t>(capacity, queue.measurements.size());
    const auto end = queue.measurements.begin() + static_cast<std::ptrdiff_t>(taken);
    std::copy(queue.measurements.begin(), end, out_measurements);
    queue.measurements.erase(queue.measurements.begin(), end);
    *out_count = static_cast<std::uint32_t>(taken);
    return KVSPAN_OK;
  });
}

}  // namespace

const kvspan_copy_table_t kCopyTable = {
    sizeof(kvspan_copy_table_t), 0, copy_copy, copy_fill, copy_limits, copy_feedback};

}  // namespace kvspan::stub
