// SPDX-License-Identifier: Apache-2.0
// The door that every submit goes through: checked, placed in a packet, ordered behind its points,
// put on the stream. What becomes of it: reaper.cpp. Read first: queue.hpp.
#include "kvspan/sdk/error.hpp"
#include "kvspan/sdk/validate_points.hpp"
#include "kvspan/sdk/validate_submit.hpp"

#include "graph.hpp"
#include "layout.hpp"
#include "queue.hpp"

#include <cstddef>

namespace kvspan::cuda {

namespace {

unsigned long long number(uint64_t value) {
  return value;
}

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
                          number(required),
                          what,
                          number(provided));
}

// What this queue takes at all; said before anything else of a submit is looked at.
kvspan_result_t Queue::check_kind(const Task& task,
                                  kvspan_error_t* error,
                                  const char* where) const {
  if (recorder != nullptr && task.kind != Task::Kind::kernels) {
    return sdk::fail_reasons(error,
                             where,
                             0,
                             "the queue is recording, which takes codec, attention and fill only: "
                             "end the recording, or use another queue");
  }
  if (imported_ && task.kind == Task::Kind::copies) {
    return sdk::fail_reasons(
        error,
        where,
        0,
        "this queue is the engine's stream, which takes no copies: use an own one");
  }
  if (!imported_ || recorder != nullptr) {
    return KVSPAN_OK;
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const Current current(device_.driver, device_.context);
  if (cudaStreamIsCapturing(stream_, &status) == cudaSuccess &&
      status == cudaStreamCaptureStatusNone) {
    return KVSPAN_OK;
  }
  return sdk::fail_reasons(error,
                           where,
                           0,
                           "the engine is recording this stream into a graph of its own: submit "
                           "before or after that");
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
  uint8_t* slab = nullptr;
  if (const cudaError_t bad = find_slab(packet, counter.bytes(), slab)) {
    return bad == cudaErrorMemoryAllocation
               ? report_no_host_memory(counter.bytes(), error, where)
               : report_call(device_, bad, "making room for a submit", error, where);
  }
  Cutter cutter(slab);
  cut_packet(cutter, packet, counts);
  task.lay_out(cutter);
  Uses uses(packet.memories);
  packet.body_bytes = 0;
  packet.launches = nullptr;
  task.fill(packet, uses);
  uses.add(submit.cancel_memory);
  packet.memory_count = uses.count();
  packet.submit_id = submit.submit_id;
  packet.measure = (submit.flags & KVSPAN_SUBMIT_MEASURE) != 0;
  packet.cancel_memory =
      submit.cancel_memory == nullptr ? nullptr : memory_of(submit.cancel_memory);
  packet.cancel_offset = submit.cancel_offset;
  *packet.cancel_seen = 0;
  packet.issued = false;
  packet.cause = {};
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

// KV-SUBMIT-6. The device's mutex is held.
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
                                number(submit.signals[i].value),
                                number(promised));
    }
    if (fence.promise_count != 0 && fence.signaller != this) {
      return sdk::fail_argument(error,
                                at_signals,
                                where,
                                "signal point %u: another queue has yet to signal this fence: use "
                                "one fence a queue, or wait for that work",
                                i);
    }
  }
  return KVSPAN_OK;
}

// The oldest pending packet that brings `fence` to `value`; nullptr: nobody has submitted that. The
// device's mutex is held.
const Packet* Queue::promise_of(const Fence& fence, uint64_t value) {
  const Queue* const signaller = fence.signaller;
  if (signaller == nullptr || fence.promise_count == 0) {
    return nullptr;
  }
  // From the newest on: what is waited for was submitted not long ago.
  const Packet* found = nullptr;
  for (uint64_t at = signaller->head_; at != signaller->tail_; --at) {
    const Packet& packet = signaller->packet_at(at - 1);
    uint64_t brings = 0;
    for (uint32_t i = 0; i < packet.signal_count; ++i) {
      brings = packet.signals[i].fence == &fence ? packet.signals[i].value : brings;
    }
    if (brings >= value) {
      found = &packet;
    } else if (brings != 0) {
      break;
    }
  }
  return found;
}

// KV-SUBMIT-5: what is waited for is reached, has failed, or is on a stream. The device's mutex is
// held.
kvspan_result_t Queue::check_waits(const kvspan_submit_t& submit,
                                   kvspan_error_t* error,
                                   const char* where) const {
  for (uint32_t i = 0; i < submit.wait_count; ++i) {
    const Fence& fence = *fence_of(submit.waits[i].fence);
    const uint64_t value = submit.waits[i].value;
    if (!fence.reached(value) && !fence.failed() && promise_of(fence, value) == nullptr) {
      return sdk::fail_reasons(error,
                               where,
                               0,
                               "wait point %u asks for %llu of a fence that no submit yet signals "
                               "that far: submit the signal first",
                               i,
                               number(value));
    }
  }
  return KVSPAN_OK;
}

