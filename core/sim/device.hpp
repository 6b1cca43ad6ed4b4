// SPDX-License-Identifier: Apache-2.0
// The simulated device: memory, queues and timeline fences in virtual time, on the caller's thread.
// Nothing happens but when the host calls; what happens then, and in which order, the seed says.
// Private to core/sim. Read next: submit.cpp (work comes in), events.cpp (work is done), tables.cpp
// (the ABI's face).
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/sim/call.hpp"
#include "kvspan/sim/random.hpp"
#include "kvspan/sim/scenario.hpp"
#include "kvspan/sim/trouble.hpp"

#include "order.hpp"
#include "ring_watch.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvspan::sim {

class Device;

struct Memory {
  Device* device = nullptr;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint32_t kind = 0;
  std::unique_ptr<std::byte[]> owned;
  std::uint32_t named = 0;  // by pending works
  Accesses accesses;
};

// A point that a submit signals, and what is known once it is reached.
struct Signalled {
  std::uint64_t value = 0;
  Known known;
};

struct Fence {
  Device* device = nullptr;
  std::uint64_t value = 0;
  kvspan_result_t failed = KVSPAN_OK;
  std::uint64_t failed_submit = 0;
  std::uint64_t promised = 0;         // the largest value that a submit signals
  std::uint32_t signaller = 0;        // place of the last signalling queue
  std::uint32_t role = kEngineRole;   // of that queue
  std::uint32_t named = 0;            // by pending works
  std::uint32_t named_by_engine = 0;  // of those, the engine's
  std::deque<Signalled> signals;      // ascending
};

// How a work ended, for whoever keeps it.
struct Ending {
  bool over = false;
  bool reached = false;  // its signals were
};

struct Work {
  Call call;
  std::uint32_t number = 0;  // in its queue's place, from 1
  std::uint64_t order = 0;   // among all submits
  bool engine = false;       // its own work, not the session's
  Known known;               // itself included
  std::uint64_t end_ns = 0;
  kvspan_result_t planted = KVSPAN_OK;  // what it fails with
  kvspan_result_t failing = KVSPAN_OK;
  bool blind = false;       // its fence failed before: nobody will trust what it does
  bool acts_early = false;  // at its start, else at its end
  std::vector<std::pair<Memory*, std::uint32_t>> names;
  std::vector<std::byte> staged;
  std::shared_ptr<Ending> ending;
};

struct Queue {
  Device* device = nullptr;
  std::uint32_t place = 0;
  std::uint32_t role = 0;
  std::uint32_t depth = 0;
  bool engine = false;
  std::deque<std::unique_ptr<Work>> works;  // the first runs, if `running`
  bool running = false;
  Known last;
  std::deque<kvspan_measurement_t> measured;  // not handed out; a full one drops
};

// What attention must find, for one sequence in one step.
struct Expectation {
  std::uint32_t stream = 0;
  std::shared_ptr<const std::vector<std::uint32_t>> generations;  // [token], at least `total`
  std::uint64_t total = 0;                                        // the step's rows included
};

// Failures to come, counted in calls from now; 0 = none.
struct Faults {
  std::uint32_t submit_in = 0;
  std::uint32_t work_in = 0;
  bool work_publishes = false;  // only copies to the host count
  std::uint32_t object_in = 0;
  std::uint32_t lost_in = 0;
  kvspan_result_t submit_code = KVSPAN_OK;
  kvspan_result_t work_code = KVSPAN_OK;
};

// Thread class: SYNC(device).
class Device {
 public:
  // All references outlive the device.
  Device(const Scenario& scenario, Trouble& trouble, CallFilter* filter);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  Device(Device&&) = delete;
  Device& operator=(Device&&) = delete;

  [[nodiscard]] Backend backend();

