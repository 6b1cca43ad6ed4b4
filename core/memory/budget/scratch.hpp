// SPDX-License-Identifier: Apache-2.0
// Scratch and tails of a chunk width. Private to core/memory.
#pragma once

#include "memory/budget/basis.hpp"

namespace kvspan {

// What steps of `rows` prefill rows, and the request's decode rows, need beside pages. Asks the
// request's capabilities. Errors: layer_capabilities().
[[nodiscard]] Result<Candidate> candidate(const Basis& basis, std::uint32_t rows);

}  // namespace kvspan
