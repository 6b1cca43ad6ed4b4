// SPDX-License-Identifier: Apache-2.0
// A session whose calls are made by a thread of its own: the engine's thread says what a layer's
// rows are and goes on with its own work, while copies and attention are submitted. Where the
// device is far faster than the host submits, or the engine's thread has other work, that is worth
// a hand-over a layer; else call the session itself. Nothing of the session changes: order, bits
// and failures are those of the same calls. Read first: session.hpp.
#pragma once

#include "kvspan/core/error.hpp"
#include "kvspan/core/session/session.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace kvspan {

// Thread class: SYNC(submission thread) for everything but cancel(), which is ANY. No call throws.
// Signals are blocked in the thread.
class SubmissionThread {
 public:
  // Of a layer that was handed over; ascends.
  using Ticket = std::uint64_t;

  // Takes the session, between two steps. Errors: host_memory, also where the system has no thread
  // for it; the session is gone then (next: open it again).
  [[nodiscard]] static Result<SubmissionThread> start(Session session);

  SubmissionThread(SubmissionThread&&) noexcept;
  SubmissionThread& operator=(SubmissionThread&&) noexcept;
  SubmissionThread(const SubmissionThread&) = delete;
  SubmissionThread& operator=(const SubmissionThread&) = delete;

  // Makes the calls that were handed over, ends the thread, then the session.
  ~SubmissionThread();

  // Session::begin_step. Returns when it is done. Errors: its own; and before it, once, what a
  // layer of the step before failed with where no call was told: no step is open then, ask for the
  // sequences' tokens and begin again.
  [[nodiscard]] Result<void> begin_step(std::span<const StepRows> rows, Phase phase);

  // Hands Session::write and Session::attend of a layer over and returns at once; the points that
  // `ready` names are copied. Errors: what an earlier layer of the step failed with, to this and
  // every later call of the step; the step is over then. host_memory.
  [[nodiscard]] Result<Ticket> layer(std::uint32_t layer,
                                     const WriteRows& write,
                                     const AttendRows& attend);

  // The point at which the layer's outputs are complete, for the engine's own work; returns when
  // the layer has been submitted. Errors: as layer(); invalid_argument for a ticket that is not of
  // the open step.
  [[nodiscard]] Result<kvspan_point_t> point(Ticket ticket);

  // Returns when the layer's outputs are complete, and all layers that were handed over submitted.
  // Errors: as point(), and Session::wait.
  [[nodiscard]] Result<void> wait(Ticket ticket);

  // Session::commit, behind all layers. Returns when it is done. Errors: as layer(), and its own.
  [[nodiscard]] Result<void> commit(std::span<const std::uint32_t> accepted);

  // Session::cancel: any thread, at any time.
  void cancel();

  // The session, for any other call, when what was handed over has been submitted: borrowed until
  // the next call here.
  [[nodiscard]] Session& session() const;

 private:
  struct State;
  explicit SubmissionThread(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvspan
