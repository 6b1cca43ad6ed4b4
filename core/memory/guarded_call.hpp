// SPDX-License-Identifier: Apache-2.0
// Calls of somebody else's code, whose failures are values here whatever they are there: returned,
// thrown, or out of memory. Private to core/memory.
#pragma once

#include "kvspan/core/error.hpp"

#include <exception>
#include <new>
#include <string>
#include <utility>

namespace kvspan {

// What `call` returns; host_memory where it ran out, internal with its own words where it threw.
// `doing` names it in words: "prepare of the draft".
template <class Call>
[[nodiscard]] auto guarded_call(const std::string& doing, Call&& call) -> decltype(call()) {
  try {
    return std::forward<Call>(call)();
  } catch (const std::bad_alloc&) {
    return tl::unexpected(
        Error{Errc::host_memory, doing + " ran out of host memory; free some, then try again"});
  } catch (const std::exception& thrown) {
    return tl::unexpected(Error{Errc::internal, doing + " threw: " + thrown.what()});
  } catch (...) {
    return tl::unexpected(Error{Errc::internal, doing + " threw what is no std::exception"});
  }
}

}  // namespace kvspan
