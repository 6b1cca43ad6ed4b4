// SPDX-License-Identifier: Apache-2.0
// The fence table. Waiting is what drives the stub: wait turns the scheduler's crank until its
// points settle, query turns it once so that polling gets somewhere.
// When nothing can run, a wait with an end blocks for real until it is over or another thread
// changes something; a wait without an end gives up after a while and says so, instead of hanging.
// Read next: scheduler.cpp.
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate_points.hpp"

#include "queue.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace kvspan::stub {
namespace {

using Clock = std::chrono::steady_clock;

/// The points of a wait, checked.
struct Waited {
  Device& device;
  const kvspan_point_t* points;
  std::uint32_t count;
  std::uint32_t mode;
};

enum class Standing { reached, pending, failed };

/// Where a wait stands, and the point that decides: the failed one, or one still pending.
struct Verdict {
  Standing standing;
  Point point;
};

Verdict judge(const Waited& wait) {
  const bool all = wait.mode == KVSPAN_WAIT_ALL;
  Verdict verdict{all ? Standing::reached : Standing::pending, {nullptr, 0}};
  for (std::uint32_t i = 0; i < wait.count; ++i) {
    const Point point{fence_of(wait.points[i].fence), wait.points[i].value};
    if (point.reached()) {
      if (!all) {
        return {Standing::reached, point};
      }
    } else if (point.failed()) {
      if (verdict.standing != Standing::failed) {
        verdict = {Standing::failed, point};
      }
    } else if (verdict.standing != Standing::failed) {
      verdict = {Standing::pending, point};
    }
  }
  return verdict;
}

/// Keeps fences from being destroyed under a waiting thread.
class Waiters {
 public:
  explicit Waiters(const Waited& wait) : wait_(wait) {
    for (std::uint32_t i = 0; i < wait_.count; ++i) {
      ++fence_of(wait_.points[i].fence)->waiters;
    }
  }

  Waiters(const Waiters&) = delete;
  Waiters& operator=(const Waiters&) = delete;

  ~Waiters() {
    for (std::uint32_t i = 0; i < wait_.count; ++i) {
      --fence_of(wait_.points[i].fence)->waiters;
    }
  }

 private:
  const Waited& wait_;
};

bool step(Device& device) {
  const bool ran = device.scheduler.step();
  if (ran) {
    device.plugin.changed.notify_all();
  }
  return ran;
}

kvspan_result_t deadlock(const Point& point, kvspan_error_t* error, const char* where) {
  return sdk::fail_argument(error,
                            sdk::Place{2},
                            where,
                            "deadlock: nothing pending leads to value %llu of a fence at %llu, and "
                            "this wait has no end: submit or signal it first, or set a timeout",
                            sdk::number(point.value),
                            sdk::number(point.fence->value));
}

/// The latest moment of a wait; far away for timeouts that no clock can hold.
Clock::time_point deadline_of(std::uint64_t timeout_ns) {
  constexpr std::uint64_t kFar = 1ull << 61;  // 73 years
  return Clock::now() + std::chrono::nanoseconds(std::min(timeout_ns, kFar));
}

kvspan_result_t wait_locked(const Waited& wait,
                            std::uint64_t timeout_ns,
                            std::unique_lock<std::mutex>& lock,
                            kvspan_error_t* error,
                            const char* where) {
  Plugin& plugin = wait.device.plugin;
  const bool endless = timeout_ns == UINT64_MAX;
  const std::uint64_t patience_ns = endless ? plugin.options.deadlock_ms * 1'000'000u : timeout_ns;
  Clock::time_point deadline = deadline_of(patience_ns);
  bool late = false;
  for (bool polled = false;; polled = true) {
    const Verdict verdict = judge(wait);
    if (verdict.standing == Standing::reached) {
      return KVSPAN_OK;
    }
    if (verdict.standing == Standing::failed) {
      return report(*verdict.point.fence->failure, error, where);
    }
    if (timeout_ns == 0 && polled) {
      return KVSPAN_TIMEOUT;
    }
    if (step(wait.device)) {
      if (endless) {
        deadline = deadline_of(patience_ns);  // there is hope
      }
      late = false;
      continue;
    }
    if (timeout_ns == 0) {
      continue;
    }
    if (late) {
      return endless ? deadlock(verdict.point, error, where) : KVSPAN_TIMEOUT;
    }
    late = plugin.changed.wait_until(lock, deadline) == std::cv_status::timeout;
  }
}

kvspan_result_t KVSPAN_CALL fence_wait(kvspan_device_t* handle,
                                       const kvspan_point_t* points,
                                       std::uint32_t count,
                                       std::uint32_t mode,
                                       std::uint64_t timeout_ns,
                                       kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.wait";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the device is NULL: pass one");
    }
    const Waited wait{*device_of(handle), points, count, mode};
    const auto owned = [&](kvspan_fence_t* fence) {
      return &fence_of(fence)->device == &wait.device;
    };
    if (const kvspan_result_t bad = sdk::check_wait({points, count}, mode, owned, error, kWhere)) {
      return bad;
    }
    std::unique_lock lock(wait.device.plugin.mutex);
    const Waiters waiters(wait);
    return wait_locked(wait, timeout_ns, lock, error, kWhere);
  });
}

