// SPDX-License-Identifier: Apache-2.0
// The whole transformer again, attention included, in double precision and plain loops: what the
// product is held against. Shares nothing with it but the meaning of the tensor names.
// Read next: oracle_transformer.cpp.
#pragma once

#include "tests/tiny_model.hpp"

#include <cstdint>
#include <vector>

namespace kvspan::model::testing {

// Logits of every row: [row][vocabulary]. Row r attends to rows 0..r.
[[nodiscard]] std::vector<std::vector<double>> oracle_logits(
    const TinyModel& model, const std::vector<std::uint32_t>& tokens);

}  // namespace kvspan::model::testing
