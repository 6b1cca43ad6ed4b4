// SPDX-License-Identifier: Apache-2.0
// The thread that plays the device: it takes a queue's submits in order, waits for their points,
// runs them, settles them. Replace all of it by your driver: a stream, its waits and signals. What
// must stay true: a submit that was accepted always settles; what failed stays failed; nothing that
// pending work names is freed. A device that is lost fails every fence for good with DEVICE_LOST,
// and every destroy still succeeds.
#include "queue.hpp"

#include <algorithm>
#include <cfenv>
#include <mutex>
#include <signal.h>

namespace mine {
namespace {

// Until all points are reached or one never can be; the cause then says so.
Cause wait_for_points(const Queue& queue, const Work& work, std::unique_lock<std::mutex>& lock) {
  const auto any_failed = [&] {
    return std::any_of(work.waits.begin(), work.waits.end(), [](auto& p) { return p.failed(); });
  };
  const auto all_reached = [&] {
    return std::all_of(work.waits.begin(), work.waits.end(), [](auto& p) { return p.reached(); });
  };
  queue.device.settled.wait(lock, [&] { return any_failed() || all_reached(); });
  return any_failed() ? Cause{KVSPAN_E_WAIT_FAILED,
                              work.submit_id,
                              "a point that this submit waited for has failed"}
                      : Cause{};
}

bool is_cancelled(const Work& work) {
  return work.cancel != nullptr && __atomic_load_n(work.cancel, __ATOMIC_ACQUIRE) != 0;
}

// Runs the work without the mutex, and keeps the duration where it was asked for.
void run(Queue& queue, const Work& work, std::unique_lock<std::mutex>& lock) {
  const kvspan_host_services_t& host = *queue.device.plugin.host;
  lock.unlock();
  const uint64_t begin_ns = host.now_ns(host.self);
  work.body();
  const uint64_t duration_ns = host.now_ns(host.self) - begin_ns;
  lock.lock();
  if (work.measure && queue.measurements.size() < kMeasurementsMax) {
    queue.measurements.push_back({work.submit_id, duration_ns, work.bytes});
  }
}

// Signals are reached or fail, and nothing is in use any more: in one critical section, so that a
// host that saw the signal can release at once.
void settle(Queue& queue, const Work& work, const Cause& cause) {
  for (Memory* memory : work.memories) {
    --memory->uses;
  }
  for (const Point& point : work.waits) {
    --point.fence->uses;
  }
  for (const Point& point : work.signals) {
    Fence& fence = *point.fence;
    --fence.uses;
    --fence.promises;
    if (fence.cause.code != KVSPAN_OK) {
      continue;  // the first cause stays
    }
    if (cause.code != KVSPAN_OK) {
      fence.cause = cause;
    } else {
      fence.value = std::max(fence.value, point.value);
    }
  }
  --queue.device.in_flight;
  queue.pending.pop_front();
  queue.device.settled.notify_all();
}

void* serve(void* argument) {
  std::fesetenv(FE_DFL_ENV);  // a host that rounds upward must not move our bits
  Queue& queue = *static_cast<Queue*>(argument);
  std::unique_lock lock(queue.device.mutex);
  for (;;) {
    queue.wake.wait(lock, [&] { return queue.stopping || !queue.pending.empty(); });
    if (queue.pending.empty()) {
      return nullptr;
    }
    const Work& work = queue.pending.front();  // stays where it is while others are appended
    Cause cause = wait_for_points(queue, work, lock);
    if (cause.code == KVSPAN_OK && is_cancelled(work)) {
      cause = {KVSPAN_E_CANCELLED, work.submit_id, "the cancel word was set before this began"};
    }
    if (cause.code == KVSPAN_OK) {
      run(queue, work, lock);
    }
    settle(queue, work, cause);
  }
}

}  // namespace

bool start(Queue& queue) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool started = pthread_create(&queue.thread, nullptr, serve, &queue) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

void join(Queue& queue) {
  pthread_join(queue.thread, nullptr);
}

}  // namespace mine
