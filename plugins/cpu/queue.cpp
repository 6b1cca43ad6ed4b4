// SPDX-License-Identifier: Apache-2.0
// The queue table and the door that every submit goes through. What happens behind it: worker.cpp.
#include "queue.hpp"

#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/fill.hpp"
#include "kvspan/sdk/guard.hpp"
#include "kvspan/sdk/validate_points.hpp"
#include "kvspan/sdk/validate_submit.hpp"

#include "layout.hpp"

#include <cstddef>

namespace kvspan::cpu {

namespace {

// Everything about `submit` that needs no lock.
kvspan_result_t check_submit(const Device& device,
                             const kvspan_submit_t* submit,
                             uint32_t argument,
                             kvspan_error_t* error,
                             const char* where) {
  sdk::Context context(OwnBytes{&device});
  context.spot.place.argument = argument;
  if (const kvspan_result_t bad = sdk::check_submit(submit, context, error, where)) {
    return bad;
  }
  kvspan_memory_t* const cancel = submit->cancel_memory;
  if (cancel != nullptr && memory_of(cancel)->kind != KVSPAN_MEMORY_HOST) {
    return sdk::fail_argument(error,
                              {argument, offsetof(kvspan_submit_t, cancel_memory)},
                              where,
                              "the cancel word is not in HOST memory: allocate it with that kind");
  }
  const auto owned = [&](kvspan_fence_t* fence) { return &fence_of(fence)->device == &device; };
  return sdk::check_point_owners(*submit, owned, argument, error, where);
}

// The value that `fence` is promised by the signals before number `index` of a submit.
uint64_t promised_before(const kvspan_submit_t& submit, uint32_t index) {
  kvspan_fence_t* const fence = submit.signals[index].fence;
  uint64_t promised = fence_of(fence)->promised;
  for (uint32_t i = 0; i < index; ++i) {
    promised = submit.signals[i].fence == fence ? submit.signals[i].value : promised;
  }
  return promised;
}

}  // namespace

kvspan_result_t check_prepared(Device& device,
                               uint64_t Limits::*limit,
                               uint64_t required,
                               const char* what,
                               kvspan_error_t* error,
                               const char* where) {
  uint64_t provided = 0;
  {
    const std::lock_guard lock(device.mutex);
    if (!device.prepared.has_value() || required <= (*device.prepared).*limit) {
      return KVSPAN_OK;
    }
    provided = (*device.prepared).*limit;
  }
  return sdk::fail_amount(error,
                          KVSPAN_E_HOST_MEMORY,
                          where,
                          {KVSPAN_RESOURCE_PREPARED, required, provided},
                          "%llu %s in one submit, prepare was told of %llu: prepare for more",
                          sdk::number(required),
                          what,
                          sdk::number(provided));
}

kvspan_result_t Queue::check_depth(kvspan_error_t* error, const char* where) {
  const std::lock_guard lock(device_.mutex);
  const uint32_t told = device_.prepared_depth;
  const uint32_t depth = told != 0 && told < depth_ ? told : depth_;
  if (in_flight() < depth) {
    return KVSPAN_OK;
  }
  return sdk::fail_amount(error,
                          KVSPAN_E_QUEUE_FULL,
                          where,
                          {depth < depth_ ? KVSPAN_RESOURCE_PREPARED : KVSPAN_RESOURCE_QUEUE_DEPTH,
                           uint64_t{depth} + 1,
                           depth},
                          "%u submits are in flight, which is this queue's depth: wait for one",
                          depth);
}

kvspan_result_t Queue::place(Packet& packet,
                             Task& task,
                             const kvspan_submit_t& submit,
                             kvspan_error_t* error,
                             const char* where) {
  const PacketCounts counts{submit.wait_count, submit.signal_count, task.uses_max + 1};
  Cutter counter(nullptr);
  cut_packet(counter, packet, counts);
  task.lay_out(counter);
  if (packet.slab.bytes() < counter.bytes()) {
    Block larger = Block::of(device_.host, counter.bytes());
    if (larger.data() == nullptr) {
      return report_no_host_memory(counter.bytes(), error, where);
    }
    packet.slab = std::move(larger);
  }
  Cutter cutter(packet.slab.data());
  cut_packet(cutter, packet, counts);
  task.lay_out(cutter);
  Uses uses(packet.memories);
  packet.copies = false;
  task.fill(packet, uses);
  uses.add(submit.cancel_memory);
  packet.memory_count = uses.count();
  packet.submit_id = submit.submit_id;
  packet.measure = (submit.flags & KVSPAN_SUBMIT_MEASURE) != 0;
  packet.cancel_word =
      reinterpret_cast<const uint32_t*>(address_of(submit.cancel_memory, submit.cancel_offset));
  packet.wait_count = 0;
  for (uint32_t i = 0; i < submit.wait_count; ++i) {
    const Point point{fence_of(submit.waits[i].fence), submit.waits[i].value};
    uint32_t at = 0;  // the largest value of each fence is enough
    while (at < packet.wait_count && packet.waits[at].fence != point.fence) {
      ++at;
    }
    if (at == packet.wait_count) {
      packet.waits[packet.wait_count++] = point;
    } else if (packet.waits[at].value < point.value) {
      packet.waits[at].value = point.value;
    }
  }
  packet.signal_count = submit.signal_count;
  for (uint32_t i = 0; i < submit.signal_count; ++i) {
    packet.signals[i] = {fence_of(submit.signals[i].fence), submit.signals[i].value};
  }
  return KVSPAN_OK;
}

// KV-SUBMIT-6, and the one wait that could never end. The device's mutex is held.
kvspan_result_t Queue::check_points(const kvspan_submit_t& submit,
                                    uint32_t argument,
                                    kvspan_error_t* error,
                                    const char* where) const {
  const sdk::Place at_signals{argument, offsetof(kvspan_submit_t, signals)};
  for (uint32_t i = 0; i < submit.signal_count; ++i) {
    const Fence& fence = *fence_of(submit.signals[i].fence);
    const uint64_t promised = promised_before(submit, i);
    if (submit.signals[i].value <= promised) {
      return sdk::fail_argument(error,
                                at_signals,
                                where,
                                "signal point %u is %llu and its fence goes to %llu: signal more",
                                i,
                                sdk::number(submit.signals[i].value),
                                sdk::number(promised));
    }
    if (fence.promise_count != 0 && fence.signaller != this) {
      return sdk::fail_argument(error,
                                at_signals,
                                where,
                                "signal point %u: another queue has yet to signal this fence: use "
                                "one fence a queue, or wait for that work",
                                i);
    }
    for (uint32_t w = 0; w < submit.wait_count; ++w) {
      if (submit.waits[w].fence == submit.signals[i].fence &&
          submit.waits[w].value > fence.promised && !fence.failed()) {
        return sdk::fail_reasons(error,
                                 where,
                                 0,
                                 "wait point %u asks for %llu of a fence that only this submit "
                                 "would signal: submit the signal first",
                                 w,
                                 sdk::number(submit.waits[w].value));
      }
    }
  }
  return KVSPAN_OK;
}

// Makes a placed packet the queue's last. The device's mutex is held.
void Queue::accept(Packet& packet) {
  for (uint32_t i = 0; i < packet.wait_count; ++i) {
    ++packet.waits[i].fence->uses;
  }
  for (uint32_t i = 0; i < packet.signal_count; ++i) {
    Fence& fence = *packet.signals[i].fence;
    ++fence.uses;
    ++fence.promise_count;
    fence.signaller = this;
    fence.promised = packet.signals[i].value;
  }
  for (uint64_t i = 0; i < packet.memory_count; ++i) {
    packet.memories[i]->uses.fetch_add(1, std::memory_order_relaxed);
  }
  packet.loses_device = fires(device_.faults.loss_in);
  packet.planted_code =
      fires(device_.faults.submit_in) ? device_.faults.submit_code : kvspan_result_t{KVSPAN_OK};
  device_.counters.submits.fetch_add(1, std::memory_order_relaxed);
  if (device_.plugin.options.link.is_there()) {
    packet.accepted = Clock::now();
  }
  ++head_;
  work_.notify_one();
}

kvspan_result_t Queue::submit(Task& task,
                              const kvspan_submit_t* submit,
                              uint32_t argument,
                              kvspan_error_t* error,
                              const char* where) {
  if (device_.lost) {
    return report_lost(error, where);
  }
  if (const kvspan_result_t bad = check_submit(device_, submit, argument, error, where)) {
    return bad;
  }
  if (const kvspan_result_t bad = check_depth(error, where)) {
    return bad;
  }
  Packet& packet = packet_at(head_);  // only this thread moves head_, only it touches a free packet
  if (const kvspan_result_t bad = place(packet, task, *submit, error, where)) {
    return bad;
  }
  const std::lock_guard lock(device_.mutex);
  if (device_.lost) {
    return report_lost(error, where);
  }
  if (const kvspan_result_t bad = check_points(*submit, argument, error, where)) {
    return bad;
  }
  accept(packet);
  return KVSPAN_OK;
}

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
kvspan_result_t admit(Device& device,
                      uint64_t& slab_bytes,
                      kvspan_error_t* error,
                      const char* where) {
  const std::lock_guard lock(device.mutex);
  if (device.queue_count == kQueuesMax) {
    return sdk::fail_reasons(
        error, where, 0, "%u queues exist, which is all there are: share one", kQueuesMax);
  }
  ++device.queue_count;
  ++device.object_count;
  slab_bytes = device.prepared.has_value() ? prepared_slab_bytes(*device.prepared) : 0;
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
      return report_lost(error, kWhere);
    }
    uint64_t slab_bytes = 0;
    if (const kvspan_result_t bad = admit(device, slab_bytes, error, kWhere)) {
      return bad;
    }
    const uint32_t depth = options->depth == 0 ? kDepthMax : options->depth;
    Queue* const queue = device.host.make<Queue>(device, options->role, depth);
    kvspan_result_t result = queue == nullptr ? report_no_host_memory(sizeof(Queue), error, kWhere)
                                              : queue->start(slab_bytes, error, kWhere);
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

const kvspan_queue_table_t kQueueTable = {
    sizeof(kvspan_queue_table_t), 0, queue_create, queue_destroy};

}  // namespace kvspan::cpu
