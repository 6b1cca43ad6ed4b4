// SPDX-License-Identifier: Apache-2.0
// Durations as people write them: "500ms", "60s", "10m", "2h". Not here: clocks.
#ifndef KVSPAN_CONFORMANCE_RUNNER_DURATION_H
#define KVSPAN_CONFORMANCE_RUNNER_DURATION_H

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace kvspan::runner {

using Nanoseconds = std::chrono::nanoseconds;
using Clock = std::chrono::steady_clock;

// A number and its unit, more than 0 and at most 1,000 hours; nothing when the text is anything
// else.
[[nodiscard]] std::optional<Nanoseconds> parse_duration(std::string_view text);

// "412 ms", "3.2 s", "4 min 05 s": for people.
[[nodiscard]] std::string spoken(Nanoseconds duration);

}  // namespace kvspan::runner

#endif
