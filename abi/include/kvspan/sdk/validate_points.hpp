// SPDX-License-Identifier: Apache-2.0
// Whose fences points may name, and what fence.wait takes. A plugin says which fences are its
// device's; nothing here knows what a fence is. Not here: the rest of a submit
// (validate_submit.hpp).
#pragma once

#include "kvspan/fence.h"
#include "kvspan/queue.h"
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/validate_range.hpp"

#include <cstddef>
#include <cstdint>

namespace kvspan::sdk {
namespace detail {

template <class Owned>
kvspan_result_t check_owners(const List<kvspan_point_t>& points,
                             const Owned& owned,
                             Place place,
                             kvspan_error_t* error,
                             const char* where) noexcept {
  for (std::uint32_t i = 0; i < points.count; ++i) {
    if (!owned(points.data[i].fence)) {
      return fail_argument(
          error, place, where, "point %u is of another device: use a fence of this one", i);
    }
  }
  return KVSPAN_OK;
}

}  // namespace detail

/// KV-FENCE-1 for a submit that check_submit accepted: points mean something only on their own
/// device. `owned` is bool(kvspan_fence_t*), never handed NULL. `argument` is the submit's
/// position.
template <class Owned>
[[nodiscard]] kvspan_result_t check_point_owners(const kvspan_submit_t& submit,
                                                 const Owned& owned,
                                                 std::uint32_t argument,
                                                 kvspan_error_t* error,
                                                 const char* where) noexcept {
  const kvspan_result_t bad =
      detail::check_owners(List<kvspan_point_t>{submit.waits, submit.wait_count},
                           owned,
                           {argument, offsetof(kvspan_submit_t, waits)},
                           error,
                           where);
  return bad != KVSPAN_OK
             ? bad
             : detail::check_owners(List<kvspan_point_t>{submit.signals, submit.signal_count},
                                    owned,
                                    {argument, offsetof(kvspan_submit_t, signals)},
                                    error,
                                    where);
}

/// Arguments 2 to 4 of fence.wait. `owned` as above.
template <class Owned>
[[nodiscard]] kvspan_result_t check_wait(const List<kvspan_point_t>& points,
                                         std::uint32_t mode,
                                         const Owned& owned,
                                         kvspan_error_t* error,
                                         const char* where) noexcept {
  if (mode != KVSPAN_WAIT_ALL && mode != KVSPAN_WAIT_ANY) {
    return fail_argument(error, {4}, where, "mode %u: use KVSPAN_WAIT_ALL or ANY", mode);
  }
  if (points.count == 0 && mode == KVSPAN_WAIT_ANY) {
    return fail_argument(error, {3}, where, "any of no points is never reached: pass some");
  }
  if (points.count != 0 && points.data == nullptr) {
    return fail_argument(error, {2}, where, "the points are NULL: pass them");
  }
  for (std::uint32_t i = 0; i < points.count; ++i) {
    kvspan_fence_t* const fence = points.data[i].fence;
    if (fence == nullptr || !owned(fence)) {
      return fail_argument(error,
                           {2, 0},
                           where,
                           "point %u %s: use a fence of this device",
                           i,
                           fence == nullptr ? "has no fence" : "is of another device");
    }
  }
  return KVSPAN_OK;
}

}  // namespace kvspan::sdk
