// SPDX-License-Identifier: Apache-2.0
// The width of prefill chunks where the link is known: what a whole prompt costs under a plan,
// which of several plans is best for it, and why. Private to core/memory. Read next:
// kvspan/core/policy/prompt_time.hpp.
#pragma once

#include "memory/budget/basis.hpp"

#include <cstdint>

namespace kvspan {

// Whether a wide chunk's work can be compared with its stream.
[[nodiscard]] bool knows_rows(const StreamOptions& stream);

// Fills the plan's prompt but for its reason: with the best placement in `pool_bytes` for ring and
// resident pages, and with the plan's own. False, where the prompt takes longer than `most_ns`: the
// plan's prompt is not filled then. Nothing to fill, and true, where no link is known.
[[nodiscard]] bool set_prompt(const Basis& basis,
                              std::uint64_t pool_bytes,
                              double most_ns,
                              Plan& plan);

// Why the plan has its chunk, as a value and a sentence. `wider` says whether a wider chunk of the
// ladder would have fitted.
void set_chunk_reason(const Basis& basis, bool wider, Plan& plan);

}  // namespace kvspan
