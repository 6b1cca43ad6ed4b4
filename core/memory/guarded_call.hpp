// SPDX-License-Identifier: Apache-2.0
// Calls whose failures are values here whatever they are there: returned, thrown, or out of memory.
// Nothing on the way to such a value throws again, however little memory there is: the words are
// the first to go. Private to core.
#pragma once

#include "kvspan/core/error.hpp"

#include <initializer_list>
#include <string_view>
#include <utility>

namespace kvspan {

// An error whose message is `parts`, one behind the other; the code's own word where there is no
// memory for them. Any thread.
[[nodiscard]] Error told(Errc code,
                         std::initializer_list<std::string_view> parts,
                         std::string_view component = {}) noexcept;

// The exception that is being handled, as a value: host_memory where it ran out, else internal with
// its own words. `doing` names in words what threw: "prepare of the draft". Any thread.
[[nodiscard]] Error thrown_error(const char* doing) noexcept;

// What `call` returns, or what it threw.
template <class Call>
[[nodiscard]] auto guarded_call(const char* doing, Call&& call) -> decltype(call()) {
  try {
    return std::forward<Call>(call)();
  } catch (...) {
    return tl::unexpected(thrown_error(doing));
  }
}

}  // namespace kvspan
