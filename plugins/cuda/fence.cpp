// SPDX-License-Identifier: Apache-2.0
// The fence table. Read first: fence.hpp.
#include "fence.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate_points.hpp"

#include <chrono>

namespace kvspan::cuda {

kvspan_result_t report_cause(const Device& device,
                             const Cause& cause,
                             kvspan_error_t* error,
                             const char* where) noexcept {
  sdk::fail(error, cause.code, where, "%s", cause.text);
  if (error != nullptr) {
    error->flags = KVSPAN_ERROR_ASYNC;
    if (cause.code == KVSPAN_E_DEVICE_LOST) {
      error->flags |= lost_flags(device);
    }
    error->submit_id = cause.submit_id;
    error->native_code = cause.native;
  }
  return cause.code;
}

namespace {

using Clock = std::chrono::steady_clock;

unsigned long long number(uint64_t value) {
  return value;
}

kvspan_result_t KVSPAN_CALL fence_create(kvspan_device_t* handle,
                                         uint64_t initial,
                                         kvspan_fence_t** out_fence,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.create";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_fence == nullptr) {
      return sdk::fail_argument(
          error, {handle == nullptr ? 1u : 3u}, kWhere, "an argument is NULL: pass one");
    }
    Device& device = *device_of(handle);
    if (device.lost) {
      return report_lost(device, error, kWhere);
    }
    Fence* const fence = device.host.make<Fence>(device, initial);
    if (fence == nullptr) {
      return report_no_host_memory(sizeof(Fence), error, kWhere);
    }
    const std::lock_guard lock(device.mutex);
    fence->next = device.fences;
    if (fence->next != nullptr) {
      fence->next->previous = fence;
    }
    device.fences = fence;
    ++device.object_count;
    *out_fence = handle_of(fence);
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL fence_query(kvspan_fence_t* handle,
                                        uint64_t* out_value,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.query";
  if (handle == nullptr || out_value == nullptr) {
    return sdk::fail_argument(
        error, {handle == nullptr ? 1u : 2u}, kWhere, "an argument is NULL: pass one");
  }
  const Fence& fence = *fence_of(handle);
  Cause cause;
  {
    const std::lock_guard lock(fence.device.mutex);
    *out_value = fence.value;
    cause = fence.cause;
  }
  return cause.code == KVSPAN_OK ? kvspan_result_t{KVSPAN_OK}
                                 : report_cause(fence.device, cause, error, kWhere);
}

struct Waited {
  const kvspan_point_t* points;
  uint32_t count;
  uint32_t mode;
};

enum class Standing { pending, reached, failed };

// Where a wait stands now; `cause` is filled where it failed. The device's mutex is held.
Standing judge(const Waited& wait, Cause& cause) {
  const bool all = wait.mode == KVSPAN_WAIT_ALL;
  Standing standing = all ? Standing::reached : Standing::pending;
  for (uint32_t i = 0; i < wait.count; ++i) {
    const Fence& fence = *fence_of(wait.points[i].fence);
    if (fence.reached(wait.points[i].value)) {
      if (!all) {
        return Standing::reached;
      }
    } else if (fence.failed()) {
      if (standing != Standing::failed) {
        cause = fence.cause;
      }
      standing = Standing::failed;
    } else if (standing != Standing::failed) {
      standing = Standing::pending;
    }
  }
  return standing;
}

void count_waiters(const Waited& wait, uint64_t change) {
  for (uint32_t i = 0; i < wait.count; ++i) {
    fence_of(wait.points[i].fence)->waiters += change;
  }
}

// Nobody of the host waits any more: those who still sleep for the fence, threads of queues, say
// anew what they want.
void forget_wanted(Device& device, const Waited& wait) {
  for (uint32_t i = 0; i < wait.count; ++i) {
    Fence& fence = *fence_of(wait.points[i].fence);
    if (fence.waiters == 0 && fence.wanted != UINT64_MAX) {
      fence.wanted = UINT64_MAX;
      device.settled.notify_all();
    }
  }
}

kvspan_result_t wait_locked(Device& device,
                            const Waited& wait,
                            uint64_t timeout_ns,
                            std::unique_lock<std::mutex>& lock,
                            Cause& cause) {
  constexpr uint64_t kFar = uint64_t{1} << 61;  // 73 years: what a clock can hold
  const Clock::time_point end =
      Clock::now() + std::chrono::nanoseconds(timeout_ns < kFar ? timeout_ns : kFar);
  for (;;) {
    const Standing standing = judge(wait, cause);
    if (standing != Standing::pending) {
      return standing == Standing::reached ? kvspan_result_t{KVSPAN_OK} : cause.code;
    }
    if (timeout_ns == 0 || Clock::now() >= end) {
      return KVSPAN_TIMEOUT;
    }
    for (uint32_t i = 0; i < wait.count; ++i) {
      Fence& fence = *fence_of(wait.points[i].fence);
      if (!fence.reached(wait.points[i].value)) {
        fence.want(wait.points[i].value);
      }
    }
    if (timeout_ns == UINT64_MAX) {
      device.settled.wait(lock);
    } else {
      device.settled.wait_until(lock, end);
    }
  }
}

kvspan_result_t check_wait(const Device* device, const Waited& wait, kvspan_error_t* error) {
  constexpr const char* kWhere = "fence.wait";
  if (device == nullptr || (wait.points == nullptr && wait.count != 0)) {
    return sdk::fail_argument(
        error, {device == nullptr ? 1u : 2u}, kWhere, "an argument is NULL: pass one");
  }
  const auto owned = [&](kvspan_fence_t* fence) { return &fence_of(fence)->device == device; };
  return sdk::check_wait({wait.points, wait.count}, wait.mode, owned, error, kWhere);
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
    if (const kvspan_result_t bad = check_wait(device, wait, error)) {
      return bad;
    }
    if (count == 0) {
      return KVSPAN_OK;
    }
    Cause cause;
    kvspan_result_t result = KVSPAN_OK;
    {
      std::unique_lock lock(device->mutex);
      count_waiters(wait, 1);
      result = wait_locked(*device, wait, timeout_ns, lock, cause);
      count_waiters(wait, UINT64_MAX);  // minus 1
      forget_wanted(*device, wait);
      if (device->lost) {
        device->settled.notify_all();  // a destroy may wait for the last waiter
      }
    }
    return result < 0 ? report_cause(*device, cause, error, kWhere) : result;
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
  Cause cause;
  {
    const std::lock_guard lock(fence.device.mutex);
    if (!fence.failed()) {
      if (value <= fence.value) {
        return sdk::fail_argument(error,
                                  {2},
                                  kWhere,
                                  "value %llu, the fence is at %llu: signal more",
                                  number(value),
                                  number(fence.value));
      }
      fence.reach(value);
      fence.promised = value > fence.promised ? value : fence.promised;
      if (fence.wakes()) {
        fence.device.settled.notify_all();
      }
      return KVSPAN_OK;
    }
    cause = fence.cause;
  }
  return report_cause(fence.device, cause, error, kWhere);
}

kvspan_result_t KVSPAN_CALL fence_fail(kvspan_fence_t* handle,
                                       kvspan_result_t cause,
                                       kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.fail";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the fence is NULL: pass one");
  }
  if (cause >= 0) {
    return sdk::fail_argument(
        error, {2}, kWhere, "cause %d is no failure: use a code below 0", cause);
  }
  Fence& fence = *fence_of(handle);
  const std::lock_guard lock(fence.device.mutex);
  fence.fail({cause, 0, "the host failed this fence"});
  if (fence.wakes()) {
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
  {
    std::unique_lock lock(device.mutex);
    const auto idle = [&] { return fence->uses == 0 && fence->waiters == 0; };
    if (device.lost) {  // waits return and pending work settles, both soon
      device.settled.wait(lock, idle);
    }
    if (!idle()) {
      return sdk::fail(
          error,
          KVSPAN_E_BUSY,
          kWhere,
          "%s: settle that first, then destroy",
          fence->waiters != 0 ? "a thread waits on this fence" : "pending work names this fence");
    }
    (fence->previous != nullptr ? fence->previous->next : device.fences) = fence->next;
    if (fence->next != nullptr) {
      fence->next->previous = fence->previous;
    }
    --device.object_count;
  }
  device.host.unmake(fence);
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

}  // namespace kvspan::cuda
