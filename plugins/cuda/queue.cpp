// SPDX-License-Identifier: Apache-2.0
// The queue table: making and ending queues. What a submit goes through: submit.cpp.
#include "queue.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"

#include "graph.hpp"
#include "layout.hpp"

#include <cstddef>

namespace kvspan::cuda {

namespace {

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

// Counts a queue in, or says why there is no room for one.
kvspan_result_t admit(Device& device, Reserved& wanted, kvspan_error_t* error, const char* where) {
  const std::lock_guard lock(device.mutex);
  if (device.queue_count == kQueuesMax) {
    return sdk::fail_reasons(
        error, where, 0, "%u queues exist, which is all there are: share one", kQueuesMax);
  }
  ++device.queue_count;
  ++device.object_count;
  if (device.prepared.has_value()) {
    wanted = {prepared_slab_bytes(*device.prepared), device.prepared_depth};
  }
  return KVSPAN_OK;
}

void dismiss(Device& device) {
  --device.queue_count;
  --device.object_count;
}

kvspan_result_t KVSPAN_CALL queue_create(kvspan_device_t* handle,
                                         const kvspan_queue_options_t* options,
                                         kvspan_queue_t** out_queue,
                                         kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "queue.create";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr || out_queue == nullptr) {
      return sdk::fail_argument(
          error, {handle == nullptr ? 1u : 3u}, kWhere, "an argument is NULL: pass one");
    }
    if (const kvspan_result_t bad = check_options(options, error, kWhere)) {
      return bad;
    }
    Device& device = *device_of(handle);
    if (device.lost) {
      return report_lost(device, error, kWhere);
    }
    const uint32_t depth = options->depth == 0 ? kDepthMax : options->depth;
    return make_queue(device, depth, nullptr, out_queue, error, kWhere);
  });
}

kvspan_result_t KVSPAN_CALL queue_destroy(kvspan_queue_t* handle, kvspan_error_t* error) noexcept {
  constexpr const char* kWhere = "queue.destroy";
  return sdk::guard(error, kWhere, [&]() -> kvspan_result_t {
    if (handle == nullptr) {
      return sdk::fail_argument(error, {1}, kWhere, "the queue is NULL: pass one");
    }
    Queue* const queue = queue_of(handle);
    Device& device = queue->device();
    if (queue->recorder != nullptr && device.lost) {
      end_recording(*queue, false);
    }
    if (queue->recorder != nullptr) {
      return sdk::fail(
          error, KVSPAN_E_BUSY, kWhere, "the queue is recording: end that, then destroy");
    }
    {
      std::unique_lock lock(device.mutex);
      if (device.lost) {  // what is pending settles by itself and soon
        device.settled.wait(lock, [&] { return queue->in_flight() == 0; });
      }
      if (const uint32_t pending = queue->in_flight()) {
        return sdk::fail_amount(error,
                                KVSPAN_E_BUSY,
                                kWhere,
                                {KVSPAN_RESOURCE_NONE, 0, pending},
                                "%u submits are in flight: wait for their points, then destroy",
                                pending);
      }
      Queue** link = &device.queues;
      while (*link != queue) {
        link = &(*link)->next;
      }
      *link = queue->next;
      for (Fence* fence = device.fences; fence != nullptr; fence = fence->next) {
        fence->signaller = fence->signaller == queue ? nullptr : fence->signaller;
      }
      dismiss(device);
    }
    device.host.unmake(queue);  // joins the thread
    return KVSPAN_OK;
  });
}

}  // namespace

kvspan_result_t make_queue(Device& device,
                           uint32_t depth,
                           cudaStream_t imported,
                           kvspan_queue_t** out_queue,
                           kvspan_error_t* error,
                           const char* where) {
  Reserved wanted;
  if (const kvspan_result_t bad = admit(device, wanted, error, where)) {
    return bad;
  }
  Queue* const queue = device.host.make<Queue>(device, depth, imported);
  const kvspan_result_t result = queue == nullptr
                                     ? report_no_host_memory(sizeof(Queue), error, where)
                                     : queue->start(wanted, error, where);
  if (result != KVSPAN_OK && queue != nullptr) {
    device.host.unmake(queue);
  }
  const std::lock_guard lock(device.mutex);
  if (result != KVSPAN_OK) {
    dismiss(device);
    return result;
  }
  queue->next = device.queues;
  device.queues = queue;
  *out_queue = handle_of(queue);
  return KVSPAN_OK;
}

const kvspan_queue_table_t kQueueTable = {
    sizeof(kvspan_queue_table_t), 0, queue_create, queue_destroy};

}  // namespace kvspan::cuda
