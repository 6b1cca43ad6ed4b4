// SPDX-License-Identifier: Apache-2.0
// A queue: one thread that does one submit after another, and a ring of packets between it and the
// host. A submitting slot describes its work as a Task; submit() checks what every submit carries,
// copies everything into the next packet's slab, and hands it over. Read next: queue.cpp,
// worker.cpp.
#pragma once

#include "kvspan/copy.h"
#include "kvspan/queue.h"
#include "kvspan/sdk/validate_range.hpp"

#include "device.hpp"
#include "fence.hpp"
#include "memory.hpp"
#include "thread.hpp"

#include <condition_variable>
#include <cstdint>

namespace kvspan::cpu {

// Measurements that a queue keeps for feedback; more are dropped.
inline constexpr uint32_t kMeasurementsMax = 256;
// Points that a prepared packet always has room for; prepare() is not told of points.
inline constexpr uint32_t kPreparedPoints = 64;

// What work needs while it runs.
struct Execution {
  Device& device;
  const uint32_t* cancel_word;  // or nullptr

  [[nodiscard]] bool cancelled() const {
    return cancel_word != nullptr && __atomic_load_n(cancel_word, __ATOMIC_ACQUIRE) != 0;
  }
};

// Memories that a packet names, collected while a task is filled.
class Uses {
 public:
  explicit Uses(Memory** memories) : memories_(memories) {}

  void add(kvspan_memory_t* memory) {
    // Neighbours mostly name the same memory: counting it once is enough.
    if (memory != nullptr && (count_ == 0 || memories_[count_ - 1] != memory_of(memory))) {
      memories_[count_++] = memory_of(memory);
    }
  }

  [[nodiscard]] uint64_t count() const { return count_; }

 private:
  Memory** memories_;
  uint64_t count_ = 0;
};

// One accepted submit. Arrays lie in the slab.
struct Packet {
  Block slab;
  kvspan_result_t (*execute)(const Execution& execution, const void* body) = nullptr;
  const void* body = nullptr;
  Point* waits = nullptr;  // [wait_count] at most one a fence
  Point* signals = nullptr;
  Memory** memories = nullptr;  // [memory_count] named by the work
  uint64_t memory_count = 0;
  uint64_t submit_id = 0;
  uint64_t bytes = 0;            // moved, for the measurement
  bool copies = false;           // what it moves crosses the link, on a queue that does
  Clock::time_point accepted{};  // where a link is modelled
  const uint32_t* cancel_word = nullptr;
  uint32_t wait_count = 0;
  uint32_t signal_count = 0;
  bool measure = false;
  bool loses_device = false;                 // a planted fault
  kvspan_result_t planted_code = KVSPAN_OK;  // a planted fault
};

// What a submitting slot made of its checked arguments. lay_out() is called more than once.
class Task {
 public:
  // Cuts the arrays of the body, always the same ones in the same order.
  virtual void lay_out(Cutter& cutter) = 0;
  // Fills the arrays, names all memories, and sets execute, body and bytes of the packet.
  virtual void fill(Packet& packet, Uses& uses) = 0;

  // How many memories fill() names at most.
  uint64_t uses_max = 0;

  virtual ~Task() = default;
};

class Queue {
 public:
  Queue(Device& owner, uint32_t role, uint32_t depth)
      : device_(owner), role_(role), depth_(depth) {}

  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  Queue(Queue&&) = delete;
  Queue& operator=(Queue&&) = delete;
  ~Queue();

  // Makes the ring, with slabs of `slab_bytes` where that is not 0, and starts the thread.
  kvspan_result_t start(uint64_t slab_bytes, kvspan_error_t* error, const char* where);

  // Checks `submit` by KV-SUBMIT-1..8 and enqueues the task; SYNC(queue). On failure nothing
  // changed. `submit` is the slot's argument number `argument`. The task's own arguments have been
  // checked.
  kvspan_result_t submit(Task& task,
                         const kvspan_submit_t* submit,
                         uint32_t argument,
                         kvspan_error_t* error,
                         const char* where);

  // Moves up to `capacity` measurements out, oldest first; returns how many.
  uint32_t take_measurements(kvspan_measurement_t* out, uint32_t capacity);

  [[nodiscard]] Device& device() const { return device_; }

  [[nodiscard]] uint32_t depth() const { return depth_; }

  // Submits that have not settled. The device's mutex is held.
  [[nodiscard]] uint32_t in_flight() const { return static_cast<uint32_t>(head_ - tail_); }

  // Bytes of all slabs. The device's mutex is held.
  [[nodiscard]] uint64_t slab_bytes() const;

  // Replaces all slabs that are smaller; false: no memory, and the old ones stay. Nothing is in
  // flight.
  [[nodiscard]] bool reserve(uint64_t slab_bytes);

  Queue* next = nullptr;  // of Device::queues

 private:
  static void thread_main(void* argument);
  void serve();
  bool wait_for_points(Packet& packet, std::unique_lock<std::mutex>& lock, Cause& cause);
  Cause carry_out(const Packet& packet, bool waited, std::unique_lock<std::mutex>& lock);
  Cause run(const Packet& packet);
  Cause wait_for_link(const Packet& packet,
                      Clock::time_point end,
                      std::unique_lock<std::mutex>& lock);
  void settle(Packet& packet, const Cause& cause);
  void record(const Packet& packet, uint64_t duration_ns);
  void lose_device(const Packet& packet);
  kvspan_result_t check_depth(kvspan_error_t* error, const char* where);
  kvspan_result_t place(Packet& packet,
                        Task& task,
                        const kvspan_submit_t& submit,
                        kvspan_error_t* error,
                        const char* where);
  kvspan_result_t check_points(const kvspan_submit_t& submit,
                               uint32_t argument,
                               kvspan_error_t* error,
                               const char* where) const;
  void accept(Packet& packet);

  Packet& packet_at(uint64_t index) { return packets_[index % depth_]; }

  Device& device_;
  const uint32_t role_;
  const uint32_t depth_;
  Block ring_;
  Packet* packets_ = nullptr;     // [depth_] in ring_
  uint64_t head_ = 0;             // submits accepted; guarded by the device's mutex
  uint64_t tail_ = 0;             // submits settled; guarded by the device's mutex
  bool stop_ = false;             // guarded by the device's mutex
  std::condition_variable work_;  // a packet was added, or stop, or the device was lost
  Block measurement_block_;
  kvspan_measurement_t* measurements_ = nullptr;  // [kMeasurementsMax] ring
  uint64_t measured_ = 0;                         // ever recorded; guarded by the device's mutex
  uint64_t handed_out_ = 0;                       // ever taken; guarded by the device's mutex
  Thread thread_;
};

inline Queue* queue_of(kvspan_queue_t* handle) {
  return reinterpret_cast<Queue*>(handle);
}

inline kvspan_queue_t* handle_of(Queue* queue) {
  return reinterpret_cast<kvspan_queue_t*>(queue);
}

// Bytes of a memory of this device, for the checks of the SDK.
struct OwnBytes {
  const Device* device;

  uint64_t operator()(kvspan_memory_t* memory) const {
    const Memory& named = *memory_of(memory);
    return &named.device == device ? named.bytes : sdk::kForeignMemory;
  }
};

// OK, or the refusal of a submit that carries `required` of `what` where prepare() was told of
// less.
kvspan_result_t check_prepared(Device& device,
                               uint64_t Limits::*limit,
                               uint64_t required,
                               const char* what,
                               kvspan_error_t* error,
                               const char* where);

}  // namespace kvspan::cpu
