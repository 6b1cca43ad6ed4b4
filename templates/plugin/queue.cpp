// SPDX-License-Identifier: Apache-2.0
// The queue table, and the door that every submit goes through: check all, copy all, count what it
// names, hand it to the worker. Keep it. For real hardware the last step changes: instead of a wake
// the waits, the work and the signals go to a stream of your driver. Read next: worker.cpp.
#include "queue.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate_points.hpp"
#include "kvspan/sdk/validate_submit.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

namespace mine {
namespace {

namespace sdk = kvspan::sdk;

// The arguments alone: sizes, NULLs, the cancel word, and that every fence is this device's.
kvspan_result_t check_arguments(const Queue& queue,
                                const kvspan_submit_t* submit,
                                uint32_t argument,
                                kvspan_error_t* error,
                                const char* where) {
  sdk::Context context(OwnBytes{&queue.device});
  context.spot.place.argument = argument;
  if (const kvspan_result_t bad = sdk::check_submit(submit, context, error, where)) {
    return bad;
  }
  if (submit->cancel_memory != nullptr &&
      memory_of(submit->cancel_memory)->kind != KVSPAN_MEMORY_HOST) {
    const sdk::Place place{argument, offsetof(kvspan_submit_t, cancel_memory)};
    return sdk::fail_argument(error, place, where, "the cancel word is not in HOST memory");
  }
  const auto owned = [&](kvspan_fence_t* fence) {
    return &fence_of(fence)->device == &queue.device;
  };
  return sdk::check_point_owners(*submit, owned, argument, error, where);
}

// A full queue says so and never waits.
kvspan_result_t check_depth(const Queue& queue, kvspan_error_t* error, const char* where) {
  const std::optional<kvspan_prepare_t>& prepared = queue.device.prepared;
  const bool told = prepared.has_value() && prepared->depth != 0 && prepared->depth < queue.depth;
  const uint32_t depth = told ? prepared->depth : queue.depth;
  const uint64_t in_flight = queue.pending.size();
  if (in_flight < depth) {
    return KVSPAN_OK;
  }
  return sdk::fail_amount(
      error,
      KVSPAN_E_QUEUE_FULL,
      where,
      {told ? KVSPAN_RESOURCE_PREPARED : KVSPAN_RESOURCE_QUEUE_DEPTH, in_flight + 1, depth},
      "%llu submits are in flight, which is this queue's depth: wait for one",
      number(in_flight));
}

// The highest value that `fence` is to reach before signal `index` of this submit.
uint64_t promised_before(const kvspan_submit_t& submit, uint32_t index) {
  const kvspan_fence_t* const fence = submit.signals[index].fence;
  uint64_t promised = fence_of(submit.signals[index].fence)->promised;
  for (uint32_t i = 0; i < index; ++i) {
    promised = submit.signals[i].fence == fence ? submit.signals[i].value : promised;
  }
  return promised;
}

// Values strictly increase, one queue signals a fence at a time, and no work waits for itself.
kvspan_result_t check_signals(const Queue& queue,
                              const kvspan_submit_t& submit,
                              uint32_t argument,
                              kvspan_error_t* error,
                              const char* where) {
  const sdk::Place place{argument, offsetof(kvspan_submit_t, signals)};
  for (uint32_t i = 0; i < submit.signal_count; ++i) {
    const kvspan_point_t& signal = submit.signals[i];
    const Fence& fence = *fence_of(signal.fence);
    if (signal.value <= promised_before(submit, i)) {
      return sdk::fail_argument(
          error,
          place,
          where,
          "signal %u is %llu and its fence goes that far already: signal more",
          i,
          number(signal.value));
    }
    if (fence.promises != 0 && fence.signaller != &queue) {
      return sdk::fail_argument(error,
                                place,
                                where,
                                "signal %u: another queue has yet to signal this fence: use one "
                                "fence a queue, or wait for that work",
                                i);
    }
    for (uint32_t w = 0; w < submit.wait_count; ++w) {
      if (submit.waits[w].fence == signal.fence && submit.waits[w].value > fence.promised) {
        return sdk::fail_reasons(
            error, where, 0, "wait %u is for a value that only this submit would signal", w);
      }
    }
  }
  return KVSPAN_OK;
}

kvspan_result_t check_options(const kvspan_queue_options_t* options,
                              kvspan_error_t* error,
                              const char* where) {
  if (const kvspan_result_t bad = sdk::take(options, error, where, 2)) {
    return bad;
  }
  if (options->role >= KVSPAN_ROLE_COUNT) {
    const sdk::Place place{2, offsetof(kvspan_queue_options_t, role)};
    return sdk::fail_argument(
        error, place, where, "role %u: use one of KVSPAN_ROLE_*", options->role);
  }
  if (options->depth > kDepthMax) {
    const sdk::Place place{2, offsetof(kvspan_queue_options_t, depth)};
    return sdk::fail_argument(
        error, place, where, "depth %u, at most %u: ask for less", options->depth, kDepthMax);
  }
  if (options->reserved != 0) {
    const sdk::Place place{2, offsetof(kvspan_queue_options_t, reserved)};
    return sdk::fail_argument(
        error, place, where, "reserved is %u: set it to 0", options->reserved);
  }
  return KVSPAN_OK;
}

kvspan_result_t KVSPAN_CALL queue_create(kvspan_device_t* handle,
                                         const kvspan_queue_options_t* options,
                                         kvspan_queue_t** out_queue,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "queue.create";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_queue == nullptr) {
      const sdk::Place place{handle == nullptr ? 1u : 3u};
      return sdk::fail_argument(error, place, kWhere, "a pointer is NULL: pass one");
    }
    if (const kvspan_result_t bad = check_options(options, error, kWhere)) {
      return bad;
    }
    Device& device = *device_of(handle);
    const std::lock_guard lock(device.mutex);
    if (device.queue_count == kQueuesMax) {
      return sdk::fail_reasons(
          error, kWhere, 0, "%u queues exist, which is all there are: share one", kQueuesMax);
    }
    const uint32_t depth = options->depth == 0 ? kDepthMax : options->depth;
    std::unique_ptr<Queue> queue(new Queue{device, depth});
    queue->measurements.reserve(kMeasurementsMax);  // the thread allocates nothing
    if (!start(*queue)) {
      return sdk::fail_amount(
          error,
          KVSPAN_E_HOST_MEMORY,
          kWhere,
          {KVSPAN_RESOURCE_HOST_MEMORY, KVSPAN_UNKNOWN_AMOUNT, KVSPAN_UNKNOWN_AMOUNT},
          "the system gives no thread: destroy a queue and call again");
    }
    ++device.queue_count;
    *out_queue = reinterpret_cast<kvspan_queue_t*>(queue.release());
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL queue_destroy(kvspan_queue_t* handle, kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "queue.destroy";
  if (handle == nullptr) {
    return sdk::fail_argument(error, {1}, kWhere, "the queue is NULL: pass one");
  }
  Queue* const queue = queue_of(handle);
  {
    const std::lock_guard lock(queue->device.mutex);
    if (const uint64_t pending = queue->pending.size()) {
      return sdk::fail_amount(error,
                              KVSPAN_E_BUSY,
                              kWhere,
                              {KVSPAN_RESOURCE_NONE, 0, pending},
                              "%llu submits are in flight: wait for their points",
                              number(pending));
    }
    --queue->device.queue_count;
    queue->stopping = true;
    queue->wake.notify_one();
  }
  join(*queue);
  delete queue;
  return KVSPAN_OK;
}

// The job and everything that the submit names, copied.
Work work_of(Job job, const kvspan_submit_t& submit) {
  Work work;
  work.body = std::move(job.body);
  work.submit_id = submit.submit_id;
  work.bytes = job.bytes;
  work.measure = (submit.flags & KVSPAN_SUBMIT_MEASURE) != 0;
  if (submit.cancel_memory != nullptr) {
    work.cancel =
        reinterpret_cast<const uint32_t*>(address_of(submit.cancel_memory, submit.cancel_offset));
    job.memories.push_back(submit.cancel_memory);
  }
  for (kvspan_memory_t* memory : job.memories) {
    if (memory != nullptr) {
      work.memories.push_back(memory_of(memory));
    }
  }
  for (uint32_t i = 0; i < submit.wait_count; ++i) {
    work.waits.push_back({fence_of(submit.waits[i].fence), submit.waits[i].value});
  }
  for (uint32_t i = 0; i < submit.signal_count; ++i) {
    work.signals.push_back({fence_of(submit.signals[i].fence), submit.signals[i].value});
  }
  return work;
}

}  // namespace

kvspan_result_t enqueue(Queue& queue,
                        Job job,
                        const kvspan_submit_t* submit,
                        uint32_t argument,
                        kvspan_error_t* error,
                        const char* where) {
  kvspan_result_t bad = check_arguments(queue, submit, argument, error, where);
  if (bad == KVSPAN_OK) {
    bad = check_depth(queue, error, where);
  }
  if (bad == KVSPAN_OK) {
    bad = check_signals(queue, *submit, argument, error, where);
  }
  if (bad != KVSPAN_OK) {
    return bad;
  }
  queue.pending.push_back(work_of(std::move(job), *submit));  // the last that may throw
  const Work& work = queue.pending.back();
  for (Memory* memory : work.memories) {
    ++memory->uses;
  }
  for (const Point& point : work.waits) {
    ++point.fence->uses;
  }
  for (const Point& point : work.signals) {
    ++point.fence->uses;
    ++point.fence->promises;
    point.fence->promised = point.value;
    point.fence->signaller = &queue;
  }
  ++queue.device.in_flight;
  queue.wake.notify_one();
  return KVSPAN_OK;
}

const kvspan_queue_table_t kQueueTable = {
    sizeof(kvspan_queue_table_t), 0, queue_create, queue_destroy};

}  // namespace mine
