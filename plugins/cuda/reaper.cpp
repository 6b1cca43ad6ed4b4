// SPDX-License-Identifier: Apache-2.0
// The thread of a queue: sleeps until the oldest packet's work has ended and settles it; where the
// host runs far ahead, until that of a later one has, and settles all up to it, and what those were
// behind in other queues. A packet settles only after the points that it waited for, so that a host
// never sees an effect before its cause, and lets its memories go in one critical section with
// giving its signals, so that a host which saw the signal can release and destroy at once. Read
// first: queue.hpp.
#include "layout.hpp"
#include "queue.hpp"

namespace kvspan::cuda {

Queue::~Queue() {
  {
    const std::lock_guard lock(device_.mutex);
    stop_ = true;
    work_.notify_one();
  }
  thread_.join();
  const Current current(device_.driver, device_.context);
  for (uint32_t i = 0; packets_ != nullptr && i < depth_; ++i) {
    Packet& packet = packets_[i];
    for (cudaEvent_t event : {packet.plain, packet.restful, packet.begin, packet.end}) {
      if (event != nullptr) {
        cudaEventDestroy(event);
      }
    }
    device_.pinned.give_back(packet.slab);
    packet.~Packet();
  }
  for (cudaEvent_t event : {spare_restful_, spare_plain_}) {
    if (event != nullptr) {
      cudaEventDestroy(event);
    }
  }
  device_.pinned.unreserve(reserved_);
  if (room_ != nullptr) {
    device_.pool.give_back(room_);
  }
  if (stream_ != nullptr && !imported_) {
    cudaStreamDestroy(stream_);
  }
}

// Has ended when this returns: a queue may end, and its room go, before a stream gets to it; an
// engine's stream may even stand still until then.
cudaError_t Queue::clear_mirror() {
  cudaStream_t stream = stream_;
  if (imported_) {
    if (const cudaError_t bad = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) {
      return bad;
    }
  }
  cudaError_t bad = cudaMemsetAsync(room_ + kRoomBytes, 0, kMirrorBytes, stream);
  bad = bad != cudaSuccess ? bad : cudaStreamSynchronize(stream);
  if (imported_) {
    cudaStreamDestroy(stream);
  }
  return bad;
}

cudaError_t Queue::make_events() {
  cudaError_t bad =
      imported_ ? cudaSuccess : cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  bad = bad != cudaSuccess ? bad : device_.pool.take(kRoomBytes + kMirrorBytes, room_);
  bad = bad != cudaSuccess ? bad : clear_mirror();
  constexpr unsigned kRestful = cudaEventBlockingSync | cudaEventDisableTiming;
  bad = bad != cudaSuccess ? bad : cudaEventCreateWithFlags(&spare_restful_, kRestful);
  bad = bad != cudaSuccess ? bad : cudaEventCreateWithFlags(&spare_plain_, cudaEventDisableTiming);
  for (uint32_t i = 0; i < depth_ && bad == cudaSuccess; ++i) {
    Packet& packet = packets_[i];
    bad = cudaEventCreateWithFlags(&packet.restful, kRestful);
    if (bad == cudaSuccess) {
      bad = cudaEventCreateWithFlags(&packet.plain, cudaEventDisableTiming);
    }
    if (bad == cudaSuccess) {
      bad = cudaEventCreateWithFlags(&packet.begin, cudaEventDefault);
    }
    if (bad == cudaSuccess) {
      bad = cudaEventCreateWithFlags(&packet.end, cudaEventDefault);
    }
  }
  return bad;
}

kvspan_result_t Queue::start(const Reserved& wanted, kvspan_error_t* error, const char* where) {
  const SignalsBlocked blocked;  // the driver may start a thread for the first event that sleeps
  ring_ = Block::of(device_.host, sizeof(Packet) * depth_);
  measurement_block_ = Block::of(device_.host, sizeof(kvspan_measurement_t) * kMeasurementsMax);
  if (ring_.data() == nullptr || measurement_block_.data() == nullptr) {
    return report_no_host_memory(sizeof(Packet) * depth_, error, where);
  }
  packets_ = reinterpret_cast<Packet*>(ring_.data());
  for (uint32_t i = 0; i < depth_; ++i) {
    new (packets_ + i) Packet;
  }
  measurements_ = reinterpret_cast<kvspan_measurement_t*>(measurement_block_.data());
  {
    const Current current(device_.driver, device_.context);
    if (const cudaError_t bad = make_events()) {
      return report_call(device_, bad, "making a stream and its events", error, where);
    }
    if (wanted.slab_bytes != 0) {
      if (const kvspan_result_t bad = reserve(wanted, error, where)) {
        return bad;
      }
      use_reserved(wanted);
    }
  }
  if (!thread_.start(thread_main, this)) {
    return report_no_host_memory(sizeof(Thread), error, where);
  }
  return KVSPAN_OK;
}

kvspan_result_t Queue::reserve(const Reserved& wanted, kvspan_error_t* error, const char* where) {
  const uint64_t bytes = wanted.slab_bytes * reserved_depth(wanted);
  if (device_.pinned.reserve(reserved_, bytes) != cudaSuccess) {
    return report_no_host_memory(bytes, error, where);
  }
  return KVSPAN_OK;
}

void Queue::use_reserved(const Reserved& wanted) {
  reserved_for_ = {wanted.slab_bytes, reserved_depth(wanted)};
}

uint32_t Queue::reserved_depth(const Reserved& wanted) const {
  return wanted.depth != 0 && wanted.depth < depth_ ? wanted.depth : depth_;
}

// No more submits are in flight than there are reserved slabs, so that of this number is free.
cudaError_t Queue::find_slab(Packet& packet, uint64_t bytes, uint8_t*& found) {
  if (bytes <= reserved_for_.slab_bytes) {
    found = reserved_.data + head_ % reserved_for_.depth * reserved_for_.slab_bytes;
    return cudaSuccess;
  }
  const cudaError_t bad = device_.pinned.grow(packet.slab, bytes);
  found = packet.slab.data;
  return bad;
}

void Queue::thread_main(void* argument) {
  static_cast<Queue*>(argument)->serve();
}

void Queue::serve() {
  const Current current(device_.driver, device_.context);
  std::unique_lock lock(device_.mutex);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || head_ != tail_; });
    if (head_ == tail_) {
      return;
    }
    const Rest how = next_rest();
    resting_ = how.done;
    lock.unlock();
    const cudaError_t native = rest(how);
    lock.lock();
    resting_ = nullptr;
    settle_until(how.until, native, lock);
  }
}

