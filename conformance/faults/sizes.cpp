// SPDX-License-Identifier: Apache-2.0
// Faults of struct sizes: structs that come in with another size, structs that go out over it.
#include "edits.hpp"
#include "fault_list.hpp"

namespace kvspan::faults {
namespace {

/// Reads a submit whatever its size says.
void submit_size_is_ignored(Layer& layer) {
  layer.calls.copy =
      [&layer, next = layer.calls.copy](
          auto* queue, auto* segments, auto count, const kvspan_submit_t* submit, auto* error) {
        if (submit == nullptr || submit->struct_size == sizeof *submit) {
          return next(queue, segments, count, submit, error);
        }
        kvspan_submit_t right = *submit;
        right.struct_size = sizeof right;
        layer.ran();
        return next(queue, segments, count, &right, error);
      };
}

/// Takes any larger size for a newer host's.
void larger_sizes_are_taken(Layer& layer) {
  layer.calls.create_queue =
      [&layer, next = layer.calls.create_queue](
          auto* device, const kvspan_queue_options_t* options, auto** out, auto* error) {
        if (options == nullptr || options->struct_size <= sizeof *options) {
          return next(device, options, out, error);
        }
        kvspan_queue_options_t right = *options;
        right.struct_size = sizeof right;
        layer.ran();
        return next(device, &right, out, error);
      };
}

/// Takes shorter shapes and reads behind their end.
void shorter_shapes_are_taken(Layer& layer) {
  layer.calls.ask =
      [&layer, next = layer.calls.ask](
          auto* device, const kvspan_attention_shape_t* shape, auto* out, auto* error) {
        if (shape == nullptr || shape->struct_size >= sizeof *shape) {
          return next(device, shape, out, error);
        }
        kvspan_attention_shape_t right = *shape;
        right.struct_size = sizeof right;
        layer.ran();
        return next(device, &right, out, error);
      };
}

/// Writes its whole struct into the caller's smaller one.
void output_is_overrun(Layer& layer) {
  layer.calls.limits = [&layer, next = layer.calls.limits](
                           auto* device, kvspan_copy_limits_t* out, auto* error) {
    if (out == nullptr || out->struct_size < sizeof(uint32_t) || out->struct_size >= sizeof *out) {
      return next(device, out, error);
    }
    out->struct_size = sizeof *out;
    layer.ran();
    return next(device, out, error);
  };
}

/// Does not say how much it wrote.
void output_size_is_not_stored(Layer& layer) {
  layer.calls.limits = [&layer, next = layer.calls.limits](
                           auto* device, kvspan_copy_limits_t* out, auto* error) {
    const uint32_t given = out != nullptr ? out->struct_size : 0;
    const kvspan_result_t result = next(device, out, error);
    if (result == KVSPAN_OK && out->struct_size != given) {
      out->struct_size = given;
      layer.ran();
    }
    return result;
  };
}

/// Reserved fields that are not 0 pass.
void reserved_fields_are_ignored(Layer& layer) {
  layer.calls.create_queue =
      [&layer, next = layer.calls.create_queue](
          auto* device, const kvspan_queue_options_t* options, auto** out, auto* error) {
        if (options == nullptr || options->struct_size != sizeof *options ||
            options->reserved == 0) {
          return next(device, options, out, error);
        }
        kvspan_queue_options_t right = *options;
        right.reserved = 0;
        layer.ran();
        return next(device, &right, out, error);
      };
}

constexpr Fault kFaults[] = {
    {"submit_size_is_ignored", submit_size_is_ignored},
    {"larger_sizes_are_taken", larger_sizes_are_taken},
    {"shorter_shapes_are_taken", shorter_shapes_are_taken},
    {"output_is_overrun", output_is_overrun},
    {"output_size_is_not_stored", output_size_is_not_stored},
    {"reserved_fields_are_ignored", reserved_fields_are_ignored},
};

}  // namespace

std::span<const Fault> size_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
