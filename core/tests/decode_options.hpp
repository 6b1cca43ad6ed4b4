// SPDX-License-Identifier: Apache-2.0
// The session that tests of streamed decode share.
#pragma once

#include "kvspan/core/session/session.hpp"

#include "engine_rig.hpp"

#include <cstdint>

namespace kvspan::test {

// Pages of 64 tokens, without padding: K and V in q8_0 and q4_0, in f16, and in f16 behind a window
// of 700. Splits begin inside pages. Everything resident until somebody says otherwise.
inline SessionOptions decode_options(std::uint32_t width, std::uint64_t context_tokens) {
  SessionOptions options;
  options.geometry.layers = {
      {KVSPAN_TYPE_Q8_0, KVSPAN_TYPE_Q4_0, 32, 32, 2, 4},
      {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 32, 32, 2, 4},
      {KVSPAN_TYPE_F16, KVSPAN_TYPE_F16, 32, 32, 1, 4, 700},
  };
  options.geometry.page_tokens = 64;
  options.context_tokens = context_tokens;
  options.prefill_rows_max = 256;
  options.decode_rows = width;
  options.arena_bytes = kResidentArena;
  return options;
}

}  // namespace kvspan::test
