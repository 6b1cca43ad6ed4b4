// SPDX-License-Identifier: Apache-2.0
// Faults of what attention says it can do: query, rules and behaviour differ, or an amount is
// wrong.
#include "fault_list.hpp"

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

namespace kvspan::faults {
namespace {

using CapsEdit =
    std::function<bool(const kvspan_attention_shape_t& shape, kvspan_attention_caps_t& caps)>;

/// Changes answers of query; `edit` says whether it made a difference.
void edit_caps(Layer& layer, const CapsEdit& edit) {
  layer.calls.ask = [&layer, edit, next = layer.calls.ask](kvspan_device_t* device,
                                                           const kvspan_attention_shape_t* shape,
                                                           kvspan_attention_caps_t* out,
                                                           kvspan_error_t* error) {
    const kvspan_result_t result = next(device, shape, out, error);
    if (result == KVSPAN_OK && out->struct_size == sizeof *out && edit(*shape, *out)) {
      layer.ran();
    }
    return result;
  };
}

void query_depends_on_the_call(Layer& layer) {
  auto calls = std::make_shared<std::atomic<uint32_t>>(0);
  edit_caps(layer, [calls](const auto&, kvspan_attention_caps_t& caps) {
    const bool second = ++*calls % 2 == 0 && caps.split_count != 0;
    caps.split_count += second ? 1u : 0u;
    return second;
  });
}

/// N follows the memory that is left.
void query_depends_on_free_memory(Layer& layer) {
  auto held = std::make_shared<std::atomic<uint64_t>>(0);
  layer.calls.alloc = [held, next = layer.calls.alloc](
                          auto* device, auto kind, uint64_t bytes, auto** out, auto* error) {
    const kvspan_result_t result = next(device, kind, bytes, out, error);
    *held += result == KVSPAN_OK ? bytes : 0;
    return result;
  };
  edit_caps(layer, [held](const auto&, kvspan_attention_caps_t& caps) {
    const bool less = *held > (uint64_t{4} << 20) && caps.split_count > 1;
    caps.split_count = less ? caps.split_count / 2 : caps.split_count;
    return less;
  });
}

/// A rule of the list is behind its end.
void rules_omit_the_last(Layer& layer) {
  layer.calls.rules = [&layer, next = layer.calls.rules](kvspan_device_t* device,
                                                         kvspan_attention_rule_t* out,
                                                         uint32_t capacity,
                                                         uint32_t* out_count,
                                                         kvspan_error_t* error) {
    const kvspan_result_t result = next(device, out, capacity, out_count, error);
    if (result == KVSPAN_OK && *out_count > 0) {
      --*out_count;
      layer.ran();
    }
    return result;
  };
}

/// A pair of types that query grants stands in no rule.
void rules_omit_a_type(Layer& layer) {
  layer.calls.rules = [&layer, next = layer.calls.rules](kvspan_device_t* device,
                                                         kvspan_attention_rule_t* out,
                                                         uint32_t capacity,
                                                         uint32_t* out_count,
                                                         kvspan_error_t* error) {
    const kvspan_result_t result = next(device, out, capacity, out_count, error);
    for (uint32_t i = 0; result == KVSPAN_OK && out != nullptr && i < capacity && i < *out_count;
         ++i) {
      out[i].v_types &= ~(uint64_t{1} << KVSPAN_TYPE_Q8_0);
      layer.ran();
    }
    return result;
  };
}

void nearest_does_not_work(Layer& layer) {
  edit_caps(layer, [](const auto&, kvspan_attention_caps_t& caps) {
    const bool refused = caps.level == KVSPAN_LEVEL_UNSUPPORTED && caps.nearest_head_size_k != 0;
    if (refused) {
      caps.nearest_head_size_k = 7;
      caps.nearest_head_size_v = 7;
    }
    return refused;
  });
}

void change_workspaces(Layer& layer, uint64_t (*change)(uint64_t bytes)) {
  edit_caps(layer, [change](const auto&, kvspan_attention_caps_t& caps) {
    bool changed = false;
    for (uint64_t* bytes : {&caps.run_workspace_bytes,
                            &caps.advance_workspace_bytes,
                            &caps.fold_workspace_bytes,
                            &caps.finish_workspace_bytes}) {
      const uint64_t other = change(*bytes);
      changed = changed || other != *bytes;
      *bytes = other;
    }
    return changed;
  });
}

void workspace_is_one_short(Layer& layer) {
  change_workspaces(layer, [](uint64_t bytes) { return bytes - (bytes != 0 ? 1 : 0); });
}

void workspace_is_one_over(Layer& layer) {
  change_workspaces(layer, [](uint64_t bytes) { return bytes + 1; });
}

void workspace_is_constant(Layer& layer) {
  change_workspaces(layer, [](uint64_t) { return uint64_t{1} << 20; });
}

/// An amount grows with the history.
void workspace_grows_with_tokens(Layer& layer) {
  edit_caps(layer, [](const kvspan_attention_shape_t& shape, kvspan_attention_caps_t& caps) {
    caps.run_workspace_bytes += shape.tokens_max / 1024;
    return shape.tokens_max >= 1024;
  });
}

/// N follows the rows.
void splits_depend_on_rows(Layer& layer) {
  edit_caps(layer, [](const kvspan_attention_shape_t& shape, kvspan_attention_caps_t& caps) {
    const bool wide = shape.rows_max > 16 && caps.split_count > 1;
    caps.split_count = wide ? caps.split_count / 2 : caps.split_count;
    return wide;
  });
}

/// The reasons of a refused call are not those of query.
void refusal_has_other_reasons(Layer& layer) {
  layer.calls.run = [&layer, next = layer.calls.run](
                        auto* queue, auto* args, auto* submit, kvspan_error_t* error) {
    const kvspan_result_t result = next(queue, args, submit, error);
    if (result == KVSPAN_E_UNSUPPORTED && error != nullptr && error->reasons != 0) {
      error->reasons = KVSPAN_WHY_ENTRIES;
      layer.ran();
    }
    return result;
  };
}

void unsupported_has_no_reason(Layer& layer) {
  edit_caps(layer, [](const auto&, kvspan_attention_caps_t& caps) {
    const bool refused = caps.level == KVSPAN_LEVEL_UNSUPPORTED;
    caps.reasons = 0;
    return refused;
  });
}

void granule_is_too_large(Layer& layer) {
  edit_caps(layer, [](const auto&, kvspan_attention_caps_t& caps) {
    caps.span_granule = 128;
    return true;
  });
}

void takes_few_spans(Layer& layer) {
  edit_caps(layer, [](const auto&, kvspan_attention_caps_t& caps) {
    caps.spans_max = 512;
    return true;
  });
}

/// Says native to types that it does not know.
void claims_what_it_refuses(Layer& layer) {
  edit_caps(layer, [](const kvspan_attention_shape_t& shape, kvspan_attention_caps_t& caps) {
    const bool unknown = caps.level == KVSPAN_LEVEL_UNSUPPORTED && shape.head_size_k == 80;
    if (unknown) {
      caps.level = KVSPAN_LEVEL_NATIVE;
      caps.reasons = 0;
    }
    return unknown;
  });
}

/// Says no to a pair that works.
void hides_a_pair(Layer& layer) {
  edit_caps(layer, [](const kvspan_attention_shape_t& shape, kvspan_attention_caps_t& caps) {
    const bool pair = caps.level != KVSPAN_LEVEL_UNSUPPORTED && shape.k_type == KVSPAN_TYPE_Q8_0 &&
                      shape.v_type == KVSPAN_TYPE_Q4_0;
    if (pair) {
      caps.level = KVSPAN_LEVEL_UNSUPPORTED;
      caps.reasons = KVSPAN_WHY_PAIR;
    }
    return pair;
  });
}

/// Room for m alone.
void state_bytes_forget_l(Layer& layer) {
  edit_caps(layer, [](const auto&, kvspan_attention_caps_t& caps) {
    caps.state_ml_bytes /= 2;
    return caps.state_ml_bytes != 0;
  });
}

void does_not_promise_to_repeat(Layer& layer) {
  edit_caps(layer, [](const auto&, kvspan_attention_caps_t& caps) {
    caps.determinism &= ~KVSPAN_REPEATABLE;
    return true;
  });
}

/// Asked for E0, answers that E1 will be met.
void error_class_is_looser(Layer& layer) {
  edit_caps(layer, [](const kvspan_attention_shape_t& shape, kvspan_attention_caps_t& caps) {
    const bool tight = shape.error_class == KVSPAN_ERROR_E0;
    caps.error_class = tight ? KVSPAN_ERROR_E1 : caps.error_class;
    return tight;
  });
}

/// Native by name; each run converts K and V first, and only the counter knows.
void converts_in_silence(Layer& layer) {
  auto runs = std::make_shared<std::atomic<uint64_t>>(0);
  layer.calls.run = [&layer, runs, next = layer.calls.run](
                        auto* queue, auto* args, auto* submit, auto* error) {
    const kvspan_result_t result = next(queue, args, submit, error);
    if (result == KVSPAN_OK) {
      ++*runs;
      layer.ran();
    }
    return result;
  };
  layer.calls.counters = [runs, next = layer.calls.counters](
                             auto* device, kvspan_debug_counters_t* out, auto* error) {
    const kvspan_result_t result = next(device, out, error);
    if (result == KVSPAN_OK && out->struct_size == sizeof *out) {
      out->conversions += *runs;
    }
    return result;
  };
}

constexpr Fault kFaults[] = {
    {"query_depends_on_the_call", query_depends_on_the_call},
    {"query_depends_on_free_memory", query_depends_on_free_memory},
    {"rules_omit_the_last", rules_omit_the_last},
    {"rules_omit_a_type", rules_omit_a_type},
    {"nearest_does_not_work", nearest_does_not_work},
    {"workspace_is_one_short", workspace_is_one_short},
    {"workspace_is_one_over", workspace_is_one_over},
    {"workspace_is_constant", workspace_is_constant},
    {"workspace_grows_with_tokens", workspace_grows_with_tokens},
    {"splits_depend_on_rows", splits_depend_on_rows},
    {"refusal_has_other_reasons", refusal_has_other_reasons},
    {"unsupported_has_no_reason", unsupported_has_no_reason},
    {"granule_is_too_large", granule_is_too_large},
    {"takes_few_spans", takes_few_spans},
    {"claims_what_it_refuses", claims_what_it_refuses},
    {"hides_a_pair", hides_a_pair},
    {"state_bytes_forget_l", state_bytes_forget_l},
    {"does_not_promise_to_repeat", does_not_promise_to_repeat},
    {"error_class_is_looser", error_class_is_looser},
    {"converts_in_silence", converts_in_silence},
};

}  // namespace

std::span<const Fault> capability_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
