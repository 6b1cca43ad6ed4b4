// SPDX-License-Identifier: Apache-2.0
// The thread of a queue: takes packets in submit order, waits for their points, runs them, settles
// them. A packet's memories are let go before its signals are given, in one critical section with
// them, so that a host which saw the signal can release and destroy at once. Read first: queue.hpp.
#include "layout.hpp"
#include "queue.hpp"

namespace kvspan::cpu {

namespace {

constexpr const char* kLost = "the device was lost: close it and open it again";

// How often a copy that waits for its link looks at its cancel word.
constexpr std::chrono::milliseconds kCancelLook{1};

Cause lost(const Packet& packet) {
  return {KVSPAN_E_DEVICE_LOST, packet.submit_id, kLost};
}

Cause cancelled(const Packet& packet) {
  return {KVSPAN_E_CANCELLED, packet.submit_id, "the cancel word was set before this work ended"};
}

}  // namespace

Queue::~Queue() {
  {
    const std::lock_guard lock(device_.mutex);
    stop_ = true;
    work_.notify_one();
  }
  thread_.join();
  for (uint32_t i = 0; packets_ != nullptr && i < depth_; ++i) {
    packets_[i].~Packet();
  }
}

kvspan_result_t Queue::start(uint64_t slab_bytes, kvspan_error_t* error, const char* where) {
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
  if (!reserve(slab_bytes)) {
    return report_no_host_memory(slab_bytes * depth_, error, where);
  }
  if (!thread_.start(thread_main, this)) {
    return report_no_host_memory(sizeof(Thread), error, where);
  }
  return KVSPAN_OK;
}

uint64_t Queue::slab_bytes() const {
  uint64_t total = 0;
  for (uint32_t i = 0; i < depth_; ++i) {
    total += packets_[i].slab.bytes();
  }
  return total;
}

bool Queue::reserve(uint64_t slab_bytes) {
  for (uint32_t i = 0; i < depth_; ++i) {
    if (packets_[i].slab.bytes() < slab_bytes) {
      Block larger = Block::of(device_.host, slab_bytes);
      if (larger.data() == nullptr) {
        return false;
      }
      packets_[i].slab = std::move(larger);
    }
  }
  return true;
}

void Queue::thread_main(void* argument) {
  static_cast<Queue*>(argument)->serve();
}

void Queue::serve() {
  std::unique_lock lock(device_.mutex);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || head_ != tail_; });
    if (head_ == tail_) {
      return;
    }
    Packet& packet = packet_at(tail_);
    Cause cause;
    const bool waited = wait_for_points(packet, lock, cause);
    if (cause.code == KVSPAN_OK) {
      cause = carry_out(packet, waited, lock);
    }
    settle(packet, cause);
  }
}

// Until all are reached, one has failed, or the device is lost. Whether it had to wait.
bool Queue::wait_for_points(Packet& packet, std::unique_lock<std::mutex>& lock, Cause& cause) {
  bool waited = false;
  for (uint32_t i = 0; i < packet.wait_count; ++i) {
    const Point& point = packet.waits[i];
    while (!point.fence->reached(point.value) && !point.fence->failed() && !device_.lost) {
      device_.settled.wait(lock);
      waited = true;
    }
    if (device_.lost) {
      break;
    }
    if (!point.fence->reached(point.value)) {
      cause = {KVSPAN_E_WAIT_FAILED, packet.submit_id, "a point that this work waited for failed"};
      return waited;
    }
  }
  if (device_.lost) {
    cause = lost(packet);
  }
  return waited;
}

