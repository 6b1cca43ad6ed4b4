// SPDX-License-Identifier: Apache-2.0
// The copy table: rows of bytes, patterns, limits, measurements. Single rows to or from the card go
// to the copy engine, in one batch a submit: a copy of its own costs as much time as 130 KiB. The
// rest is done by a kernel. Read first: queue.hpp.
#include "copy.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate_submit.hpp"

#include "queue.hpp"

namespace kvspan::cuda {
namespace {

constexpr kvspan_copy_limits_t kLimits = {
    sizeof(kvspan_copy_limits_t), kSegmentsMax, 1, 1, 1, 1, 1, kAllocationBytesMax};

cudaError_t issue_engine(const Issue& issue, const CopyBody& copy) {
  if (copy.engine_count == 1) {
    return cudaMemcpyAsync(
        copy.targets[0], copy.sources[0], copy.sizes[0], cudaMemcpyDefault, issue.stream);
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  std::size_t first = 0;  // the attributes hold from this copy on
  return cudaMemcpyBatchAsync(copy.targets,
                              copy.sources,
                              copy.sizes,
                              copy.engine_count,
                              &attributes,
                              &first,
                              1,
                              issue.stream);
}

cudaError_t issue_copy(const Issue& issue, const void* body) {
  const CopyBody& copy = *static_cast<const CopyBody*>(body);
  if (copy.engine_count != 0) {
    if (const cudaError_t bad = issue_engine(issue, copy)) {
      return bad;
    }
  }
  if (copy.count == 0) {
    return cudaSuccess;
  }
  issue.device.counters.launches.fetch_add(1, std::memory_order_relaxed);
  return launch_copy(issue.stream, copy.segments, copy.count, copy.units, issue.cancel);
}

uint64_t bytes_of(const kvspan_segment_t& segment) {
  return segment.bytes * segment.rows;
}

class CopyTask final : public Task {
 public:
  explicit CopyTask(sdk::List<kvspan_segment_t> segments)
      : Task(Kind::copies), segments_(segments) {
    uses_max = 2 * uint64_t{segments.count};
  }

  void lay_out(Cutter& cutter) override { cut_copy(cutter, arrays_, segments_.count); }

  void fill(Packet& packet, Uses& uses) override {
    CopyBody& body = *arrays_.body;
    body = {arrays_.segments, 0, 0, arrays_.targets, arrays_.sources, arrays_.sizes, 1};
    packet.bytes = 0;
    for (uint32_t i = 0; i < segments_.count; ++i) {
      if (bytes_of(segments_.data[i]) != 0) {
        add(body, segments_.data[i]);
        packet.bytes += bytes_of(segments_.data[i]);
      }
    }
    // Sources first, then targets: neighbours are the same memory more often.
    for (uint32_t i = 0; i < segments_.count; ++i) {
      uses.add(segments_.data[i].source);
    }
    for (uint32_t i = 0; i < segments_.count; ++i) {
      uses.add(segments_.data[i].target);
    }
    packet.body = arrays_.body;
    packet.issue = issue_copy;
  }

 private:
  static void add(CopyBody& body, const kvspan_segment_t& segment) {
    const uint8_t* const source = address_of(segment.source, segment.source_offset);
    uint8_t* const target = address_of(segment.target, segment.target_offset);
    const bool dense = segment.rows == 1 || (segment.source_pitch == segment.bytes &&
                                             segment.target_pitch == segment.bytes);
    const Memory& from = *memory_of(segment.source);
    const Memory& to = *memory_of(segment.target);
    // Between two host memories the engine's call would run on the calling thread.
    const bool crosses = from.kind == KVSPAN_MEMORY_DEVICE || to.kind == KVSPAN_MEMORY_DEVICE;
    if (dense && crosses && !from.pieced && !to.pieced) {
      body.targets[body.engine_count] = target;
      body.sources[body.engine_count] = source;
      body.sizes[body.engine_count++] = bytes_of(segment);
      return;
    }
    const CopyRows rows{source,
                        target,
                        dense ? bytes_of(segment) : segment.bytes,
                        dense ? 1 : segment.rows,
                        segment.source_pitch,
                        segment.target_pitch};
    const uint64_t units = units_of(rows.bytes, rows.rows);
    body.units = units > body.units ? units : body.units;
    body.segments[body.count++] = rows;
  }

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

cudaError_t issue_fill(const Issue& issue, const void* body) {
  const FillBody& fill = *static_cast<const FillBody*>(body);
  if (fill.bytes == 0) {
    return cudaSuccess;
  }
  issue.device.counters.launches.fetch_add(1, std::memory_order_relaxed);
  return launch_fill(issue.stream, fill, issue.cancel);
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
    packet.body_bytes = sizeof *body_;
    packet.bytes = range_.bytes;
    packet.issue = issue_fill;
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

}  // namespace kvspan::cuda
