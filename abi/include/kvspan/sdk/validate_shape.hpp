// SPDX-License-Identifier: Apache-2.0
// Whether a question about attention makes sense. Not here: whether the answer is yes.
#pragma once

#include "kvspan/attention_shape.h"
#include "kvspan/memory.h"
#include "kvspan/sdk/fill.hpp"

#include <cstddef>
#include <cstdint>

namespace kvspan::sdk {
namespace detail {

inline constexpr std::uint32_t kAllOptions =
    KVSPAN_OPTION_WINDOW | KVSPAN_OPTION_SUFFIX_MASK | KVSPAN_OPTION_SOFT_CAP |
    KVSPAN_OPTION_SINKS | KVSPAN_OPTION_ALIBI | KVSPAN_OPTION_V_IN_K | KVSPAN_OPTION_LSE;
inline constexpr std::uint32_t kAllMemoryKinds =
    1u << KVSPAN_MEMORY_DEVICE | 1u << KVSPAN_MEMORY_HOST | 1u << KVSPAN_MEMORY_IMPORTED;

}  // namespace detail

/// The fields of a question make sense: what query answers INVALID_ARG to. `argument` is its
/// position. Whether it is offered is the plugin's to say: types, sizes and ratios are not judged.
[[nodiscard]] inline kvspan_result_t check_shape(const kvspan_attention_shape_t* shape,
                                                 kvspan_error_t* error,
                                                 const char* where,
                                                 std::uint32_t argument = 2) noexcept {
  if (const kvspan_result_t bad = take(shape, error, where, argument)) {
    return bad;
  }

  struct Rule {
    bool broken;
    std::size_t field;
    const char* sentence;
  };

  const bool latent = (shape->options & KVSPAN_OPTION_V_IN_K) != 0;
  const Rule rules[] = {
      {(shape->options & ~detail::kAllOptions) != 0,
       offsetof(kvspan_attention_shape_t, options),
       "options has unknown bits: use KVSPAN_OPTION_* only"},
      {shape->head_size_k == 0,
       offsetof(kvspan_attention_shape_t, head_size_k),
       "head_size_k is 0: give elements"},
      {shape->head_size_v == 0,
       offsetof(kvspan_attention_shape_t, head_size_v),
       "head_size_v is 0: give elements"},
      {shape->q_heads == 0,
       offsetof(kvspan_attention_shape_t, q_heads),
       "q_heads is 0: give heads"},
      {shape->kv_heads == 0,
       offsetof(kvspan_attention_shape_t, kv_heads),
       "kv_heads is 0: give heads"},
      {latent && shape->v_type != shape->k_type,
       offsetof(kvspan_attention_shape_t, v_type),
       "v_type differs from k_type with V_IN_K: make them equal"},
      {latent && shape->head_size_v > shape->head_size_k,
       offsetof(kvspan_attention_shape_t, head_size_v),
       "head_size_v exceeds head_size_k with V_IN_K: V is a part of K's row"},
      {shape->row_class > KVSPAN_ROWS_PREFILL,
       offsetof(kvspan_attention_shape_t, row_class),
       "row_class is unknown: use KVSPAN_ROWS_*"},
      {shape->error_class > KVSPAN_ERROR_E2,
       offsetof(kvspan_attention_shape_t, error_class),
       "error_class is unknown: use KVSPAN_ERROR_E*"},
      {shape->memory_kinds == 0 || (shape->memory_kinds & ~detail::kAllMemoryKinds) != 0,
       offsetof(kvspan_attention_shape_t, memory_kinds),
       "memory_kinds is empty or has unknown bits: use 1u << KVSPAN_MEMORY_*"},
      {shape->rows_max == 0, offsetof(kvspan_attention_shape_t, rows_max), "rows_max is 0"},
      {shape->reserved != 0,
       offsetof(kvspan_attention_shape_t, reserved),
       "reserved is not 0: set it to 0"},
  };
  for (const Rule& rule : rules) {
    if (rule.broken) {
      const Place place{argument, static_cast<std::uint32_t>(rule.field)};
      return fail_argument(error, place, where, "shape: %s", rule.sentence);
    }
  }
  return KVSPAN_OK;
}

}  // namespace kvspan::sdk
