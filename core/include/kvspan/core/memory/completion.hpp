// SPDX-License-Identifier: Apache-2.0
// The end of some work on a session's lanes, owned: whoever lets go of it waits until producer and
// readers are over. A Hazard (backend/moment.hpp) says what to wait for; this makes sure of it.
// Not a lease: it keeps no bytes. Read next: executor.hpp.
#pragma once

#include "kvspan/core/backend/lane.hpp"
#include "kvspan/core/backend/moment.hpp"
#include "kvspan/core/error.hpp"

namespace kvspan {

// Move-only, for one piece of work. Fences are mandatory in the ABI, so there is no slower way
// beside them and nothing is made here that could fail.
// Invariants: 1. it is recorded at most once; 2. the destructor returns when everything recorded is
// over: reached, or drained where a fence failed; 3. ordering another queue behind it does not make
// the host see anything, only settle() does.
// Thread class: SYNC(lanes). The lanes stay where they are and outlive it; lanes that replace them
// in the same place go on from their values.
class Completion {
 public:
  // Of nothing yet; borrows `lanes`.
  explicit Completion(Lanes& lanes) : lanes_(&lanes) {}

  Completion(Completion&& other) noexcept;
  Completion& operator=(Completion&& other) noexcept;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;
  ~Completion();

  // The work ends at `end`, values that the lanes have handed out.
  // Errc::invalid_argument: recorded already, or a value that no submit has: submit first.
  [[nodiscard]] Result<void> record(const Moment& end);

  // What a submit on `consumer` waits for in order to read. Waits for nothing.
  // Errc::invalid_argument: nothing is recorded. Errc::unsupported: other lanes than the
  // producer's, whose fences mean nothing there; settle() on the host, then submit.
  [[nodiscard]] Result<Moment> before_read(const Lanes& consumer) const;

  // Work that reads until `end` was submitted: it counts from now on. May be called again.
  // Errc::invalid_argument: nothing is recorded, or a value that no submit has.
  [[nodiscard]] Result<void> add_reader(const Moment& end);

  // The caller's promise that all readers so far are over; nobody waits for them any more.
  void forget_readers() { hazard_.read = {}; }

  // Blocks until the work has ended and the host sees its bytes; OK at once when it did before.
  // Errors: the cause of failed work, whose bytes are undefined then, or the wait's own; what is
  // recorded stays so, and the next call asks again. Errc::invalid_argument: nothing is recorded.
  [[nodiscard]] Result<void> settle();

  [[nodiscard]] bool is_recorded() const { return recorded_; }

  // Whether settle() was OK.
  [[nodiscard]] bool host_sees() const { return host_sees_; }

  // Whether producer and readers have reached their values. Never blocks; false behind a failure.
  [[nodiscard]] bool is_over() const;

  // What a writer of the same bytes waits for.
  [[nodiscard]] Moment before_write() const { return hazard_.before_write(); }

 private:
  void finish() noexcept;
  [[nodiscard]] Result<void> check(const Moment& end) const;

  Lanes* lanes_;
  Hazard hazard_;
  bool recorded_ = false;
  bool host_sees_ = false;
};

// Blocks until every lane has reached its value of `moment`. Errors: the first lane's that fails;
// the others have been waited for.
[[nodiscard]] Result<void> wait_until(const Lanes& lanes, const Moment& moment);

}  // namespace kvspan