  // ---- for the engine
  // The host reads or writes bytes itself: nothing in flight may conflict.
  void host_access(const kvspan_memory_t* memory,
                   std::uint64_t begin,
                   std::uint64_t end,
                   bool writes);
  void host_access_at(const std::byte* address, std::uint64_t bytes, bool writes);
  std::uint32_t expect(Expectation expectation);
  // Calls `what` when that time comes, from inside whatever call the host then makes: another
  // thread's doing. It may call nothing that waits for the host's thread.
  void after(std::uint64_t delay_ns, std::function<void()> what);
  void idle(std::uint64_t ns);
  // Until a queue of the engine is empty, failed work included.
  void empty(Queue& queue);

  // Objects are the engine's, not the session's: no faults, no filter.
  void engine_calls(bool engine) { engine_ = engine; }

  // Endings of the downloads that were submitted since the last call.
  [[nodiscard]] std::vector<std::shared_ptr<Ending>> take_downloads();
  // What is still alive that should not be; empty: nothing.
  [[nodiscard]] std::string leaks() const;

  void drop_timers() { timers_.clear(); }

  // Something went wrong that would never end: every call fails from now on.
  void kill(const std::string& checker, const std::string& what);

  [[nodiscard]] bool dead() const { return dead_; }

  [[nodiscard]] bool lost() const { return lost_; }

  // As another open of a device that was lost.
  void open_again() { lost_ = false; }

  [[nodiscard]] std::uint64_t device_bytes_peak() const { return device_bytes_peak_; }

  void reset_peak() { device_bytes_peak_ = device_bytes_; }

  // The session's host memory is refused from so many bytes on.
  void limit_host_bytes(std::uint64_t most) { host_bytes_max_ = most; }

  // ---- for the tables
  void host_call();
  kvspan_result_t submit(Queue& queue, Call call, kvspan_error_t* error);
  kvspan_result_t wait(std::span<const kvspan_point_t> points,
                       std::uint64_t timeout_ns,
                       kvspan_error_t* error);
  void seen(Fence& fence, std::uint64_t value);
  // What an object cannot be made for now; OK: it can.
  [[nodiscard]] kvspan_result_t refuses_object();
  [[nodiscard]] bool has_host_bytes(std::uint64_t bytes) const;

  // ---- for the work (attention)
  [[nodiscard]] const Expectation* expectation(std::uint32_t number) const;
  void content(const std::string& what);

  Faults faults;                  // failures to come
  std::uint64_t fired = 0;        // planted refusals that happened
  std::uint64_t works_fired = 0;  // works that will fail as planted
  std::uint64_t calls = 0;        // of every slot
  std::uint64_t submits = 0;
  std::uint64_t works = 0;  // of those, the session's that have something to do
  std::uint64_t checked_rows = 0;
  std::uint32_t prepares = 0;
  kvspan_prepare_t prepared{};
  std::uint64_t prepared_bytes = 0;  // taken for that
  RingWatch ring;
  Memory* arena = nullptr;  // the session's

  // Objects that are alive.
  std::vector<std::unique_ptr<Memory>> memories;
  std::vector<std::unique_ptr<Queue>> queues;
  std::vector<std::unique_ptr<Fence>> fences;

  [[nodiscard]] const DeviceTraits& traits() const { return scenario_.device; }

  [[nodiscard]] bool arithmetic() const { return scenario_.arithmetic; }

  [[nodiscard]] Trouble& trouble() { return trouble_; }

  [[nodiscard]] CallFilter* filter() const { return engine_ ? nullptr : filter_; }

  [[nodiscard]] bool engine_now() const { return engine_; }

  [[nodiscard]] Known& host() { return host_; }

  [[nodiscard]] std::uint32_t free_place() const;
  void count_device_bytes(std::int64_t change);

  void count_host_bytes(std::int64_t change) { host_bytes_ += static_cast<std::uint64_t>(change); }

 private:
  // ---- submit.cpp
  bool check_points(const Queue& queue, const Call& call);
  void name_memories(Work& work);
  void order(Queue& queue, Work& work);
  void touch(Work& work,
             const Queue& queue,
             Memory* memory,
             std::uint64_t begin,
             std::uint64_t end,
             bool writes);