// The work, and on a modelled link the time that it lasts there. A copy whose points were reached
// when its turn came begins where the line got free, not where this thread woke up: what a thread
// takes to wake is no link's. The device's mutex is held before and after.
Cause Queue::carry_out(const Packet& packet, bool waited, std::unique_lock<std::mutex>& lock) {
  const LinkModel& link = device_.plugin.options.link;
  LinkLine* const line =
      packet.copies && packet.bytes != 0 && link.is_there() ? device_.lines.of(role_) : nullptr;
  Clock::time_point end{};
  Clock::duration lasts{};
  if (line != nullptr) {
    lasts = link.time_of(packet.bytes);
    end = line->take(waited ? Clock::now() : packet.accepted, lasts);
  }
  const uint64_t begin_ns = packet.measure ? device_.host.now_ns() : 0;
  lock.unlock();
  Cause cause = run(packet);
  const uint64_t ran_ns = packet.measure ? device_.host.now_ns() - begin_ns : 0;
  lock.lock();
  if (line != nullptr) {
    if (cause.code == KVSPAN_OK) {
      cause = wait_for_link(packet, end, lock);
    }
    line->give_back(end, Clock::now());
  }
  if (packet.measure && cause.code == KVSPAN_OK) {
    const auto link_ns = static_cast<uint64_t>(std::chrono::nanoseconds(lasts).count());
    record(packet, ran_ns > link_ns ? ran_ns : link_ns);
  }
  return cause;
}

// Until the copy's end on the link, its cancellation or the loss of the device. The device's mutex
// is held.
Cause Queue::wait_for_link(const Packet& packet,
                           Clock::time_point end,
                           std::unique_lock<std::mutex>& lock) {
  const Execution execution{device_, packet.cancel_word};
  for (Clock::time_point now = Clock::now(); now < end; now = Clock::now()) {
    if (device_.lost) {
      return lost(packet);
    }
    if (execution.cancelled()) {
      return cancelled(packet);
    }
    const bool looks = packet.cancel_word != nullptr && end - now > kCancelLook;
    work_.wait_until(lock, looks ? now + kCancelLook : end);
  }
  return {};
}

Cause Queue::run(const Packet& packet) {
  if (packet.loses_device) {
    return lost(packet);
  }
  if (packet.planted_code != KVSPAN_OK) {
    return {packet.planted_code, packet.submit_id, "this work failed (a planted fault)"};
  }
  const Execution execution{device_, packet.cancel_word};
  if (execution.cancelled()) {
    return cancelled(packet);
  }
  return packet.execute(execution, packet.body) == KVSPAN_OK ? Cause{} : cancelled(packet);
}

// Gives the signals, or fails them. The device's mutex is held.
void Queue::settle(Packet& packet, const Cause& cause) {
  if (cause.code == KVSPAN_E_DEVICE_LOST) {
    lose_device(packet);
  }
  for (uint64_t i = 0; i < packet.memory_count; ++i) {
    packet.memories[i]->uses.fetch_sub(1, std::memory_order_release);
  }
  for (uint32_t i = 0; i < packet.wait_count; ++i) {
    --packet.waits[i].fence->uses;
  }
  for (uint32_t i = 0; i < packet.signal_count; ++i) {
    Fence& fence = *packet.signals[i].fence;
    --fence.uses;
    --fence.promise_count;
    if (cause.code == KVSPAN_OK) {
      fence.reach(packet.signals[i].value);
    } else {
      fence.fail(cause);
    }
  }
  ++tail_;
  device_.settled.notify_all();
}

// Fails every fence of the device, so that every wait returns. The device's mutex is held.
void Queue::lose_device(const Packet& packet) {
  if (device_.lost) {
    return;
  }
  device_.lost = true;
  for (Fence* fence = device_.fences; fence != nullptr; fence = fence->next) {
    fence->fail(lost(packet));
  }
  for (Queue* queue = device_.queues; queue != nullptr; queue = queue->next) {
    queue->work_.notify_one();  // one that waits for its link
  }
}

// The device's mutex is held.
void Queue::record(const Packet& packet, uint64_t duration_ns) {
  if (measured_ - handed_out_ < kMeasurementsMax) {
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

}  // namespace kvspan::cpu
