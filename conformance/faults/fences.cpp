// SPDX-License-Identifier: Apache-2.0
// Faults of timeline fences: what query, wait, signal and fail say. Not here: signals of submits
// (submits.cpp), destroying what is busy (ownership.cpp).
#include "fault_list.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace kvspan::faults {
namespace {

using Points = std::vector<kvspan_point_t>;

/// What faults know of fences, beside what the base knows.
template <class T>
struct PerFence {
  std::mutex mutex;
  std::map<const kvspan_fence_t*, T> values;
};

/// Asynchronous failures are codes that the host did not choose and that are not its own mistakes.
bool is_failure_of_work(kvspan_result_t code) {
  return code == KVSPAN_E_WAIT_FAILED || code == KVSPAN_E_CANCELLED || code == KVSPAN_E_INTERNAL;
}

/// `>` where `>=` is meant, the other way round: a wait ends while the fence is one short.
void wait_one_early(Layer& layer) {
  layer.calls.wait = [&layer, next = layer.calls.wait](kvspan_device_t* device,
                                                       const kvspan_point_t* points,
                                                       uint32_t count,
                                                       uint32_t mode,
                                                       uint64_t timeout_ns,
                                                       kvspan_error_t* error) {
    if (points == nullptr) {
      return next(device, points, count, mode, timeout_ns, error);
    }
    Points early(points, points + count);
    for (kvspan_point_t& point : early) {
      point.value -= point.value != 0 ? 1u : 0u;
    }
    layer.ran();
    return next(device, early.data(), count, mode, timeout_ns, error);
  };
}

/// Replaces the timeout of waits.
void change_timeout(Layer& layer, uint64_t (*change)(uint64_t timeout_ns)) {
  layer.calls.wait = [&layer, change, next = layer.calls.wait](kvspan_device_t* device,
                                                               const kvspan_point_t* points,
                                                               uint32_t count,
                                                               uint32_t mode,
                                                               uint64_t timeout_ns,
                                                               kvspan_error_t* error) {
    const uint64_t changed_ns = change(timeout_ns);
    if (changed_ns != timeout_ns) {
      layer.ran();
    }
    return next(device, points, count, mode, changed_ns, error);
  };
}

void timeout_comes_early(Layer& layer) {
  change_timeout(layer,
                 [](uint64_t ns) { return ns == UINT64_MAX || ns < 2 ? ns : ns - (ns + 3) / 4; });
}

/// 0 is taken for a default.
void poll_blocks(Layer& layer) {
  change_timeout(layer, [](uint64_t ns) { return ns == 0 ? uint64_t{400'000'000} : ns; });
}

/// Nanoseconds through a 32-bit number of milliseconds, rounded down: short waits do not wait.
void timeout_in_milliseconds(Layer& layer) {
  change_timeout(layer, [](uint64_t ns) {
    return ns == UINT64_MAX ? ns : ns / 1'000'000 % (uint64_t{1} << 32) * 1'000'000;
  });
}

/// Two caches of one value: every second look is at the older.
void query_goes_back(Layer& layer) {
  auto looks = std::make_shared<PerFence<uint64_t>>();
  layer.calls.query = [&layer, looks, next = layer.calls.query](
                          kvspan_fence_t* fence, uint64_t* out, kvspan_error_t* error) {
    const kvspan_result_t result = next(fence, out, error);
    const std::lock_guard lock(looks->mutex);
    if (result == KVSPAN_OK && *out > 1 && ++looks->values[fence] % 2 == 0) {
      --*out;
      layer.ran();
    }
    return result;
  };
}

/// The value lives in 32 bits.
void query_forgets_high_bits(Layer& layer) {
  layer.calls.query = [&layer, next = layer.calls.query](
                          kvspan_fence_t* fence, uint64_t* out, kvspan_error_t* error) {
    const kvspan_result_t result = next(fence, out, error);
    if (out != nullptr && *out > UINT32_MAX) {
      *out &= UINT32_MAX;
      layer.ran();
    }
    return result;
  };
}

/// A failed fence takes a signal as if nothing had happened, and is well again.
void failed_fence_recovers(Layer& layer) {
  auto well = std::make_shared<PerFence<uint64_t>>();
  layer.calls.signal = [&layer, well, next = layer.calls.signal](
                           kvspan_fence_t* fence, uint64_t value, kvspan_error_t* error) {
    const kvspan_result_t result = next(fence, value, error);
    if (result == KVSPAN_OK || result == KVSPAN_E_INVALID_ARG) {
      return result;
    }
    const std::lock_guard lock(well->mutex);
    well->values[fence] = value;
    layer.ran();
    return kvspan_result_t{KVSPAN_OK};
  };
  layer.calls.query = [well, next = layer.calls.query](
                          kvspan_fence_t* fence, uint64_t* out, kvspan_error_t* error) {
    const std::lock_guard lock(well->mutex);
    const auto found = well->values.find(fence);
    if (found == well->values.end() || out == nullptr) {
      return next(fence, out, error);
    }
    *out = found->second;
    return kvspan_result_t{KVSPAN_OK};
  };
  layer.calls.destroy_fence = [well, next = layer.calls.destroy_fence](kvspan_fence_t* fence,
                                                                       kvspan_error_t* error) {
    const std::lock_guard lock(well->mutex);
    well->values.erase(fence);
    return next(fence, error);
  };
}

/// The second cause replaces the first.
void last_failure_wins(Layer& layer) {
  auto causes = std::make_shared<PerFence<kvspan_result_t>>();
  layer.calls.fail = [causes, next = layer.calls.fail](
                         kvspan_fence_t* fence, kvspan_result_t cause, kvspan_error_t* error) {
    const kvspan_result_t result = next(fence, cause, error);
    const std::lock_guard lock(causes->mutex);
    if (result == KVSPAN_OK) {
      causes->values[fence] = cause;
    }
    return result;
  };
  layer.calls.query = [&layer, causes, next = layer.calls.query](
                          kvspan_fence_t* fence, uint64_t* out, kvspan_error_t* error) {
    const kvspan_result_t result = next(fence, out, error);
    const std::lock_guard lock(causes->mutex);
    const auto found = causes->values.find(fence);
    if (result >= 0 || found == causes->values.end() || found->second == result) {
      return result;
    }
    layer.ran();
    if (error != nullptr) {
      error->code = found->second;
    }
    return found->second;
  };
}

void any_waits_for_all(Layer& layer) {
  layer.calls.wait = [&layer, next = layer.calls.wait](
                         auto* device, auto* points, auto count, auto mode, auto ns, auto* error) {
    const bool any = mode == KVSPAN_WAIT_ANY && count > 1;
    if (any) {
      layer.ran();
    }
    return next(device, points, count, any ? KVSPAN_WAIT_ALL : mode, ns, error);
  };
}

void all_ends_with_the_first(Layer& layer) {
  layer.calls.wait = [&layer, next = layer.calls.wait](
                         auto* device, auto* points, auto count, auto mode, auto ns, auto* error) {
    const bool all = mode == KVSPAN_WAIT_ALL && count > 1;
    if (all) {
      layer.ran();
    }
    return next(device, points, count, all ? KVSPAN_WAIT_ANY : mode, ns, error);
  };
}

void any_of_none_is_reached(Layer& layer) {
  layer.calls.wait = [&layer, next = layer.calls.wait](
                         auto* device, auto* points, auto count, auto mode, auto ns, auto* error) {
    if (count == 0 && mode == KVSPAN_WAIT_ANY) {
      layer.ran();
      return kvspan_result_t{KVSPAN_OK};
    }
    return next(device, points, count, mode, ns, error);
  };
}

/// Points of other devices are passed over in waits.
void foreign_points_are_skipped(Layer& layer) {
  layer.calls.wait = [&layer, next = layer.calls.wait](
                         auto* device, auto* points, auto count, auto mode, auto ns, auto* error) {
    Points own;
    for (uint32_t i = 0; points != nullptr && i < count; ++i) {
      const std::optional<Owner> owner = owner_of(points[i].fence);
      if (!owner.has_value() || owner->device == device) {
        own.push_back(points[i]);
      }
    }
    if (points == nullptr || own.size() == count) {
      return next(device, points, count, mode, ns, error);
    }
    layer.ran();
    return next(device, own.data(), static_cast<uint32_t>(own.size()), mode, ns, error);
  };
}

void signal_may_stand_still(Layer& layer) {
  layer.calls.signal = [&layer, next = layer.calls.signal](
                           kvspan_fence_t* fence, uint64_t value, kvspan_error_t* error) {
    const kvspan_result_t result = next(fence, value, error);
    uint64_t now = 0;
    if (result == KVSPAN_E_INVALID_ARG && fence != nullptr &&
        layer.base.fence->query(fence, &now, nullptr) == KVSPAN_OK && value <= now) {
      layer.ran();
      return kvspan_result_t{KVSPAN_OK};
    }
    return result;
  };
}

/// Further ahead than the device says it can count.
void signal_may_jump(Layer& layer) {
  layer.calls.signal = [&layer, next = layer.calls.signal](
                           kvspan_fence_t* fence, uint64_t value, kvspan_error_t* error) {
    const kvspan_result_t result = next(fence, value, error);
    uint64_t now = 0;
    if (result == KVSPAN_E_INVALID_ARG && fence != nullptr &&
        layer.base.fence->query(fence, &now, nullptr) == KVSPAN_OK && value > now &&
        value - now > INT32_MAX) {
      layer.ran();
      return kvspan_result_t{KVSPAN_OK};
    }
    return result;
  };
}

void fail_takes_any_code(Layer& layer) {
  layer.calls.fail = [&layer, next = layer.calls.fail](
                         kvspan_fence_t* fence, kvspan_result_t cause, kvspan_error_t* error) {
    if (cause >= 0 && fence != nullptr) {
      layer.ran();
      return kvspan_result_t{KVSPAN_OK};
    }
    return next(fence, cause, error);
  };
}

/// A failure spreads to what was reached before it.
void failure_forgets_the_past(Layer& layer) {
  layer.calls.wait = [&layer, next = layer.calls.wait](
                         auto* device, auto* points, auto count, auto mode, auto ns, auto* error) {
    const kvspan_result_t result = next(device, points, count, mode, ns, error);
    for (uint32_t i = 0; result == KVSPAN_OK && i < count; ++i) {
      uint64_t value = 0;
      const kvspan_result_t failed = layer.base.fence->query(points[i].fence, &value, error);
      if (failed < 0) {
        layer.ran();
        return failed;
      }
    }
    return result;
  };
}

void failed_query_says_zero(Layer& layer) {
  layer.calls.query = [&layer, next = layer.calls.query](
                          kvspan_fence_t* fence, uint64_t* out, kvspan_error_t* error) {
    const kvspan_result_t result = next(fence, out, error);
    if (result < 0 && out != nullptr && *out != 0 && fence != nullptr) {
      *out = 0;
      layer.ran();
    }
    return result;
  };
}

void failure_is_not_called_async(Layer& layer) {
  layer.calls.query = [&layer, next = layer.calls.query](
                          kvspan_fence_t* fence, uint64_t* out, kvspan_error_t* error) {
    const kvspan_result_t result = next(fence, out, error);
    if (result < 0 && error != nullptr && (error->flags & KVSPAN_ERROR_ASYNC) != 0) {
      error->flags &= ~KVSPAN_ERROR_ASYNC;
      layer.ran();
    }
    return result;
  };
}

/// Work that failed never tells its fences: whoever waits, waits for good.
void failed_work_never_signals(Layer& layer) {
  layer.calls.wait = [&layer, next = layer.calls.wait](
                         auto* device, auto* points, auto count, auto mode, auto ns, auto* error) {
    const kvspan_result_t result = next(device, points, count, mode, ns, nullptr);
    if (!is_failure_of_work(result)) {
      return result >= 0 ? result : next(device, points, count, mode, ns, error);
    }
    layer.ran();
    constexpr uint64_t kLong_ns = 300'000'000'000;
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<uint64_t>(ns, kLong_ns)));
    return kvspan_result_t{KVSPAN_TIMEOUT};
  };
  layer.calls.query = [next = layer.calls.query](
                          kvspan_fence_t* fence, uint64_t* out, kvspan_error_t* error) {
    const kvspan_result_t result = next(fence, out, error);
    return is_failure_of_work(result) ? kvspan_result_t{KVSPAN_OK} : result;
  };
}

