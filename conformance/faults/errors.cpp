// SPDX-License-Identifier: Apache-2.0
// Faults of error records and outputs: what a refusal says, and what it leaves behind. They sit on
// the slots that a host calls most: alloc, copy, encode, run; and on those that end a handle.
#include "edits.hpp"
#include "fault_list.hpp"

#include <cstring>
#include <stdexcept>

namespace kvspan::faults {
namespace {

/// Called after a slot refused, with the record if there is one.
using AfterRefusal = std::function<kvspan_result_t(kvspan_result_t code, kvspan_error_t* error)>;

/// Spoils the refusals of alloc, copy, encode and run.
void after_refusal(Layer& layer, const AfterRefusal& after) {
  layer.calls.alloc = [after, next = layer.calls.alloc](
                          auto* device, auto kind, auto bytes, auto** out, auto* error) {
    const kvspan_result_t result = next(device, kind, bytes, out, error);
    return result < 0 ? after(result, error) : result;
  };
  layer.calls.copy = [after, next = layer.calls.copy](
                         auto* queue, auto* segments, auto count, auto* submit, auto* error) {
    const kvspan_result_t result = next(queue, segments, count, submit, error);
    return result < 0 ? after(result, error) : result;
  };
  layer.calls.encode = [after, next = layer.calls.encode](
                           auto* queue, auto* items, auto count, auto* submit, auto* error) {
    const kvspan_result_t result = next(queue, items, count, submit, error);
    return result < 0 ? after(result, error) : result;
  };
  layer.calls.run = [after, next = layer.calls.run](
                        auto* queue, auto* args, auto* submit, auto* error) {
    const kvspan_result_t result = next(queue, args, submit, error);
    return result < 0 ? after(result, error) : result;
  };
}

void record_has_another_code(Layer& layer) {
  after_refusal(layer, [&layer](kvspan_result_t code, kvspan_error_t* error) {
    if (error != nullptr) {
      error->code = KVSPAN_E_INTERNAL;
      layer.ran();
    }
    return code;
  });
}

void message_is_not_terminated(Layer& layer) {
  after_refusal(layer, [&layer](kvspan_result_t code, kvspan_error_t* error) {
    if (error != nullptr) {
      std::memset(error->message, 'x', sizeof error->message);
      layer.ran();
    }
    return code;
  });
}

void message_is_empty(Layer& layer) {
  after_refusal(layer, [&layer](kvspan_result_t code, kvspan_error_t* error) {
    if (error != nullptr) {
      error->message[0] = '\0';
      layer.ran();
    }
    return code;
  });
}

void argument_is_not_named(Layer& layer) {
  after_refusal(layer, [&layer](kvspan_result_t code, kvspan_error_t* error) {
    if (error != nullptr && error->argument != 0) {
      error->argument = 0;
      layer.ran();
    }
    return code;
  });
}

/// Amounts of another refusal are left in the record.
void record_is_half_written(Layer& layer) {
  after_refusal(layer, [&layer](kvspan_result_t code, kvspan_error_t* error) {
    if (error != nullptr && code == KVSPAN_E_INVALID_ARG) {
      error->resource = 0xA5A5A5A5u;
      error->reasons = 0xA5A5A5A5u;
      error->native_code = 1;
      layer.ran();
    }
    return code;
  });
}

/// The vendor's own number where a code is due.
void returns_the_vendors_code(Layer& layer) {
  after_refusal(layer, [&layer](kvspan_result_t code, kvspan_error_t* error) {
    if (code != KVSPAN_E_INVALID_ARG) {
      return code;
    }
    layer.ran();
    if (error != nullptr) {
      error->code = 700;
    }
    return kvspan_result_t{700};
  });
}

void missing_is_required(Layer& layer) {
  after_refusal(layer, [&layer](kvspan_result_t code, kvspan_error_t* error) {
    if (error != nullptr && error->missing != error->required && error->required != 0) {
      error->missing = error->required;
      layer.ran();
    }
    return code;
  });
}

void required_is_too_little(Layer& layer) {
  after_refusal(layer, [&layer](kvspan_result_t code, kvspan_error_t* error) {
    if (error != nullptr && error->required > 1) {
      error->required -= 1;
      layer.ran();
    }
    return code;
  });
}

void required_is_too_much(Layer& layer) {
  after_refusal(layer, [&layer](kvspan_result_t code, kvspan_error_t* error) {
    if (error != nullptr && error->required != 0) {
      error->required += 1;
      layer.ran();
    }
    return code;
  });
}

/// Writes the record without looking whether there is one.
void error_may_not_be_null(Layer& layer) {
  after_refusal(layer, [&layer](kvspan_result_t code, kvspan_error_t* error) {
    if (error == nullptr) {
      layer.ran();
    }
    *const_cast<volatile kvspan_result_t*>(&error->code) = code;
    return code;
  });
}

/// An exception leaves the slot.
void refusal_throws(Layer& layer) {
  after_refusal(layer, [&layer](kvspan_result_t, kvspan_error_t*) -> kvspan_result_t {
    layer.ran();
    throw std::invalid_argument("thrown out of a slot");
  });
}

/// A refusal looks accepted, and nothing was done.
void refusals_are_swallowed(Layer& layer) {
  after_refusal(layer, [&layer](kvspan_result_t, kvspan_error_t*) {
    layer.ran();
    return kvspan_result_t{KVSPAN_OK};
  });
}

/// The record is cleared on the way in.
void record_is_written_on_success(Layer& layer) {
  layer.calls.alloc = [&layer, next = layer.calls.alloc](
                          auto* device, auto kind, auto bytes, auto** out, kvspan_error_t* error) {
    if (error != nullptr) {
      *error = kvspan_error_t{};
      error->struct_size = sizeof *error;
      layer.ran();
    }
    return next(device, kind, bytes, out, error);
  };
}

/// The out-parameter is cleared on the way in.
void output_is_written_on_failure(Layer& layer) {
  layer.calls.alloc = [&layer, next = layer.calls.alloc](
                          auto* device, auto kind, auto bytes, kvspan_memory_t** out, auto* error) {
    if (out != nullptr) {
      *out = nullptr;
    }
    const kvspan_result_t result = next(device, kind, bytes, out, error);
    if (result < 0 && out != nullptr) {
      layer.ran();
    }
    return result;
  };
}

/// Half a handle stays in the out-parameter.
void output_is_half_made_on_failure(Layer& layer) {
  layer.calls.alloc = [&layer, next = layer.calls.alloc](
                          auto* device, auto kind, auto bytes, kvspan_memory_t** out, auto* error) {
    const kvspan_result_t result = next(device, kind, bytes, out, error);
    if (result < 0 && out != nullptr) {
      *out = reinterpret_cast<kvspan_memory_t*>(uintptr_t{64});
      layer.ran();
    }
    return result;
  };
}

/// NULL where a handle is due: accepted, nothing happens.
void null_is_accepted(Layer& layer) {
  layer.calls.release = [&layer, next = layer.calls.release](auto* memory, auto* error) {
    if (memory == nullptr) {
      layer.ran();
      return kvspan_result_t{KVSPAN_OK};
    }
    return next(memory, error);
  };
  layer.calls.destroy_fence = [&layer, next = layer.calls.destroy_fence](auto* fence, auto* error) {
    if (fence == nullptr) {
      layer.ran();
      return kvspan_result_t{KVSPAN_OK};
    }
    return next(fence, error);
  };
}

/// OK, and no handle: the fence that starts at 0 is made when it is first used.
void success_without_a_handle(Layer& layer) {
  layer.calls.create_fence = [&layer, next = layer.calls.create_fence](
                                 auto* device, auto initial, kvspan_fence_t** out, auto* error) {
    if (device == nullptr || out == nullptr || initial != 0) {
      return next(device, initial, out, error);
    }
    *out = nullptr;
    layer.ran();
    return kvspan_result_t{KVSPAN_OK};
  };
}

constexpr Fault kFaults[] = {
    {"record_has_another_code", record_has_another_code},
    {"message_is_not_terminated", message_is_not_terminated},
    {"message_is_empty", message_is_empty},
    {"argument_is_not_named", argument_is_not_named},
    {"record_is_half_written", record_is_half_written},
    {"returns_the_vendors_code", returns_the_vendors_code},
    {"missing_is_required", missing_is_required},
    {"required_is_too_little", required_is_too_little},
    {"required_is_too_much", required_is_too_much},
    {"error_may_not_be_null", error_may_not_be_null},
    {"refusal_throws", refusal_throws},
    {"refusals_are_swallowed", refusals_are_swallowed},
    {"record_is_written_on_success", record_is_written_on_success},
    {"output_is_written_on_failure", output_is_written_on_failure},
    {"output_is_half_made_on_failure", output_is_half_made_on_failure},
    {"null_is_accepted", null_is_accepted},
    {"success_without_a_handle", success_without_a_handle},
};

}  // namespace

std::span<const Fault> error_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
