// SPDX-License-Identifier: Apache-2.0
// The queue table, and the door that every submit goes through. Nothing runs here: work runs when
// somebody waits (fence.cpp). Read next: fence.cpp, scheduler.hpp.
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

namespace kvspan::stub {
namespace {

/// Where a point of a submit stands, for errors.
struct PointPlace {
  std::uint32_t argument;
  std::uint32_t index;
};

/// KV-SUBMIT-5: all that is waited for has been reached, has failed, or is promised by pending
/// work.
kvspan_result_t check_waits(const kvspan_submit_t& submit,
                            std::uint32_t argument,
                            kvspan_error_t* error,
                            const char* where) {
  for (std::uint32_t i = 0; i < submit.wait_count; ++i) {
    const Fence& fence = *fence_of(submit.waits[i].fence);
    if (submit.waits[i].value > fence.promised() && !fence.failure.has_value()) {
      const kvspan_result_t code =
          sdk::fail_reasons(error,
                            where,
                            0,
                            "wait point %u asks for %llu, and nothing submitted goes beyond %llu: "
                            "submit the signal first",
                            i,
                            sdk::number(submit.waits[i].value),
                            sdk::number(fence.promised()));
      if (error != nullptr) {
        error->argument = argument;
        error->field_offset = offsetof(kvspan_submit_t, waits);
      }
      return code;
    }
  }
  return KVSPAN_OK;
}

/// KV-SUBMIT-6: one signalling queue at a time, values strictly increase, within fence_delta_max.
kvspan_result_t check_signal(const Queue& queue,
                             const kvspan_submit_t& submit,
                             PointPlace place,
                             kvspan_error_t* error,
                             const char* where) {
  const sdk::Place at{place.argument, offsetof(kvspan_submit_t, signals)};
  const Fence& fence = *fence_of(submit.signals[place.index].fence);
  const std::uint64_t value = submit.signals[place.index].value;
  std::uint64_t promised = fence.promised();
  for (std::uint32_t i = 0; i < place.index; ++i) {
    if (submit.signals[i].fence == submit.signals[place.index].fence) {
      promised = submit.signals[i].value;
    }
  }
  if (value <= promised) {
    return sdk::fail_argument(error,
                              at,
                              where,
                              "signal point %u is %llu and its fence goes to %llu: signal more",
                              place.index,
                              sdk::number(value),
                              sdk::number(promised));
  }
  if (value - fence.value > kFenceDeltaMax) {
    return sdk::fail_argument(error,
                              at,
                              where,
                              "signal point %u lies %llu ahead of its fence, %llu allowed",
                              place.index,
                              sdk::number(value - fence.value),
                              sdk::number(kFenceDeltaMax));
  }
  if (!fence.promises.empty() && fence.signaller != &queue) {
    return sdk::fail_argument(
        error,
        at,
        where,
        "signal point %u: another queue has yet to signal this fence: use one "
        "fence a queue, or wait for that work",
        place.index);
  }
  return KVSPAN_OK;
}

/// KV-SUBMIT-8: a full queue says so and never waits.
kvspan_result_t check_depth(const Queue& queue, kvspan_error_t* error, const char* where) {
  const std::optional<kvspan_prepare_t>& prepared = queue.device.prepared;
  const bool told = prepared.has_value() && prepared->depth != 0 && prepared->depth < queue.depth;
  const std::uint32_t depth = told ? prepared->depth : queue.depth;
  if (queue.in_flight < depth) {
    return KVSPAN_OK;
  }
  const sdk::Amount amount{told ? KVSPAN_RESOURCE_PREPARED : KVSPAN_RESOURCE_QUEUE_DEPTH,
                           queue.in_flight + std::uint64_t{1},
                           depth};
  return sdk::fail_amount(error,
                          KVSPAN_E_QUEUE_FULL,
                          where,
                          amount,
                          "%u submits are in flight, which is this queue's depth: wait for one",
                          queue.in_flight);
}

kvspan_result_t check_all(const Queue& queue,
                          const kvspan_submit_t* submit,
                          std::uint32_t argument,
                          kvspan_error_t* error,
                          const char* where) {
  sdk::Context context(OwnBytes{&queue.device});
  context.spot.place.argument = argument;
  kvspan_result_t bad = sdk::check_submit(submit, context, error, where);
  if (bad != KVSPAN_OK) {
    return bad;
  }
  kvspan_memory_t* const cancel = submit->cancel_memory;
  if (cancel != nullptr && memory_of(cancel)->kind != KVSPAN_MEMORY_HOST) {
    return sdk::fail_argument(error,
                              {argument, offsetof(kvspan_submit_t, cancel_memory)},
                              where,
                              "the cancel word is not in HOST memory: allocate it with that kind");
  }
  const auto owned = [&](kvspan_fence_t* fence) {
    return &fence_of(fence)->device == &queue.device;
  };
  bad = sdk::check_point_owners(*submit, owned, argument, error, where);
  if (bad == KVSPAN_OK) {
    bad = check_depth(queue, error, where);
  }
  if (bad == KVSPAN_OK) {
    bad = check_waits(*submit, argument, error, where);
  }
  for (std::uint32_t i = 0; bad == KVSPAN_OK && i < submit->signal_count; ++i) {
    bad = check_signal(queue, *submit, {argument, i}, error, where);
  }
  return bad;
}

kvspan_result_t check_options(const kvspan_queue_options_t* options,
                              kvspan_error_t* error,
                              const char* where) {
  if (const kvspan_result_t bad = sdk::take(options, error, where, 2)) {
    return bad;
  }
  if (options->role >= KVSPAN_ROLE_COUNT) {
    return sdk::fail_argument(error,
                              {2, offsetof(kvspan_queue_options_t, role)},
                              where,
                              "role %u: use one of KVSPAN_ROLE_*",
                              options->role);
  }
  if (options->depth > kDepthMax) {
    return sdk::fail_argument(error,
                              {2, offsetof(kvspan_queue_options_t, depth)},
                              where,
                              "depth %u, at most %u: ask for less",
                              options->depth,
                              kDepthMax);
  }
  if (options->reserved != 0) {
    return sdk::fail_argument(error,
                              {2, offsetof(kvspan_queue_options_t, reserved)},
                              where,
                              "reserved is %u: set it to 0",
                              options->reserved);
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
    const std::lock_guard lock(device.plugin.mutex);
    if (device.scheduler.lost().has_value()) {
      return report(*device.scheduler.lost(), error, kWhere);
    }
    if (device.queue_count == kQueuesMax) {
      return sdk::fail_reasons(
          error, kWhere, 0, "%u queues exist, which is all there are: share one", kQueuesMax);
    }
    const std::uint32_t depth = options->depth == 0 ? kDepthMax : options->depth;
    auto queue = std::make_unique<Queue>(Queue{device, device.scheduler.open_lane(), depth});
    ++device.queue_count;
    *out_queue = handle_of(queue.release());
    return KVSPAN_OK;
  });
}

kvspan_result_t KVSPAN_CALL queue_destroy(kvspan_queue_t* handle, kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "queue.destroy";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, sdk::Place{1}, kWhere, "the queue is NULL: pass one");
    }
    Queue* const queue = queue_of(handle);
    Device& device = queue->device;
    const std::lock_guard lock(device.plugin.mutex);
    if (queue->in_flight != 0) {
      return sdk::fail_amount(error,
                              KVSPAN_E_BUSY,
                              kWhere,
                              {KVSPAN_RESOURCE_NONE, 0, queue->in_flight},
                              "%u submits are in flight: wait for their points",
                              queue->in_flight);
    }
    device.scheduler.close_lane(queue->lane);
    --device.queue_count;
    delete queue;
    return KVSPAN_OK;
  });
}

}  // namespace

