// SPDX-License-Identifier: Apache-2.0
// Choosing the next token from logits: greedy only, so that the same logits always make the same
// text.
// Read next: transformer.hpp, where logits come from.
#pragma once

#include "kvspan/core/error.hpp"

#include <cstdint>
#include <span>

namespace kvspan::model {

// The id of the largest logit, the lowest id among equals. logits: [vocabulary]. [any-thread]
// Errors: invalid_argument (no logits), internal (a logit is not a number: the model or the
// attention went wrong).
[[nodiscard]] Result<std::uint32_t> greedy_token(std::span<const float> logits);

}  // namespace kvspan::model