// Settles up to packet `last`, whose work has ended with `native`. The mutex is let go of where
// points must be waited for; another thread may then settle some of these.
void Queue::settle_until(uint64_t last, cudaError_t native, std::unique_lock<std::mutex>& lock) {
  while (tail_ <= last) {
    const uint64_t at = tail_;
    Packet& packet = packet_at(at);
    Cause cause = outcome(packet, native);
    await_points(packet, native == cudaSuccess, lock, cause);
    if (tail_ == at) {
      settle(packet, cause);
    }
  }
}

// What became of the work itself; its event is behind it.
Cause Queue::outcome(const Packet& packet, cudaError_t native) const {
  if (native != cudaSuccess) {
    cudaGetLastError();
    return {is_sticky(native) ? KVSPAN_E_DEVICE_LOST : KVSPAN_E_INTERNAL,
            packet.submit_id,
            is_sticky(native) ? kLostText : "this work failed on the device",
            static_cast<int32_t>(native)};
  }
  if (packet.cause.code != KVSPAN_OK) {
    return packet.cause;
  }
  if (__atomic_load_n(packet.cancel_seen, __ATOMIC_ACQUIRE) != 0) {
    return {KVSPAN_E_CANCELLED, packet.submit_id, kCancelledText, 0};
  }
  return {};
}

// Until all points that the packet waited for have settled: their work is done, but the thread of
// their queue may be behind us, asleep for later work; or it never ran and is waited for. The
// oldest unsettled packet of the device waits for nobody. Nothing more where another thread settles
// the packet meanwhile.
// `ended`: its work has, so that what its stream waited for has ended too.
void Queue::await_points(const Packet& packet,
                         bool ended,
                         std::unique_lock<std::mutex>& lock,
                         Cause& cause) {
  const uint64_t at = tail_;
  for (uint32_t i = 0; tail_ == at && i < packet.wait_count; ++i) {
    const Point point = packet.waits[i];
    if (packet.issued && ended) {
      settle_behind(point);
    }
    while (tail_ == at && !point.fence->reached(point.value) && !point.fence->failed() &&
           !device_.lost) {
      point.fence->want(point.value);
      device_.settled.wait(lock);
    }
    if (tail_ == at && !point.fence->reached(point.value) && cause.code == KVSPAN_OK) {
      cause = {KVSPAN_E_WAIT_FAILED, packet.submit_id, kWaitFailedText, 0};
    }
  }
}

