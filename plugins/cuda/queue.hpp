// SPDX-License-Identifier: Apache-2.0
// A queue: a stream of its own or an engine's, a ring of packets, and a thread that settles them. A
// submitting slot describes its work as a Task; submit() checks what every submit carries, copies
// everything into the next packet's slab, puts the work on the stream and returns. Any queue's
// thread may settle another's packets, with the device's mutex held: those that its own were
// behind. Work of another queue is waited for on the device, by that work's event: there is no host
// round trip. Since a host submits a wait only after the submit that signals it returned, every
// event that is waited for has been recorded, and what waits is always younger than what it waits
// for: no cycle, so no deadlock. Read next: submit.cpp (accepting), reaper.cpp (settling).
#pragma once

#include "kvspan/copy.h"
#include "kvspan/queue.h"
#include "kvspan/sdk/validate_range.hpp"

#include "cancel.hpp"
#include "device.hpp"
#include "fence.hpp"
#include "memory.hpp"
#include "thread.hpp"

#include <condition_variable>
#include <cstdint>

namespace kvspan::cuda {

// Measurements that a queue keeps for feedback; more are dropped.
inline constexpr uint32_t kMeasurementsMax = 256;
// From so many submits on a queue settles several at once: its host runs ahead and waits for none.
inline constexpr uint32_t kManyInFlight = 8;
// Of those every so many-th has an event that a thread can sleep for. The card interrupts a
// processor for each such event, whether somebody sleeps or not, and the driver's thread looks what
// it was: a third of all processor time of streaming.
inline constexpr uint32_t kSleepStride = 4;
// Between two looks at an event that nobody can sleep for, and somebody waits for.
inline constexpr uint32_t kLookMicroseconds = 50;
// Points that a prepared packet always has room for; prepare() is not told of points.
inline constexpr uint32_t kPreparedPoints = 64;

// The device's memory for the descriptors of a queue's work: each work overwrites it, behind the
// one before on the stream.
inline constexpr uint32_t kRoomBytes = 65280;
inline constexpr uint32_t kMirrorBytes = 256;  // behind it, for Cancel::mirror

// What work needs to be put on a stream.
struct Issue {
  Device& device;
  cudaStream_t stream;
  Cancel cancel;
  uint8_t* room;  // kRoomBytes; nullptr: none, since the work is recorded
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

// One accepted submit. Arrays lie in the slab, which kernels read too.
struct Packet {
  Slab slab;
  // Behind the work: `plain`, or `restful` where a thread may sleep for it.
  cudaEvent_t done = nullptr;
  cudaEvent_t plain = nullptr;
  cudaEvent_t restful = nullptr;  // waiting for it sleeps
  cudaEvent_t begin = nullptr;    // around measured work
  cudaEvent_t end = nullptr;
  cudaError_t (*issue)(const Issue& issue, const void* body) = nullptr;
  const void* body = nullptr;
  // What issue() puts on a stream without a room is a function of these bytes of the body and of
  // the cancel word, but not of what they point to; 0 = nothing is known. A graph then need not
  // record again. With a room descriptors travel in the arguments.
  uint64_t body_bytes = 0;
  Point* waits = nullptr;  // [wait_count] at most one a fence
  Point* signals = nullptr;
  Memory** memories = nullptr;  // [memory_count] named by the work
  uint64_t memory_count = 0;
  uint64_t submit_id = 0;
  uint64_t bytes = 0;  // moved, for the measurement
  Memory* cancel_memory = nullptr;
  uint64_t cancel_offset = 0;
  uint32_t* cancel_seen = nullptr;  // 1: a kernel found the cancel word set
  uint64_t* launches = nullptr;     // of the graph that this runs: pending ones
  uint32_t wait_count = 0;
  uint32_t signal_count = 0;
  bool measure = false;
  bool issued = false;  // its event was recorded; else `cause` says why not
  bool ours = false;    // neither it nor what it is behind waits for an engine's stream or event
  bool restful_done = false;  // `done` is `restful`
  Cause cause;                // of work that never ran
};

// What a submitting slot made of its checked arguments. lay_out() is called more than once.
class Task {
 public:
  enum class Kind {
    kernels,  // runs on every queue, and can be recorded
    copies,   // only on own queues, never recorded
    orders,   // other work that is never recorded
  };

  Task() = default;

  explicit Task(Kind its_kind) : kind(its_kind) {}

  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  Task(Task&&) = delete;
  Task& operator=(Task&&) = delete;

  const Kind kind = Kind::kernels;

  // Cuts the arrays of the body, always the same ones in the same order.
  virtual void lay_out(Cutter& cutter) = 0;
  // Fills the arrays, names all memories, and sets issue, body and bytes of the packet.
  virtual void fill(Packet& packet, Uses& uses) = 0;

  // How many memories fill() names at most.
  uint64_t uses_max = 0;

  virtual ~Task() = default;
};

class Recorder;  // graph.hpp

// What prepare() reserves in each queue.
struct Reserved {
  uint64_t slab_bytes = 0;  // of a submit; 0 = nothing is reserved
  uint32_t depth = 0;       // submits in flight at most; 0 = the queue's own depth
};

class Queue {
 public:
  // `imported`: the engine's stream; nullptr = the queue makes one.
  Queue(Device& owner, uint32_t depth, cudaStream_t imported)
      : device_(owner), depth_(depth), stream_(imported), imported_(imported != nullptr) {}

  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  Queue(Queue&&) = delete;
  Queue& operator=(Queue&&) = delete;
  ~Queue();