// Names a placed packet's fences and memories, and fires planted faults. The device's mutex is
// held.
void Queue::name(Packet& packet) {
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
  if (packet.launches != nullptr) {
    ++*packet.launches;
  }
  if (fires(device_.faults.submit_in)) {
    packet.cause = {
        device_.faults.submit_code, packet.submit_id, "this work failed (a planted fault)", 0};
  }
  if (fires(device_.faults.loss_in)) {
    packet.cause = {KVSPAN_E_DEVICE_LOST, packet.submit_id, kLostText, 0};
  }
  device_.counters.submits.fetch_add(1, std::memory_order_relaxed);
}

// Makes the stream wait for the packet's points, or dooms the packet where one cannot be reached.
// The device's mutex is held, so that no event is recorded anew before the stream waits for it.
void Queue::order(Packet& packet) {
  for (uint32_t i = 0; i < packet.wait_count && packet.cause.code == KVSPAN_OK; ++i) {
    const Point& point = packet.waits[i];
    if (point.fence->reached(point.value)) {
      continue;
    }
    const Packet* const promise =
        point.fence->failed() ? nullptr : promise_of(*point.fence, point.value);
    if (promise == nullptr || !promise->issued) {
      packet.cause = {KVSPAN_E_WAIT_FAILED, packet.submit_id, kWaitFailedText, 0};
    } else if (point.fence->signaller != this) {
      if (const cudaError_t bad = cudaStreamWaitEvent(stream_, promise->done, 0)) {
        packet.cause = outcome(packet, bad);
      }
    }
  }
}

// Puts the work on the stream and its event behind it; SYNC(queue), without the mutex.
void Queue::put_on_stream(Packet& packet) {
  if (packet.cause.code != KVSPAN_OK) {
    return;
  }
  Cancel cancel{};
  if (packet.cancel_memory != nullptr) {
    const Memory& memory = *packet.cancel_memory;
    const auto* const here =
        reinterpret_cast<const uint32_t*>(memory.host_address + packet.cancel_offset);
    if (__atomic_load_n(here, __ATOMIC_ACQUIRE) != 0) {
      packet.cause = {KVSPAN_E_CANCELLED, packet.submit_id, kCancelledText, 0};
      return;
    }
    cancel = {reinterpret_cast<const uint32_t*>(memory.address + packet.cancel_offset),
              packet.cancel_seen,
              reinterpret_cast<uint32_t*>(room_ + kRoomBytes),
              static_cast<uint32_t>(head_ % UINT32_MAX) + 1};  // never 0: so the mirror begins
  }
  cudaError_t bad = packet.measure ? cudaEventRecord(packet.begin, stream_) : cudaSuccess;
  bad = bad != cudaSuccess ? bad : packet.issue({device_, stream_, cancel, room_}, packet.body);
  if (bad == cudaSuccess && packet.measure) {
    bad = cudaEventRecord(packet.end, stream_);
  }
  // Also behind work of which only a part could be put there: its memories are in use until then.
  const cudaError_t recorded = cudaEventRecord(packet.done, stream_);
  packet.issued = recorded == cudaSuccess;
  bad = bad != cudaSuccess ? bad : recorded;
  if (bad != cudaSuccess) {
    packet.cause = outcome(packet, bad);
  }
}

kvspan_result_t Queue::submit(Task& task,
                              const kvspan_submit_t* submit,
                              uint32_t argument,
                              kvspan_error_t* error,
                              const char* where) {
  if (device_.lost) {
    return report_lost(device_, error, where);
  }
  if (const kvspan_result_t bad = check_kind(task, error, where)) {
    return bad;
  }
  if (const kvspan_result_t bad = check_submit(device_, submit, argument, error, where)) {
    return bad;
  }
  if (recorder != nullptr) {
    return recorder->take(task, *submit, argument, error, where);
  }
  if (const kvspan_result_t bad = check_depth(error, where)) {
    return bad;
  }
  const Current current(device_.driver, device_.context);
  Packet& packet = packet_at(head_);  // only this thread moves head_, only it touches a free packet
  if (const kvspan_result_t bad = place(packet, task, *submit, error, where)) {
    return bad;
  }
  {
    const std::lock_guard lock(device_.mutex);
    if (device_.lost) {
      return report_lost(device_, error, where);
    }
    kvspan_result_t bad = check_points(*submit, argument, error, where);
    bad = bad != KVSPAN_OK ? bad : check_waits(*submit, error, where);
    if (bad != KVSPAN_OK) {
      return bad;
    }
    packet.ours = is_ours(packet, task.kind);
    choose_event(packet);
    name(packet);
    order(packet);
  }
  put_on_stream(packet);
  const std::lock_guard lock(device_.mutex);
  ++head_;
  work_.notify_one();
  return KVSPAN_OK;
}

}  // namespace kvspan::cuda
