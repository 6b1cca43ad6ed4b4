// SPDX-License-Identifier: Apache-2.0
// A lane is one queue with one timeline fence: work gets the next value and settles it. Lanes is
// the three of them, with the one rule of waiting: wait for other lanes' values, in-order execution
// covers the own lane. Not here: what the work is. Read next: stream/prefetch.hpp.
#pragma once

#include "kvspan/core/backend/backend.hpp"
#include "kvspan/core/backend/moment.hpp"
#include "kvspan/core/error.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace kvspan {

// NORMAL elides waits that in-order execution of the own lane proves redundant; STRICT submits
// every wait. Both give the same bits on a right backend; tests run both.
enum class WaitMode : std::uint8_t { normal, strict };

struct LaneOptions {
  std::uint32_t depth = 0;  // submits in flight a queue; 0 = the device's own limit
  WaitMode waits = WaitMode::normal;
};

// Whether arguments of submits are checked against the contract before the plugin sees them.
enum class Checks : std::uint8_t {
  calls,  // all of them: a mistake is Errc::invalid_argument with the field, nothing enqueued
  none,   // for an engine that has proven its calls and counts microseconds
};

// What a piece of work waits for besides its lane.
struct Waits {
  Moment moment;
  std::span<const kvspan_point_t> points{};  // the engine's own; borrowed for the call
  bool measure = false;                      // a copy whose duration measurements() will tell
};

// Enqueues one piece of work. Called once or, after a full queue drained, again. Returns the slot's
// result.
using SubmitCall =
    std::function<kvspan_result_t(kvspan_queue_t*, const kvspan_submit_t*, kvspan_error_t*)>;

// The three lanes of a session. Thread class: SYNC(lanes), except request_cancel(), which is ANY.
// Invariant: a wait is only ever submitted for a value whose signalling submit returned OK before.
class Lanes {
 public:
  // Makes queues and fences, whose first values follow `from`: lanes that replace others go on
  // where those ended, so that a value names one piece of work for good. Errors: host_memory,
  // device_memory, unsupported (too few queues): nothing is kept.
  [[nodiscard]] static Result<Lanes> create(const Backend& backend,
                                            const LaneOptions& options,
                                            const Moment& from = {});

  Lanes(Lanes&&) noexcept;
  Lanes& operator=(Lanes&&) noexcept;
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;
  ~Lanes();

  // Submits and returns the lane's value that settles it. A full queue is waited for, never an
  // error. Errors: as the slot's own; cancelled behind request_cancel(), whatever the backend makes
  // of cancel words; nothing was enqueued then.
  [[nodiscard]] Result<std::uint64_t> submit(LaneId lane,
                                             const Waits& waits,
                                             const SubmitCall& call);

  // Durations of copies that asked to be measured and have settled, oldest first, each once; what
  // the backend had no room for is left out. Returns how many of `out` were written. Errors: the
  // slot's own.
  [[nodiscard]] Result<std::uint32_t> measurements(LaneId lane,
                                                   std::span<kvspan_measurement_t> out) const;

  // Blocks until the lane's fence reaches `value`. Errors: the cause of failed work, cancelled
  // included.
  [[nodiscard]] Result<void> wait(LaneId lane, std::uint64_t value) const;

  // The point that an engine's own work can wait for.
  [[nodiscard]] kvspan_point_t point(LaneId lane, std::uint64_t value) const;

  // The last value that the lane's fence reached, failed or not.
  [[nodiscard]] std::uint64_t reached(LaneId lane) const;

  // Whether no fence of the lanes has failed. Errors: the first failed fence's cause.
  [[nodiscard]] Result<void> health() const;

  // The last value handed out.
  [[nodiscard]] std::uint64_t last(LaneId lane) const;

  // Sets the cancel word that every submit carries. Any thread. What is queued, and a submit that
  // is under way in another thread, settles as cancelled or done; nothing follows it.
  void request_cancel() const;
  [[nodiscard]] bool cancel_requested() const;

  // Waits until nothing of any lane runs any more, failed work included. Errors: the plugin's own,
  // sticky ones. Throws nothing.
  [[nodiscard]] Result<void> drain();

  // Drains and gives queues and fences back: the lanes are of no use afterwards. Appends the fences
  // that work of the engine still names; the caller gives them back when that work has settled.
  // Throws nothing where there is room for kLaneCount more.
  void close(std::vector<kvspan_fence_t*>& named);

 private:
  struct State;
  explicit Lanes(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvspan
