// SPDX-License-Identifier: Apache-2.0
// The stub's machine: lanes of work, fences, and a clock that moves only when somebody looks.
// Nothing runs by itself. step() is one event of virtual time: a work starts, or ends and takes
// effect. Which one comes next is the seed's choice among all that the contract allows:
// work of one lane is in order, work of different lanes is ordered by its wait points alone.
// Not here: checks of arguments (queue.cpp), locking (the caller holds Plugin::mutex).
#pragma once

#include "kvspan/kvspan.h"

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace kvspan::stub {

struct Memory;
struct Queue;

enum class QueueMode {
  one,       ///< all queues are one lane
  shuffled,  ///< each queue is a lane of its own
};

enum class FailedWaits {
  stop,  ///< work whose wait failed does not start
  run,   ///< it runs, and its result counts for nothing: legal, and unkind
};

struct ScheduleOptions {
  std::uint64_t seed = 1;
  QueueMode mode = QueueMode::one;
  std::uint64_t delay_max_ticks = 0;
  FailedWaits failed_waits = FailedWaits::stop;
};

/// Numbers that are the same for a seed on every machine (splitmix64: Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next();
  std::uint64_t up_to(std::uint64_t most);  ///< 0..most, most < 2^64 - 1

  /// A delay with a heavy tail: 0..most, doubled once in two, twice in four, and so on. Even delays
  /// would leave works that are far apart in submission always in order. 0 for 0.
  std::uint64_t delay(std::uint64_t most);

 private:
  std::uint64_t state_;
};

/// Why a fence, a work or the device failed for good.
struct Failure {
  kvspan_result_t code;
  std::uint32_t flags;  ///< KVSPAN_ERROR_*
  std::uint64_t submit_id;
  std::string message;
};

/// Writes a failure as this call's error and returns its code.
kvspan_result_t report(const Failure& failure, kvspan_error_t* error, const char* where);

struct Device;

struct Fence {
  Device& device;
  std::uint64_t value = 0;
  std::deque<std::uint64_t> promises{};  ///< values that pending work will signal, ascending
  const Queue* signaller = nullptr;      ///< whose work made the promises
  std::uint64_t uses = 0;                ///< how often pending work names it
  std::uint64_t waiters = 0;             ///< threads inside wait
  std::optional<Failure> failure{};

  std::uint64_t promised() const { return promises.empty() ? value : promises.back(); }
};

struct Point {
  Fence* fence;
  std::uint64_t value;

  bool reached() const { return fence->value >= value; }

  bool failed() const { return !reached() && fence->failure.has_value(); }
};

/// What a work does to memory. Both run under the lock, once at most, start before finish.
class Body {
 public:
  virtual ~Body() = default;

  /// The virtual start: may read sources early, writes nothing.
  virtual void start(Random&) {}

  /// The virtual end: all effects.
  virtual void finish() = 0;
};

enum class WorkState { waiting, ready, running };

struct Work {
  Queue* queue = nullptr;
  std::uint64_t submit_id = 0;
  std::uint32_t flags = 0;  ///< KVSPAN_SUBMIT_*
  std::vector<Point> waits;
  std::vector<Point> signals;
  std::vector<Memory*> memories;
  const std::uint32_t* cancel = nullptr;  ///< NULL = not cancellable
  std::uint64_t bytes = 0;                ///< moved: the virtual duration follows from it
  std::unique_ptr<Body> body;

  WorkState state = WorkState::waiting;
  std::uint64_t at_tick = 0;  ///< ready: when it starts; running: when it ends
  std::uint64_t rank = 0;     ///< orders works of the same tick
  std::uint64_t started_tick = 0;
  bool loses_device = false;  ///< planted
  std::optional<Failure> failure;
};

/// In-order work. The front is the only one that may run.
using Lane = std::deque<std::unique_ptr<Work>>;

/// A fault to come: counts down at each submit, strikes at 1. 0 = none.
struct SubmitFaults {
  std::uint64_t fail_in = 0;
  kvspan_result_t fail_code = KVSPAN_OK;
  std::uint64_t lose_in = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const ScheduleOptions& options);

  /// The lane of a new queue, and its end; in mode `one` always the same.
  Lane* open_lane();
  void close_lane(Lane* lane);

  /// Takes checked work; everything that it names is in use until it settles. Strong guarantee.
  /// In mode `shuffled` some older work may run at once, as a quick device's would.
  void enqueue(Lane& lane, std::unique_ptr<Work> work);

  /// One event of virtual time. False: nothing can run until somebody submits or signals.
  bool step();

  /// Fails a fence that has not failed, and ends the work that is in vain from then on.
  void fail(Fence& fence, const Failure& failure);

  void add(Fence& fence) { fences_.insert(&fence); }

  void remove(Fence& fence) { fences_.erase(&fence); }

  std::uint64_t fence_count() const { return fences_.size(); }

  std::uint64_t now_ticks() const { return now_ticks_; }

  std::uint64_t in_flight() const { return in_flight_; }

  std::uint64_t submits() const { return submits_; }

  std::uint64_t launches() const { return launches_; }

  const std::optional<Failure>& lost() const { return lost_; }

  SubmitFaults& faults() { return faults_; }

 private:
  Work* next_event();
  void make_ready(Work& work);
  void start(Work& work);
  void finish(Work& work);
  void settle(Work& work);
  void drop_futile();
  void lose(std::uint64_t submit_id);
  void plant(Work& work);

  const ScheduleOptions options_;
  Random random_;
  std::list<Lane> lanes_;
  std::set<Fence*> fences_;
  std::uint64_t now_ticks_ = 0;
  std::uint64_t in_flight_ = 0;
  std::uint64_t submits_ = 0;
  std::uint64_t launches_ = 0;
  SubmitFaults faults_;
  std::optional<Failure> lost_;
};

}  // namespace kvspan::stub
