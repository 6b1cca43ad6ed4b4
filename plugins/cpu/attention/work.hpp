// SPDX-License-Identifier: Apache-2.0
// Does an attention submit: cuts it into units that the team's threads take. Read next: work.cpp.
#pragma once

#include "kvspan/result.h"

#include "queue.hpp"

namespace kvspan::cpu {

// `opaque` is an AttentionBody. OK, or CANCELLED when the cancel word was seen between units.
kvspan_result_t run_attention(const Execution& execution, const void* opaque);

}  // namespace kvspan::cpu
