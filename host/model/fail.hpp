// SPDX-License-Identifier: Apache-2.0
// One line to return a failure from any function of the model: the code, and the sentence as an fmt
// format string.
// Not an error type of its own: the type is kvspan::Error, which every part shares.
// Read next: kvspan/core/error.hpp.
#pragma once

#include "kvspan/core/error.hpp"

#include <fmt/format.h>

#include <utility>

namespace kvspan::model {

// The failure `code` whose message is `format` filled with `args`; component is "model".
// [any-thread]
template <class... Args>
[[nodiscard]] tl::unexpected<Error> fail(Errc code,
                                         fmt::format_string<Args...> format,
                                         Args&&... args) {
  return tl::unexpected<Error>(
      error_of(code, fmt::format(format, std::forward<Args>(args)...), "model"));
}

// Hands the failure inside `result` on to the caller's own result type.
// Pre: `result` holds a failure.
template <class T>
[[nodiscard]] tl::unexpected<Error> pass_on(Result<T>& result) {
  return tl::unexpected<Error>(std::move(result.error()));
}

}  // namespace kvspan::model