void initial_value_is_lost(Layer& layer) {
  layer.calls.create_fence = [&layer, next = layer.calls.create_fence](
                                 auto* device, uint64_t initial, auto** out, auto* error) {
    if (initial != 0) {
      layer.ran();
    }
    return next(device, 0, out, error);
  };
}

constexpr Fault kFaults[] = {
    {"wait_one_early", wait_one_early},
    {"timeout_comes_early", timeout_comes_early},
    {"poll_blocks", poll_blocks},
    {"timeout_in_milliseconds", timeout_in_milliseconds},
    {"query_goes_back", query_goes_back},
    {"query_forgets_high_bits", query_forgets_high_bits},
    {"failed_fence_recovers", failed_fence_recovers},
    {"last_failure_wins", last_failure_wins},
    {"any_waits_for_all", any_waits_for_all},
    {"all_ends_with_the_first", all_ends_with_the_first},
    {"any_of_none_is_reached", any_of_none_is_reached},
    {"foreign_points_are_skipped", foreign_points_are_skipped},
    {"signal_may_stand_still", signal_may_stand_still},
    {"signal_may_jump", signal_may_jump},
    {"fail_takes_any_code", fail_takes_any_code},
    {"failure_forgets_the_past", failure_forgets_the_past},
    {"failed_query_says_zero", failed_query_says_zero},
    {"failure_is_not_called_async", failure_is_not_called_async},
    {"failed_work_never_signals", failed_work_never_signals},
    {"initial_value_is_lost", initial_value_is_lost},
};

}  // namespace

std::span<const Fault> fence_faults() {
  return kFaults;
}

}  // namespace kvspan::faults