kvspan_result_t KVSPAN_CALL fence_create(kvspan_device_t* handle,
                                         std::uint64_t initial,
                                         kvspan_fence_t** out_fence,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.create";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_fence == nullptr) {
      const sdk::Place place{handle == nullptr ? 1u : 3u};
      return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
    }
    Device& device = *device_of(handle);
    const std::lock_guard lock(device.plugin.mutex);
    if (device.scheduler.lost().has_value()) {
      return report(*device.scheduler.lost(), error, kWhere);
    }
    auto fence = std::make_unique<Fence>(Fence{device, initial});
    device.scheduler.add(*fence);
    *out_fence = handle_of(fence.release());
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL fence_query(kvspan_fence_t* handle,
                                        std::uint64_t* out_value,
                                        kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.query";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_value == nullptr) {
      const sdk::Place place{handle == nullptr ? 1u : 2u};
      return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
    }
    Fence& fence = *fence_of(handle);
    const std::lock_guard lock(fence.device.plugin.mutex);
    if (!fence.failure.has_value() && !fence.promises.empty()) {
      step(fence.device);
    }
    *out_value = fence.value;
    return fence.failure.has_value() ? report(*fence.failure, error, kWhere) : KVSPAN_OK;
  });
}

/// What a host may not raise `fence` to; OK otherwise.
kvspan_result_t check_host_value(const Fence& fence,
                                 std::uint64_t value,
                                 kvspan_error_t* error,
                                 const char* where) {
  if (value <= fence.value) {
    return sdk::fail_argument(error,
                              sdk::Place{2},
                              where,
                              "the fence is at %llu already: signal more than that",
                              sdk::number(fence.value));
  }
  if (value - fence.value > kFenceDeltaMax) {
    return sdk::fail_argument(error,
                              sdk::Place{2},
                              where,
                              "%llu is %llu ahead of the fence, %llu allowed: signal less",
                              sdk::number(value),
                              sdk::number(value - fence.value),
                              sdk::number(kFenceDeltaMax));
  }
  if (!fence.promises.empty() && value >= fence.promises.front()) {
    return sdk::fail_argument(error,
                              sdk::Place{2},
                              where,
                              "pending work will signal %llu: signal less, or wait for it first",
                              sdk::number(fence.promises.front()));
  }
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL fence_signal(kvspan_fence_t* handle,
                                         std::uint64_t value,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.signal";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the fence is NULL: pass one");
    }
    Fence& fence = *fence_of(handle);
    const std::lock_guard lock(fence.device.plugin.mutex);
    if (fence.failure.has_value()) {
      return report(*fence.failure, error, kWhere);
    }
    if (const kvspan_result_t bad = check_host_value(fence, value, error, kWhere)) {
      return bad;
    }
    fence.value = value;
    fence.device.plugin.changed.notify_all();
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL fence_fail(kvspan_fence_t* handle,
                                       kvspan_result_t cause,
                                       kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.fail";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the fence is NULL: pass one");
    }
    if (cause >= 0) {
      return sdk::fail_argument(
          error, sdk::Place{2}, kWhere, "%d is no error code: pass one below 0", cause);
    }
    Fence& fence = *fence_of(handle);
    const std::lock_guard lock(fence.device.plugin.mutex);
    if (!fence.failure.has_value()) {
      const Failure failure{
          cause, KVSPAN_ERROR_ASYNC, 0, "the host failed this fence: make another to go on"};
      fence.device.scheduler.fail(fence, failure);
      fence.device.plugin.changed.notify_all();
    }
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL fence_destroy(kvspan_fence_t* handle, kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "fence.destroy";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the fence is NULL: pass one");
    }
    Fence* const fence = fence_of(handle);
    Device& device = fence->device;
    const std::lock_guard lock(device.plugin.mutex);
    const std::uint64_t users = fence->uses + fence->waiters;
    if (users != 0) {
      return sdk::fail_amount(error,
                              KVSPAN_E_BUSY,
                              kWhere,
                              {KVSPAN_RESOURCE_NONE, 0, users},
                              "pending work names this fence %llu times and %llu threads wait on "
                              "it: settle those first",
                              sdk::number(fence->uses),
                              sdk::number(fence->waiters));
    }
    device.scheduler.remove(*fence);
    delete fence;
    return KVSPAN_OK;
  });
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

}  // namespace kvspan::stub