// A stream waited for `point` and has done what was behind it: so the work that signals it has
// ended, and all before that on its own stream. Its thread may sleep on; what waits for nothing
// that never ran is settled here. The device's mutex is held.
void Queue::settle_behind(const Point& point) {
  Queue* const signaller = point.fence->signaller;
  if (signaller == nullptr || signaller == this || point.fence->reached(point.value) ||
      point.fence->failed()) {
    return;
  }
  const Packet* const promise = promise_of(*point.fence, point.value);
  uint64_t at = signaller->tail_;
  while (at != signaller->head_ && &signaller->packet_at(at) != promise) {
    ++at;
  }
  if (at != signaller->head_ && promise->issued) {
    signaller->settle_now(at);
  }
}

// By any thread: up to packet `last`, whose work has ended, without letting go of the device's
// mutex.
void Queue::settle_now(uint64_t last) {
  while (tail_ <= last) {
    Packet& packet = packet_at(tail_);
    Cause cause = outcome(packet, cudaSuccess);
    for (uint32_t i = 0; i < packet.wait_count; ++i) {
      const Point& point = packet.waits[i];
      if (packet.issued) {
        settle_behind(point);
      }
      const bool reached = point.fence->reached(point.value);
      if (!reached && !point.fence->failed()) {
        return;
      }
      if (!reached && cause.code == KVSPAN_OK) {
        cause = {KVSPAN_E_WAIT_FAILED, packet.submit_id, kWaitFailedText, 0};
      }
    }
    settle(packet, cause);
  }
}

// Gives the signals, or fails them. The device's mutex is held.
void Queue::settle(Packet& packet, const Cause& cause) {
  if (cause.code == KVSPAN_E_DEVICE_LOST) {
    lose_device(device_, static_cast<cudaError_t>(cause.native), packet.submit_id);
  }
  if (packet.measure && packet.issued && cause.code == KVSPAN_OK) {
    record(packet);
  }
  for (uint64_t i = 0; i < packet.memory_count; ++i) {
    packet.memories[i]->uses.fetch_sub(1, std::memory_order_release);
  }
  if (packet.launches != nullptr) {
    --*packet.launches;
  }
  for (uint32_t i = 0; i < packet.wait_count; ++i) {
    --packet.waits[i].fence->uses;
  }
  bool wakes = false;
  for (uint32_t i = 0; i < packet.signal_count; ++i) {
    Fence& fence = *packet.signals[i].fence;
    --fence.uses;
    --fence.promise_count;
    if (cause.code == KVSPAN_OK) {
      fence.reach(packet.signals[i].value);
    } else {
      fence.fail(cause);
    }
    wakes = fence.wakes() || wakes;
  }
  ++tail_;
  if (wakes || device_.lost) {  // on a lost device those who end objects wait for idle ones
    device_.settled.notify_all();
  }
}

// The device's mutex is held; both events are in the past.
void Queue::record(const Packet& packet) {
  float milliseconds = 0.0f;
  if (cudaEventElapsedTime(&milliseconds, packet.begin, packet.end) != cudaSuccess) {
    cudaGetLastError();
    return;
  }
  if (measured_ - handed_out_ < kMeasurementsMax) {
    const auto duration_ns = static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6);
    measurements_[measured_ % kMeasurementsMax] = {packet.submit_id, duration_ns, packet.bytes};
    ++measured_;
  }
}

uint32_t Queue::take_measurements(kvspan_measurement_t* out, uint32_t capacity) {
  const std::lock_guard lock(device_.mutex);
  uint32_t count = 0;
  while (count < capacity && handed_out_ != measured_) {
    out[count++] = measurements_[handed_out_++ % kMeasurementsMax];
  }
  return count;
}

}  // namespace kvspan::cuda