  // ---- touch.cpp
  // The rows of a plane: of so many heads, of so many bytes each.
  struct PlaneRows {
    const kvspan_plane_t& plane;
    std::uint32_t heads;
    std::uint64_t bytes;
  };

  void touch_plane(Work& work,
                   const Queue& queue,
                   const PlaneRows& rows,
                   std::uint64_t first,
                   std::uint64_t count,
                   bool writes);
  void touch_copy(Work& work, const Queue& queue);
  void touch_encode(Work& work, const Queue& queue);
  void touch_attention(Work& work, const Queue& queue);
  void touch_tokens(Work& work,
                    const Queue& queue,
                    const EntryCopy& entry,
                    std::uint64_t begin,
                    std::uint64_t end);
  void touch_rows(Work& work,
                  const Queue& queue,
                  const kvspan_rows_t& rows,
                  std::uint32_t count,
                  std::uint32_t heads,
                  std::uint32_t head_size,
                  bool writes);
  void touch_state(
      Work& work, const Queue& queue, const kvspan_state_t& state, std::uint32_t rows, bool writes);
  bool check_prepared(const Call& call);

  // ---- events.cpp
  void run_until(std::uint64_t ns);
  bool next_event(std::uint64_t limit_ns);
  void start_ready();
  bool try_start(Queue& queue);
  void finish(Queue& queue);
  void settle(Work& work);
  void lose();
  [[nodiscard]] bool is_next_of_line(const Queue& queue) const;
  void spoil(const Work& work);
  void act(Work& work, bool starting);

  const Scenario& scenario_;
  Trouble& trouble_;
  CallFilter* filter_;
  Random random_;
  std::uint64_t now_ns_ = 0;
  bool engine_ = false;
  bool dead_ = false;
  bool lost_ = false;
  Known host_;                                       // what the host has seen the end of
  std::array<std::uint32_t, kQueuesMax> numbers_{};  // works submitted at each place
  std::vector<std::pair<std::uint64_t, std::function<void()>>> timers_;
  std::deque<Expectation> expectations_;
  std::vector<std::shared_ptr<Ending>> downloads_;
  std::uint64_t device_bytes_ = 0;
  std::uint64_t device_bytes_peak_ = 0;
  std::uint64_t host_bytes_ = 0;  // that the session can reach
  std::uint64_t host_bytes_max_ = UINT64_MAX;
};

// ---- attention.cpp, arithmetic.cpp: the work of one call
void attend_tags(Device& device, const Call& call);
void attend_numbers(Device& device, const Call& call);
void encode_numbers(const kvspan_codec_item_t& item);
void encode_tags(const kvspan_codec_item_t& item);

[[nodiscard]] inline Memory* memory_of(const kvspan_memory_t* handle) {
  return reinterpret_cast<Memory*>(const_cast<kvspan_memory_t*>(handle));
}

[[nodiscard]] inline Fence* fence_of(kvspan_fence_t* handle) {
  return reinterpret_cast<Fence*>(handle);
}

[[nodiscard]] inline Queue* queue_of(kvspan_queue_t* handle) {
  return reinterpret_cast<Queue*>(handle);
}

[[nodiscard]] inline Device& device_of(kvspan_device_t* handle) {
  return *reinterpret_cast<Device*>(handle);
}

// ---- work_tables.cpp: the submitting tables
[[nodiscard]] const kvspan_copy_table_t& copy_table();
[[nodiscard]] const kvspan_codec_table_t& codec_table();
[[nodiscard]] const kvspan_attention_table_t& attention_table();

// A table whose slots `fill` sets; the others stay empty.
template <class Table, class Fill>
Table table_with(const Fill& fill) {
  Table table{};
  table.struct_size = sizeof table;
  fill(table);
  return table;
}

// Fills an error record and returns its code.
kvspan_result_t refuse(kvspan_error_t* error, kvspan_result_t code, const std::string& message);

}  // namespace kvspan::sim