  // Makes stream, events and ring, with what prepare() promised, and starts the thread.
  kvspan_result_t start(const Reserved& wanted, kvspan_error_t* error, const char* where);

  // Checks `submit` by KV-SUBMIT-1..8 and puts the task on the stream; SYNC(queue). On failure
  // nothing changed. `submit` is the slot's argument number `argument`. The task's own arguments
  // have been checked.
  kvspan_result_t submit(Task& task,
                         const kvspan_submit_t* submit,
                         uint32_t argument,
                         kvspan_error_t* error,
                         const char* where);

  // Moves up to `capacity` measurements out, oldest first; returns how many.
  uint32_t take_measurements(kvspan_measurement_t* out, uint32_t capacity);

  [[nodiscard]] Device& device() const { return device_; }

  [[nodiscard]] uint32_t depth() const { return depth_; }

  // What takes the queue's submits instead of the stream; nullptr: nothing. SYNC(queue).
  Recorder* recorder = nullptr;

  // The pending packet that brings `fence` to `value`; nullptr: nobody has submitted that. The
  // device's mutex is held.
  static const Packet* promise_of(const Fence& fence, uint64_t value);

  // Submits that have not settled. The device's mutex is held.
  [[nodiscard]] uint32_t in_flight() const { return static_cast<uint32_t>(head_ - tail_); }

  // Room for the slabs of as many submits as may be in flight, which use_reserved() then takes into
  // use; what was in use stays so until then. Nothing is in flight; the device's context is
  // current.
  [[nodiscard]] kvspan_result_t reserve(const Reserved& wanted,
                                        kvspan_error_t* error,
                                        const char* where);
  void use_reserved(const Reserved& wanted);

  Queue* next = nullptr;  // of Device::queues

 private:
  // What a queue's thread does before it settles packets up to one.
  struct Rest {
    enum class Kind : uint32_t {
      none,   // nothing of it is on the stream
      event,  // sleeps for its event
      look,   // looks at its event from time to time
    };

    Kind kind;
    uint64_t until;              // the packet
    cudaEvent_t done = nullptr;  // its event
  };

  static void thread_main(void* argument);
  void serve();
  [[nodiscard]] Rest next_rest() const;
  [[nodiscard]] cudaError_t rest(const Rest& how);
  [[nodiscard]] bool is_wanted(const Packet& packet) const;
  void settle_until(uint64_t last, cudaError_t native, std::unique_lock<std::mutex>& lock);
  void settle_now(uint64_t last);
  void settle_behind(const Point& point);
  cudaError_t make_events();
  cudaError_t clear_mirror();
  Cause outcome(const Packet& packet, cudaError_t native) const;
  void await_points(const Packet& packet,
                    bool ended,
                    std::unique_lock<std::mutex>& lock,
                    Cause& cause);
  void choose_event(Packet& packet);
  void settle(Packet& packet, const Cause& cause);
  void record(const Packet& packet);
  kvspan_result_t check_kind(const Task& task, kvspan_error_t* error, const char* where) const;
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
  kvspan_result_t check_waits(const kvspan_submit_t& submit,
                              kvspan_error_t* error,
                              const char* where) const;
  void name(Packet& packet);
  void order(Packet& packet);
  [[nodiscard]] bool is_ours(const Packet& packet, Task::Kind kind) const;
  void put_on_stream(Packet& packet);

  Packet& packet_at(uint64_t index) const { return packets_[index % depth_]; }

  [[nodiscard]] uint32_t reserved_depth(const Reserved& wanted) const;

  // The slab of the next submit, `bytes` at least: a reserved one where that is enough.
  cudaError_t find_slab(Packet& packet, uint64_t bytes, uint8_t*& found);

  Device& device_;
  const uint32_t depth_;
  Slab reserved_;          // slabs of prepare(), one behind another
  Reserved reserved_for_;  // what of it is in use: depth is never 0 then
  Block ring_;
  Packet* packets_ = nullptr;  // [depth_] in ring_
  cudaStream_t stream_;
  uint8_t* room_ = nullptr;
  cudaEvent_t spare_restful_ = nullptr;  // in place of the event that the thread rests for
  cudaEvent_t spare_plain_ = nullptr;
  cudaEvent_t resting_ = nullptr;  // the thread rests for it; guarded by the device's mutex
  const bool imported_;            // the stream is an engine's: never destroyed
  uint64_t head_ = 0;              // submits accepted; guarded by the device's mutex
  uint64_t tail_ = 0;              // submits settled; guarded by the device's mutex
  bool stop_ = false;              // guarded by the device's mutex
  std::condition_variable work_;   // a packet was added, or stop
  Block measurement_block_;
  kvspan_measurement_t* measurements_ = nullptr;  // [kMeasurementsMax] ring
  uint64_t measured_ = 0;                         // ever recorded; guarded by the device's mutex
  uint64_t handed_out_ = 0;                       // ever taken; guarded by the device's mutex
  Thread thread_;
};

// Makes a queue of `depth`, on an engine's stream where that is not nullptr.
kvspan_result_t make_queue(Device& device,
                           uint32_t depth,
                           cudaStream_t imported,
                           kvspan_queue_t** out_queue,
                           kvspan_error_t* error,
                           const char* where);

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

}  // namespace kvspan::cuda
