// SPDX-License-Identifier: Apache-2.0
// What attention of resident pages takes: steps of two lengths, and of hardly any.
#pragma once

#include "kvspan/bench/random_pages.hpp"
#include "kvspan/core/backend/backend.hpp"
#include "kvspan/core/error.hpp"

namespace kvspan::bench {

struct AttendRate {
  double bytes_s = 0.0;  // K/V bytes attended a second by a step of one row
  double wave_ns = 0.0;  // of a layer of few tokens beyond their bytes: submits, folds, its own row
};

// Resident steps of one row at two lengths, four times apart; both are made longer until the
// difference is 4 ms, up to 131,072 tokens. Errors: the session's; internal where the longer steps
// are not the slower ones (next: measure again).
[[nodiscard]] Result<AttendRate> attend_rate(const Backend& backend, const RandomPages& pages);

}  // namespace kvspan::bench