kvspan_result_t enqueue(Queue& queue,
                        Job job,
                        const kvspan_submit_t* submit,
                        std::uint32_t argument,
                        kvspan_error_t* error,
                        const char* where) {
  Device& device = queue.device;
  if (device.scheduler.lost().has_value()) {
    return report(*device.scheduler.lost(), error, where);
  }
  if (const kvspan_result_t bad = check_all(queue, submit, argument, error, where)) {
    return bad;
  }
  auto work = std::make_unique<Work>();
  work->queue = &queue;
  work->submit_id = submit->submit_id;
  work->flags = submit->flags;
  work->bytes = job.bytes;
  work->body = std::move(job.body);
  for (std::uint32_t i = 0; i < submit->wait_count; ++i) {
    work->waits.push_back({fence_of(submit->waits[i].fence), submit->waits[i].value});
  }
  for (std::uint32_t i = 0; i < submit->signal_count; ++i) {
    work->signals.push_back({fence_of(submit->signals[i].fence), submit->signals[i].value});
  }
  if (submit->cancel_memory != nullptr) {
    work->cancel = reinterpret_cast<const std::uint32_t*>(
        address_of(submit->cancel_memory, submit->cancel_offset));
    job.memories.push_back(submit->cancel_memory);
  }
  for (kvspan_memory_t* memory : job.memories) {
    if (memory != nullptr) {
      work->memories.push_back(memory_of(memory));
    }
  }
  device.scheduler.enqueue(*queue.lane, std::move(work));
  device.plugin.changed.notify_all();
  return KVSPAN_OK;
}

const kvspan_queue_table_t kQueueTable = {
    sizeof(kvspan_queue_table_t), 0, queue_create, queue_destroy};

}  // namespace kvspan::stub
