// SPDX-License-Identifier: Apache-2.0
// How a part of kvspan says that it could not do what it was asked: a value, never an exception or
// an exit.
// Not the ABI's error record (kvspan/error.h); from_abi() translates that one into this one.
// Read next: the `message` of an Error is one sentence that names the thing, the limit and the fix.
#pragma once

#include "kvspan/error.h"

#include <tl/expected.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace kvspan {

// Grouped by the caller's next move: correct the request, free or add memory, start over, or report
// it.
enum class Errc {
  invalid_argument,
  unsupported,
  host_memory,
  device_memory,
  workspace,
  too_large,
  cancelled,
  device_lost,
  wait_failed,
  version,
  not_found,
  bad_file,
  io,
  internal,
  busy,
  timeout,
  queue_full
};

// A failure. `required`, `provided` and `missing` are bytes or counts, as the message says; 0 where
// they say nothing. A backend that cannot tell how much device or lockable memory is missing says
// KVSPAN_UNKNOWN_AMOUNT.
// `component` names the part that fell short ("layer 3", "region 7", a slot of the backend); may be
// empty.
struct Error {
  Errc code;
  std::string message;
  std::uint64_t required = 0;
  std::uint64_t provided = 0;
  std::uint64_t missing = 0;
  std::string component = {};  // a default, so that Error{code, message} is complete
};

// A failure without amounts. Any thread.
[[nodiscard]] Error error_of(Errc code, std::string message, std::string component);

// Every function that returns one is marked [[nodiscard]] itself: tl::expected 1.0.0 is not.
template <class T>
using Result = tl::expected<T, Error>;

// What a backend's failed call means here. `doing` is what was attempted, in words ("opening device
// 0"); the message becomes "<doing>: <the backend's sentence>", amounts are kept as they are and
// component is the slot.
// A code that this build does not know is placed by its thousand-range, which is what the range is
// for.
// Call it for failures only: KVSPAN_OK gives Errc::internal. Any thread.
[[nodiscard]] Error from_abi(kvspan_result_t result,
                             const kvspan_error_t& detail,
                             std::string_view doing);

// The code's own spelling, "invalid_argument"; static storage, for reports and tests. Any thread.
[[nodiscard]] std::string_view name(Errc code);

}  // namespace kvspan
