// SPDX-License-Identifier: Apache-2.0
// Odd but legal: the option `odd`. Nothing here breaks a rule, so the suite must stay green; they
// keep cases from asking for more than the ABI says. More oddities are options of the stub itself:
// queues=shuffled, queues=one, delay_max_ticks, zero_devices, fail_stops=no.
#include "kvspan/sdk/error.hpp"

#include "edits.hpp"
#include "fault_list.hpp"

#include <chrono>
#include <thread>

namespace kvspan::faults {
namespace {

/// The whole table is optional.
void no_attention(Layer& layer) {
  layer.calls.table = [next = layer.calls.table](uint32_t id) {
    return id == KVSPAN_TABLE_ATTENTION ? nullptr : next(id);
  };
}

void no_debug(Layer& layer) {
  layer.calls.table = [next = layer.calls.table](uint32_t id) {
    return id == KVSPAN_TABLE_DEBUG ? nullptr : next(id);
  };
}

/// Looking at a fence and making memory take their time.
void large_delays(Layer& layer) {
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  layer.calls.query = [pause, next = layer.calls.query](auto* fence, auto* out, auto* error) {
    pause();
    return next(fence, out, error);
  };
  layer.calls.alloc = [pause, next = layer.calls.alloc](
                          auto* device, auto kind, auto bytes, auto** out, auto* error) {
    pause();
    return next(device, kind, bytes, out, error);
  };
}

constexpr uint64_t kLargest = 256;

kvspan_result_t refuse(kvspan_error_t* error, const char* where) {
  return sdk::fail_argument(
      error, sdk::Place{2, 0}, where, "an offset or size is no multiple of 256: align it");
}

/// The largest alignments that the ABI allows, and nothing less is accepted.
void large_alignments(Layer& layer) {
  layer.calls.describe = [next = layer.calls.describe](
                             void* self, uint32_t index, kvspan_device_info_t* out, auto* error) {
    const kvspan_result_t result = next(self, index, out, error);
    if (result == KVSPAN_OK && out->struct_size == sizeof *out) {
      out->memory_alignment = kLargest;
      out->import_alignment = 65536;
    }
    return result;
  };
  layer.calls.import_host =
      [next = layer.calls.import_host](
          auto* device, void* address, uint64_t bytes, auto** out, auto* error) {
        const bool odd = (reinterpret_cast<uintptr_t>(address) | bytes) % 65536 != 0;
        return odd ? refuse(error, "memory.import_host") : next(device, address, bytes, out, error);
      };
  layer.calls.limits = [next = layer.calls.limits](
                           auto* device, kvspan_copy_limits_t* out, auto* error) {
    const kvspan_result_t result = next(device, out, error);
    if (result == KVSPAN_OK && out->struct_size == sizeof *out) {
      out->source_alignment = out->target_alignment = out->bytes_alignment = kLargest;
      out->pitch_alignment = out->fill_alignment = kLargest;
    }
    return result;
  };
  layer.calls.copy = [next = layer.calls.copy](
                         auto* queue, auto* segments, uint32_t count, auto* submit, auto* error) {
    for (uint32_t i = 0; segments != nullptr && i < count && i < 65536; ++i) {
      const kvspan_segment_t& one = segments[i];
      const uint64_t pitches = one.rows > 1 ? one.source_pitch | one.target_pitch : 0;
      if (one.bytes != 0 &&
          (one.source_offset | one.target_offset | one.bytes | pitches) % kLargest != 0) {
        const kvspan_result_t first = next(queue, segments, count, nullptr, error);
        return queue == nullptr ? first : refuse(error, "copy.copy");
      }
    }
    return next(queue, segments, count, submit, error);
  };
  layer.calls.fill = [next = layer.calls.fill](auto* queue,
                                               const kvspan_range_t* range,
                                               auto pattern,
                                               auto pattern_bytes,
                                               auto* submit,
                                               auto* error) {
    const bool odd = range != nullptr && (range->offset | range->bytes) % kLargest != 0;
    return odd ? refuse(error, "copy.fill")
               : next(queue, range, pattern, pattern_bytes, submit, error);
  };
}

constexpr Fault kOddities[] = {
    {"no_attention", no_attention},
    {"no_debug", no_debug},
    {"large_alignments", large_alignments},
    {"large_delays", large_delays},
};

}  // namespace

std::span<const Fault> oddities() {
  return kOddities;
}

}  // namespace kvspan::faults
