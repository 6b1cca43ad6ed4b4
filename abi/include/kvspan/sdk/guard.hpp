// SPDX-License-Identifier: Apache-2.0
// guard(): the frame that every slot written in C++ runs its body in, so that nothing is thrown
// across the ABI. Not here: what a failure says (error.hpp).
#pragma once

#include "kvspan/sdk/error.hpp"

#include <exception>
#include <new>
#include <type_traits>
#include <utility>

namespace kvspan::sdk {

/// Runs `body` and returns its result. Out of host memory becomes HOST_MEMORY (the amount is not
/// known here: catch it nearer for an exact one), every other exception INTERNAL with its text.
template <class F>
kvspan_result_t guard(kvspan_error_t* error, const char* where, F&& body) noexcept {
  static_assert(std::is_invocable_r_v<kvspan_result_t, F>, "the body returns a kvspan_result_t");
  try {
    return std::forward<F>(body)();
  } catch (const std::bad_alloc&) {
    return fail_amount(
        error,
        KVSPAN_E_HOST_MEMORY,
        where,
        Amount{KVSPAN_RESOURCE_HOST_MEMORY, KVSPAN_UNKNOWN_AMOUNT, KVSPAN_UNKNOWN_AMOUNT},
        "out of host memory: free some and call again");
  } catch (const std::exception& problem) {
    return fail(error,
                KVSPAN_E_INTERNAL,
                where,
                "a defect of this plugin, please report it: %s",
                problem.what());
  } catch (...) {
    return fail(error,
                KVSPAN_E_INTERNAL,
                where,
                "a defect of this plugin, please report it: an unnamed exception");
  }
}

}  // namespace kvspan::sdk
