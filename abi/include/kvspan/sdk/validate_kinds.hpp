// SPDX-License-Identifier: Apache-2.0
// Which kinds of memory the spans of a call may lie in. A plugin says which kind a memory is.
// Read first: validate_attention.hpp, which has checked everything else about the spans.
#pragma once

#include "kvspan/attention.h"
#include "kvspan/sdk/error.hpp"

#include <cstddef>
#include <cstdint>

namespace kvspan::sdk {

/// Spans lie only in memory of the kinds that the shape names. `kind_of` is
/// uint32_t(kvspan_memory_t*), of memories of this device. args as check_attention_args accepts
/// them.
template <class KindOf>
[[nodiscard]] kvspan_result_t check_span_kinds(const kvspan_attention_args_t& args,
                                               const KindOf& kind_of,
                                               kvspan_error_t* error,
                                               const char* where) noexcept {
  const bool latent = (args.shape->options & KVSPAN_OPTION_V_IN_K) != 0;
  const auto fits = [&](const kvspan_plane_t& plane) {
    return (args.shape->memory_kinds >> kind_of(plane.memory) & 1) != 0;
  };
  for (std::uint32_t i = 0; i < args.entry_count; ++i) {
    const kvspan_entry_t& entry = args.entries[i];
    for (std::uint32_t s = 0; s < entry.span_count; ++s) {
      const kvspan_span_t& span = entry.spans[s];
      if (span.token_count != 0 && !(fits(span.k) && (latent || fits(span.v)))) {
        return fail_argument(error,
                             {2, offsetof(kvspan_attention_args_t, entries)},
                             where,
                             "entry %u span %u lies in a kind of memory that the shape does not "
                             "name: ask query with it in memory_kinds",
                             i,
                             s);
      }
    }
  }
  return KVSPAN_OK;
}

}  // namespace kvspan::sdk
