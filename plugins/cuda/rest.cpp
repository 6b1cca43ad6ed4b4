// SPDX-License-Identifier: Apache-2.0
// What the thread of a queue rests for before it settles: which packet's end, and how. Only some
// packets have an event that a thread can sleep for. Read first: queue.hpp, reaper.cpp.
#include "queue.hpp"

#include <chrono>
#include <thread>
#include <utility>

namespace kvspan::cuda {

// Whether the end of a packet follows from work that was submitted here alone. The device's mutex
// is held.
bool Queue::is_ours(const Packet& packet, Task::Kind kind) const {
  bool ours =
      !imported_ && kind != Task::Kind::orders && (head_ == tail_ || packet_at(head_ - 1).ours);
  for (uint32_t i = 0; i < packet.wait_count && ours; ++i) {
    const Point& point = packet.waits[i];
    if (!point.fence->reached(point.value) && !point.fence->failed()) {
      const Packet* const promise = promise_of(*point.fence, point.value);
      ours = promise != nullptr && promise->ours;
    }
  }
  return ours;
}

// The event behind a packet's work: one that a thread may sleep for, where few are in flight and
// for every fourth else. Never the one that the queue's thread rests for, which would rest on then.
// The device's mutex is held.
void Queue::choose_event(Packet& packet) {
  packet.restful_done =
      !packet.ours || in_flight() < kManyInFlight || head_ % kSleepStride == kSleepStride - 1;
  cudaEvent_t& event = packet.restful_done ? packet.restful : packet.plain;
  if (event == resting_) {
    std::swap(event, packet.restful_done ? spare_restful_ : spare_plain_);
  }
  packet.done = event;
}

// Somebody waits for one of its signals, or may: who waits beside one that was just told says anew
// what it waits for when it wakes. The device's mutex is held.
bool Queue::is_wanted(const Packet& packet) const {
  bool wanted = false;
  for (uint32_t i = 0; i < packet.signal_count; ++i) {
    const Fence& fence = *packet.signals[i].fence;
    wanted = wanted || fence.wanted <= packet.signals[i].value ||
             (fence.wanted == UINT64_MAX && fence.waiters > 1);
  }
  return wanted;
}

// What is slept for, the oldest packet's end mostly. To wake for one costs a processor tens of
// microseconds; so of many that are in flight a quarter is settled at once, unless somebody waits
// for one of them, or one may depend on what the host does when it sees another: on an engine's
// stream or event. Where none of those has an event to sleep for, the next one that has, at most
// three further on; or the last of them is looked at. So who begins to wait meanwhile is told late
// by that quarter, or those three, at most. The device's mutex is held.
Queue::Rest Queue::next_rest() const {
  if (!packet_at(tail_).issued) {
    return {Rest::Kind::none, tail_};
  }
  const uint64_t ahead = in_flight() < kManyInFlight ? 0 : in_flight() / 4;
  Rest found{Rest::Kind::look, tail_, packet_at(tail_).done};
  for (uint64_t at = tail_; at != head_; ++at) {
    const Packet& packet = packet_at(at);
    const bool sleeps = found.kind == Rest::Kind::event;
    if ((at != tail_ && !packet.ours) || (at > tail_ + ahead && sleeps)) {
      break;
    }
    if (packet.issued && (packet.restful_done || !sleeps)) {
      found = {packet.restful_done ? Rest::Kind::event : Rest::Kind::look, at, packet.done};
    }
    if (is_wanted(packet)) {
      break;
    }
  }
  return found;
}

// Without the mutex. Another queue's thread may settle the packet meanwhile, see settle_behind().
cudaError_t Queue::rest(const Rest& how) {
  switch (how.kind) {
    case Rest::Kind::none:
      return cudaSuccess;
    case Rest::Kind::event:
      return cudaEventSynchronize(how.done);
    case Rest::Kind::look:
      break;
  }
  for (;;) {
    const cudaError_t state = cudaEventQuery(how.done);
    if (state != cudaErrorNotReady) {
      return state;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(kLookMicroseconds));
    const std::lock_guard lock(device_.mutex);
    if (tail_ > how.until) {
      return cudaSuccess;
    }
  }
}

}  // namespace kvspan::cuda
