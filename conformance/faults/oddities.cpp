// SPDX-License-Identifier: Apache-2.0
// Odd but legal: the option `odd`. Nothing here breaks a rule, so the suite must stay green; they
// keep cases from asking for more than the ABI says. More oddities are options of the stub itself:
// queues=shuffled, queues=one, delay_max_ticks, zero_devices, fail_stops=no.
#include "kvspan/sdk/error.hpp"

#include "edits.hpp"
#include "fault_list.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <tuple>

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

constexpr uint64_t kFewKTypes = 1u << KVSPAN_TYPE_F16 | 1u << KVSPAN_TYPE_Q8_0;
constexpr uint64_t kFewVTypes = 1u << KVSPAN_TYPE_F16 | 1u << KVSPAN_TYPE_Q4_0;
constexpr uint32_t kFewOptions = KVSPAN_OPTION_LSE | KVSPAN_OPTION_WINDOW;
constexpr uint32_t kFewClasses = 1u << KVSPAN_ERROR_E1 | 1u << KVSPAN_ERROR_E2;

/// What is wrong with a shape beyond what the base says.
uint32_t beyond_few(const kvspan_attention_shape_t& shape) {
  const auto in = [](uint64_t set, uint32_t id) { return id < 64 && ((set >> id) & 1u) != 0; };
  return (in(kFewKTypes, shape.k_type) ? 0u : KVSPAN_WHY_K_TYPE) |
         (in(kFewVTypes, shape.v_type) ? 0u : KVSPAN_WHY_V_TYPE) |
         ((shape.options & ~kFewOptions) == 0 ? 0u : KVSPAN_WHY_OPTION) |
         (in(kFewClasses, shape.error_class) ? 0u : KVSPAN_WHY_ERROR_CLASS);
}

/// Refuses a call whose shape is beyond, with the reasons that query gives.
template <class Next, class Ask>
auto few_only(Next next, Ask ask, const char* where) {
  return [next, ask, where](auto* queue, const kvspan_attention_args_t* args, auto... rest) {
    const bool sound = args != nullptr && args->struct_size == sizeof *args &&
                       args->shape != nullptr && args->shape->struct_size == sizeof *args->shape;
    kvspan_attention_caps_t caps = {};
    caps.struct_size = sizeof caps;
    if (queue == nullptr || !sound || beyond_few(*args->shape) == 0 ||
        ask(args->shape, &caps) != KVSPAN_OK) {
      return next(queue, args, rest...);
    }
    kvspan_error_t* const error = std::get<sizeof...(rest) - 1>(std::make_tuple(rest...));
    return sdk::fail_reasons(error, where, caps.reasons, "this shape is not offered: see query");
  };
}

/// Two types a side, two options, no E0: all that a backend for one model may offer.
void few_shapes(Layer& layer) {
  const auto device = std::make_shared<std::atomic<kvspan_device_t*>>(nullptr);
  const auto ask = [next = layer.calls.ask, device](
                       auto* on, const kvspan_attention_shape_t* shape, auto* out, auto* error) {
    const kvspan_result_t result = next(on, shape, out, error);
    if (result == KVSPAN_OK) {
      *device = on;
      if (const uint32_t why = beyond_few(*shape)) {
        out->level = KVSPAN_LEVEL_UNSUPPORTED;
        out->reasons |= why;
        out->nearest_k_type = out->nearest_v_type = KVSPAN_TYPE_F16;
        out->nearest_error_class = KVSPAN_ERROR_E1;
      }
    }
    return result;
  };
  layer.calls.ask = ask;
  layer.calls.rules =
      [next = layer.calls.rules](
          auto* on, kvspan_attention_rule_t* out, auto capacity, auto* count, auto* error) {
        const kvspan_result_t result = next(on, out, capacity, count, error);
        for (uint32_t i = 0; result == KVSPAN_OK && out != nullptr && i < *count; ++i) {
          out[i].k_types &= kFewKTypes;
          out[i].v_types &= kFewVTypes;
          out[i].options &= kFewOptions;
          out[i].error_classes &= kFewClasses;
        }
        return result;
      };
  const auto here = [ask, device](const auto* shape, auto* caps) {
    return device->load() == nullptr
               ? KVSPAN_E_INVALID_ARG
               : ask(device->load(), shape, caps, static_cast<kvspan_error_t*>(nullptr));
  };
  layer.calls.run = few_only(layer.calls.run, here, "attention.run");
  layer.calls.advance = few_only(layer.calls.advance, here, "attention.advance");
  layer.calls.fold = few_only(layer.calls.fold, here, "attention.fold");
  layer.calls.finish = few_only(layer.calls.finish, here, "attention.finish");
}

constexpr Fault kOddities[] = {
    {"few_shapes", few_shapes},
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
