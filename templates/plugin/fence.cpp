// SPDX-License-Identifier: Apache-2.0
// The fence table. Queues raise and fail fences (queue.cpp); the host polls, waits, raises and
// fails them here. Replace the sleep in wait by your driver's wait, with its own limits in mind:
// never early, and a failed point ends it at once.
#include "fence.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate_points.hpp"

#include <chrono>
#include <mutex>

namespace mine {
namespace {

namespace sdk = kvspan::sdk;

kvspan_result_t report(const Cause& cause, kvspan_error_t* error, const char* where) {
  sdk::fail(error, cause.code, where, "%s", cause.text);
  if (error != nullptr) {
    error->flags = KVSPAN_ERROR_ASYNC;  // not this call's fault
    error->submit_id = cause.submit_id;
  }
  return cause.code;
}

kvspan_result_t KVSPAN_CALL fence_create(kvspan_device_t* handle,
                                         uint64_t initial,
                                         kvspan_fence_t** out_fence,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.create";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_fence == nullptr) {
      const sdk::Place place{handle == nullptr ? 1u : 3u};
      return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
    }
    Device& device = *device_of(handle);
    const std::lock_guard lock(device.mutex);
    *out_fence = reinterpret_cast<kvspan_fence_t*>(new Fence{device, initial, initial});
    ++device.fence_count;
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL fence_query(kvspan_fence_t* handle,
                                        uint64_t* out_value,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.query";
  if (handle == nullptr || out_value == nullptr) {
    const sdk::Place place{handle == nullptr ? 1u : 2u};
    return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
  }
  const Fence& fence = *fence_of(handle);
  const std::lock_guard lock(fence.device.mutex);
  *out_value = fence.value;
  return fence.cause.code == KVSPAN_OK ? kvspan_result_t{KVSPAN_OK}
                                       : report(fence.cause, error, kWhere);
}

struct Waited {
  const kvspan_point_t* points;
  uint32_t count;
  uint32_t mode;
};

kvspan_result_t check_wait(const Device* device,
                           const Waited& wait,
                           kvspan_error_t* error,
                           const char* where) {
  if (device == nullptr || (wait.points == nullptr && wait.count != 0)) {
    const sdk::Place place{device == nullptr ? 1u : 2u};
    return sdk::fail_argument(error, place, where, "a pointer is NULL: pass one");
  }
  const auto owned = [&](kvspan_fence_t* fence) { return &fence_of(fence)->device == device; };
  return sdk::check_wait({wait.points, wait.count}, wait.mode, owned, error, where);
}

// OK, NOT_READY, or the code of a failed fence, whose cause is then in `cause`. A failed point ends
// a wait for all; a reached one wins a wait for any, wherever it stands in the list.
kvspan_result_t judge(const Waited& wait, Cause& cause) {
  uint32_t reached = 0;
  cause = {};
  for (uint32_t i = 0; i < wait.count; ++i) {
    const Point point{fence_of(wait.points[i].fence), wait.points[i].value};
    reached += point.reached() ? 1u : 0u;
    cause = point.failed() && cause.code == KVSPAN_OK ? point.fence->cause : cause;
  }
  if (wait.mode == KVSPAN_WAIT_ALL ? reached == wait.count : reached != 0) {
    return KVSPAN_OK;
  }
  return cause.code == KVSPAN_OK ? kvspan_result_t{KVSPAN_NOT_READY} : cause.code;
}

void count_waiters(const Waited& wait, uint64_t change) {
  for (uint32_t i = 0; i < wait.count; ++i) {
    fence_of(wait.points[i].fence)->waiters += change;
  }
}

kvspan_result_t sleep_until_settled(Device& device,
                                    const Waited& wait,
                                    uint64_t timeout_ns,
                                    Cause& cause) {
  using Clock = std::chrono::steady_clock;
  constexpr uint64_t kFar = 1ull << 61;  // 73 years: what a clock can hold
  const auto end = Clock::now() + std::chrono::nanoseconds(timeout_ns < kFar ? timeout_ns : kFar);
  std::unique_lock lock(device.mutex);
  count_waiters(wait, 1);  // BUSY for destroy
  kvspan_result_t result = judge(wait, cause);
  while (result == KVSPAN_NOT_READY) {
    if (timeout_ns == 0 || Clock::now() >= end) {
      result = KVSPAN_TIMEOUT;
      break;
    }
    device.settled.wait_until(lock, end);
    result = judge(wait, cause);
  }
  count_waiters(wait, UINT64_MAX);  // minus 1
  return result;
}

kvspan_result_t KVSPAN_CALL fence_wait(kvspan_device_t* handle,
                                       const kvspan_point_t* points,
                                       uint32_t count,
                                       uint32_t mode,
                                       uint64_t timeout_ns,
                                       kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.wait";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    Device* const device = device_of(handle);
    const Waited wait{points, count, mode};
    if (const kvspan_result_t bad = check_wait(device, wait, error, kWhere)) {
      return bad;
    }
    Cause cause;
    const kvspan_result_t result = sleep_until_settled(*device, wait, timeout_ns, cause);
    return result < 0 ? report(cause, error, kWhere) : result;
  });
}

kvspan_result_t KVSPAN_CALL fence_signal(kvspan_fence_t* handle,
                                         uint64_t value,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.signal";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the fence is NULL: pass one");
  }
  Fence& fence = *fence_of(handle);
  const std::lock_guard lock(fence.device.mutex);
  if (fence.cause.code != KVSPAN_OK) {
    return report(fence.cause, error, kWhere);
  }
  if (value <= fence.value) {
    return sdk::fail_argument(error,
                              {2},
                              kWhere,
                              "the fence is at %llu already: signal more than that",
                              number(fence.value));
  }
  fence.value = value;
  fence.promised = value > fence.promised ? value : fence.promised;
  fence.device.settled.notify_all();
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL fence_fail(kvspan_fence_t* handle,
                                       kvspan_result_t cause,
                                       kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.fail";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the fence is NULL: pass one");
  }
  if (cause >= 0) {
    return sdk::fail_argument(error, {2}, kWhere, "%d is no error code: pass one below 0", cause);
  }
  Fence& fence = *fence_of(handle);
  const std::lock_guard lock(fence.device.mutex);
  if (fence.cause.code == KVSPAN_OK) {  // the first cause stays
    fence.cause = {cause, 0, "the host failed this fence: make another to go on"};
    fence.device.settled.notify_all();
  }
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL fence_destroy(kvspan_fence_t* handle, kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.destroy";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the fence is NULL: pass one");
  }
  Fence* const fence = fence_of(handle);
  Device& device = fence->device;
  const std::lock_guard lock(device.mutex);
  if (const uint64_t users = fence->uses + fence->waiters) {
    return sdk::fail_amount(error,
                            KVSPAN_E_BUSY,
                            kWhere,
                            {KVSPAN_RESOURCE_NONE, 0, users},
                            "pending work or a waiting thread names this fence: settle that first");
  }
  --device.fence_count;
  delete fence;
  return KVSPAN_OK;
}

}  // namespace

const kvspan_fence_table_t kFenceTable = {sizeof(kvspan_fence_table_t),
                                          0,
                                          fence_create,
                                          fence_query,
                                          fence_wait,
                                          fence_signal,
                                          fence_fail,
                                          fence_destroy};

}  // namespace mine
