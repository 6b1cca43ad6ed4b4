// SPDX-License-Identifier: Apache-2.0
// Faults of copy, fill, limits and feedback: bytes that go elsewhere, or not at all.
#include "edits.hpp"
#include "fault_list.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

namespace kvspan::faults {
namespace {

using Segments = std::vector<kvspan_segment_t>;

/// Replaces the segments of copies, as with_edited() does.
void edit_segments(Layer& layer, const std::function<bool(Segments& segments)>& edit) {
  layer.calls.copy = [&layer, edit, next = layer.calls.copy](kvspan_queue_t* queue,
                                                             const kvspan_segment_t* segments,
                                                             uint32_t count,
                                                             const kvspan_submit_t* submit,
                                                             kvspan_error_t* error) {
    return with_edited(layer, segments, count, edit, [&](const auto* own, uint32_t left) {
      return next(queue, own, left, submit, error);
    });
  };
}

/// Changes each segment on its own.
void edit_each_segment(Layer& layer, bool (*edit)(kvspan_segment_t& segment)) {
  edit_segments(layer, [edit](Segments& segments) {
    bool changed = false;
    for (kvspan_segment_t& segment : segments) {
      changed = edit(segment) || changed;
    }
    return changed;
  });
}

void copy_drops_the_last_row(Layer& layer) {
  edit_each_segment(layer, [](kvspan_segment_t& segment) {
    const bool some = segment.rows > 1 && segment.bytes != 0;
    segment.rows -= some ? 1u : 0u;
    return some;
  });
}

/// Offsets through a 32-bit register.
void copy_wraps_at_four_gibibytes(Layer& layer) {
  edit_each_segment(layer, [](kvspan_segment_t& segment) {
    const bool far = segment.source_offset > UINT32_MAX || segment.target_offset > UINT32_MAX;
    segment.source_offset &= UINT32_MAX;
    segment.target_offset &= UINT32_MAX;
    return far;
  });
}

/// Whole words only, and the last one is not cut.
void copy_rounds_bytes_up(Layer& layer) {
  edit_each_segment(layer, [](kvspan_segment_t& segment) {
    const bool odd = segment.rows == 1 && segment.bytes % 16 != 0;
    segment.bytes = odd ? (segment.bytes + 15) / 16 * 16 : segment.bytes;
    return odd;
  });
}

void copy_rounds_bytes_down(Layer& layer) {
  edit_each_segment(layer, [](kvspan_segment_t& segment) {
    const bool odd = segment.bytes > 16 && segment.bytes % 16 != 0;
    segment.bytes = odd ? segment.bytes / 16 * 16 : segment.bytes;
    return odd;
  });
}

void copy_swaps_pitches(Layer& layer) {
  edit_each_segment(layer, [](kvspan_segment_t& segment) {
    std::swap(segment.source_pitch, segment.target_pitch);
    return segment.rows > 1 && segment.source_pitch != segment.target_pitch;
  });
}

/// The batch ends one short.
void copy_drops_the_last_segment(Layer& layer) {
  edit_segments(layer, [](Segments& segments) {
    const bool more = segments.size() > 1 && segments.back().bytes != 0;
    if (more) {
      segments.pop_back();
    }
    return more;
  });
}

/// Nothing to do, so nothing is enqueued: and nobody signals.
void empty_copy_never_signals(Layer& layer) {
  layer.calls.copy = [&layer, next = layer.calls.copy](kvspan_queue_t* queue,
                                                       const kvspan_segment_t* segments,
                                                       uint32_t count,
                                                       const kvspan_submit_t* submit,
                                                       kvspan_error_t* error) {
    const auto empty = [](const kvspan_segment_t& one) { return one.bytes == 0 || one.rows == 0; };
    const bool nothing = count == 0 || (segments != nullptr && count == 1 && empty(segments[0]));
    const bool signals = submit != nullptr && submit->signal_count != 0;
    if (!nothing || queue == nullptr || !signals) {
      return next(queue, segments, count, submit, error);
    }
    layer.ran();
    return kvspan_result_t{KVSPAN_OK};
  };
}

/// Overlap inside a segment goes through, and moves nothing.
void copy_takes_overlap(Layer& layer) {
  layer.calls.copy = [&layer, next = layer.calls.copy](kvspan_queue_t* queue,
                                                       const kvspan_segment_t* segments,
                                                       uint32_t count,
                                                       const kvspan_submit_t* submit,
                                                       kvspan_error_t* error) {
    const kvspan_result_t result = next(queue, segments, count, submit, error);
    if (result != KVSPAN_E_INVALID_ARG || segments == nullptr || count != 1 ||
        segments[0].source != segments[0].target ||
        !inside(segments[0].source, segments[0].source_offset, segments[0].bytes) ||
        !inside(segments[0].target, segments[0].target_offset, segments[0].bytes)) {
      return result;
    }
    layer.ran();
    return next(queue, nullptr, 0, submit, error);
  };
}

/// Ranges of a segment are checked with a sum that may wrap: beyond the end nothing is copied.
void copy_takes_wrapped_ranges(Layer& layer) {
  layer.calls.copy = [&layer, next = layer.calls.copy](kvspan_queue_t* queue,
                                                       const kvspan_segment_t* segments,
                                                       uint32_t count,
                                                       const kvspan_submit_t* submit,
                                                       kvspan_error_t* error) {
    const kvspan_result_t result = next(queue, segments, count, submit, error);
    if (result != KVSPAN_E_INVALID_ARG || segments == nullptr || count == 0 ||
        segments[0].source_offset + segments[0].bytes >= segments[0].source_offset) {
      return result;
    }
    layer.ran();
    return next(queue, nullptr, 0, submit, error);
  };
}

/// Replaces pattern and range of fills.
void edit_fills(Layer& layer,
                bool (*edit)(kvspan_range_t& range, uint64_t& pattern, uint32_t pattern_bytes)) {
  layer.calls.fill = [&layer, edit, next = layer.calls.fill](kvspan_queue_t* queue,
                                                             const kvspan_range_t* range,
                                                             uint64_t pattern,
                                                             uint32_t pattern_bytes,
                                                             const kvspan_submit_t* submit,
                                                             kvspan_error_t* error) {
    if (range == nullptr || range->bytes == 0 || pattern_bytes > 8) {
      return next(queue, range, pattern, pattern_bytes, submit, error);
    }
    kvspan_range_t changed = *range;
    uint64_t other = pattern;
    if (!edit(changed, other, pattern_bytes)) {
      return next(queue, range, pattern, pattern_bytes, submit, error);
    }
    const kvspan_result_t result = next(queue, &changed, other, pattern_bytes, submit, error);
    if (result == KVSPAN_E_INVALID_ARG) {
      return next(queue, range, pattern, pattern_bytes, submit, error);
    }
    layer.ran();
    return result;
  };
}

void fill_is_big_endian(Layer& layer) {
  edit_fills(layer, [](kvspan_range_t&, uint64_t& pattern, uint32_t pattern_bytes) {
    const uint64_t before = pattern;
    const uint32_t shift = 64 - 8 * pattern_bytes;
    pattern = pattern_bytes == 0 ? pattern : __builtin_bswap64(pattern << shift);
    return before != pattern && pattern_bytes > 1;
  });
}

void fill_writes_one_unit_more(Layer& layer) {
  edit_fills(layer, [](kvspan_range_t& range, uint64_t&, uint32_t pattern_bytes) {
    range.bytes += pattern_bytes;
    return true;
  });
}

/// Patterns of eight bytes through a 32-bit fill.
void fill_repeats_the_low_half(Layer& layer) {
  edit_fills(layer, [](kvspan_range_t&, uint64_t& pattern, uint32_t pattern_bytes) {
    const uint64_t low = pattern & UINT32_MAX;
    const uint64_t before = pattern;
    pattern = pattern_bytes == 8 ? low | low << 32 : pattern;
    return before != pattern;
  });
}

/// Says that twice as many segments work.
void limits_promise_too_much(Layer& layer) {
  layer.calls.limits = [&layer, next = layer.calls.limits](
                           auto* device, kvspan_copy_limits_t* out, auto* error) {
    const kvspan_result_t result = next(device, out, error);
    if (result == KVSPAN_OK && out->struct_size >= offsetof(kvspan_copy_limits_t, bytes_max)) {
      out->segments_max *= 2;
      layer.ran();
    }
    return result;
  };
}

/// Changes measurements after they were taken.
void edit_feedback(
    Layer& layer,
    const std::function<void(kvspan_measurement_t* out, uint32_t capacity, uint32_t& count)>&
        edit) {
  layer.calls.feedback = [edit, next = layer.calls.feedback](kvspan_queue_t* queue,
                                                             kvspan_measurement_t* out,
                                                             uint32_t capacity,
                                                             uint32_t* out_count,
                                                             kvspan_error_t* error) {
    const kvspan_result_t result = next(queue, out, capacity, out_count, error);
    if (result == KVSPAN_OK && out != nullptr && out_count != nullptr) {
      edit(out, capacity, *out_count);
    }
    return result;
  };
}

/// A number that somebody once measured.
void feedback_is_constant(Layer& layer) {
  edit_feedback(layer, [&layer](kvspan_measurement_t* out, uint32_t, uint32_t& count) {
    for (uint32_t i = 0; i < count; ++i) {
      out[i].duration_ns = 1000;
      layer.ran();
    }
  });
}

/// The clock is in microseconds.
void feedback_is_in_microseconds(Layer& layer) {
  edit_feedback(layer, [&layer](kvspan_measurement_t* out, uint32_t, uint32_t& count) {
    for (uint32_t i = 0; i < count; ++i) {
      out[i].duration_ns /= 1000;
      layer.ran();
    }
  });
}

/// What was taken is there again the next time.
void feedback_comes_twice(Layer& layer) {
  struct Kept {
    std::mutex mutex;
    std::vector<kvspan_measurement_t> taken;
  };

  auto kept = std::make_shared<Kept>();
  edit_feedback(layer, [&layer, kept](kvspan_measurement_t* out, uint32_t most, uint32_t& count) {
    const std::lock_guard lock(kept->mutex);
    if (count != 0) {
      kept->taken.assign(out, out + count);
      return;
    }
    count = std::min(most, static_cast<uint32_t>(kept->taken.size()));
    std::copy_n(kept->taken.begin(), count, out);
    if (count != 0) {
      layer.ran();
    }
    kept->taken.clear();
  });
}

/// Measures what nobody asked to be measured.
void feedback_measures_everything(Layer& layer) {
  edit_submits(layer, kCopy, [](kvspan_queue_t*, kvspan_submit_t& submit) {
    const bool asked = (submit.flags & KVSPAN_SUBMIT_MEASURE) != 0;
    submit.flags |= KVSPAN_SUBMIT_MEASURE;
    return !asked;
  });
}

constexpr Fault kFaults[] = {
    {"copy_drops_the_last_row", copy_drops_the_last_row},
    {"copy_wraps_at_four_gibibytes", copy_wraps_at_four_gibibytes},
    {"copy_rounds_bytes_up", copy_rounds_bytes_up},
    {"copy_rounds_bytes_down", copy_rounds_bytes_down},
    {"copy_swaps_pitches", copy_swaps_pitches},
    {"copy_drops_the_last_segment", copy_drops_the_last_segment},
    {"empty_copy_never_signals", empty_copy_never_signals},
    {"copy_takes_overlap", copy_takes_overlap},
    {"copy_takes_wrapped_ranges", copy_takes_wrapped_ranges},
    {"fill_is_big_endian", fill_is_big_endian},
    {"fill_writes_one_unit_more", fill_writes_one_unit_more},
    {"fill_repeats_the_low_half", fill_repeats_the_low_half},
    {"limits_promise_too_much", limits_promise_too_much},
    {"feedback_is_constant", feedback_is_constant},
    {"feedback_is_in_microseconds", feedback_is_in_microseconds},
    {"feedback_comes_twice", feedback_comes_twice},
    {"feedback_measures_everything", feedback_measures_everything},
};

}  // namespace

std::span<const Fault> copy_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
