// SPDX-License-Identifier: Apache-2.0
// Who keeps a captured executable and the memory it names: an executor owns both, a pin holds them
// in place while work may be launched, and retiring gives them up in the order that leaves no stale
// address. Captures and launches nothing itself: that is the graph table's (kvspan/graph.h).
// Read next: lease.hpp, completion.hpp.
#pragma once

#include "kvspan/core/backend/moment.hpp"
#include "kvspan/core/error.hpp"
#include "kvspan/core/memory/lease.hpp"
#include "kvspan/types.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

struct kvspan_graph_s;  // kvspan/graph.h, a draft

namespace kvspan {

// A region that an executable addresses. Generations do not count: a persistent region stays where
// it is over any commit.
struct Binding {
  kvspan_memory_t* memory = nullptr;
  Region region{};

  friend bool operator==(const Binding&, const Binding&) = default;
};

[[nodiscard]] Binding binding_of(const Lease& lease);

// Owns one captured executable. Move-only. The destructor destroys it and cannot tell a failure.
// Thread class: SYNC(executable).
class Executable {
 public:
  // OK when the executable is gone. BUSY while a launch is in flight.
  using Destroy = std::function<Result<void>(kvspan_graph_s*)>;

  Executable() = default;

  // Takes the graph over.
  Executable(kvspan_graph_s* graph, Destroy destroy)
      : graph_(graph), destroy_(std::move(destroy)) {}

  Executable(Executable&& other) noexcept;
  Executable& operator=(Executable&& other) noexcept;
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  ~Executable();

  [[nodiscard]] explicit operator bool() const { return graph_ != nullptr; }

  [[nodiscard]] kvspan_graph_s* get() const { return graph_; }

  // Destroys it now; nothing to do where there is none. Errors: the callback's; still owned then.
  [[nodiscard]] Result<void> destroy();

 private:
  kvspan_graph_s* graph_ = nullptr;
  Destroy destroy_;
};

struct ExecutorState;  // private to executor.cpp

// A right to launch what an executor holds, from the look at its bindings until the work is over.
// Move-only. It also keeps executable and leases when the executor and the arena are gone.
// Thread class: SYNC(pin); pins of one executor may be taken and given back by any threads.
class Pin {
 public:
  // Holds nothing.
  Pin() = default;
  Pin(Pin&& other) noexcept;
  Pin& operator=(Pin&& other) noexcept;
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

  // As release({}): the work is over, or none was submitted.
  ~Pin();

  [[nodiscard]] explicit operator bool() const { return state_ != nullptr; }

  [[nodiscard]] kvspan_graph_s* graph() const;

  // The executor's when it was taken.
  [[nodiscard]] std::uint64_t generation() const { return generation_; }

  // Gives the right back: everything launched under it, copies included, ends at `end`. Retiring
  // waits for that.
  void release(const Moment& end) noexcept;

  // A launch was submitted in part: nobody else launches before the executor was retired.
  void close_admission() const;

 private:
  friend class Executor;
  Pin(std::shared_ptr<ExecutorState> state, std::uint64_t generation);

  std::shared_ptr<ExecutorState> state_;
  std::uint64_t generation_ = 0;
};

enum class Retirement : std::uint8_t {
  retired,    // executable destroyed, leases given back, ready for the next capture
  unchanged,  // nothing was held, or nothing that changed is addressed
  pending     // pins remain: closed; give them back, then retire again
};

// Invariants: 1. leases are given back only after the executable is gone, which is destroyed only
// after its work is over; 2. from the first attempt to retire nothing is launched until retired;
// 3. each capture raises the generation by one; 4. a call that fails changes nothing but admission.
// Thread class: ANY but for moving and destroying it. No lock is held in a callback.
class Executor {
 public:
  // Blocks until work that ends at the moment is over. An error leaves it unproven.
  using EndOfWork = std::function<Result<void>(const Moment&)>;

  explicit Executor(EndOfWork end_of_work);
  Executor(Executor&&) noexcept = default;
  Executor& operator=(Executor&&) noexcept = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Waits for the work, then gives up everything, unless a pin keeps it until its own end.
  ~Executor() = default;

  // Takes over an executable and the leases of what it addresses, in any order, repeated or not.
  // `revision` is the caller's number for everything else that was recorded into it. On failure the
  // caller still owns both. Errc::invalid_argument: no executable, an empty lease, or one id with
  // two places in one memory. Errc::busy: one is held; retire it first.
  [[nodiscard]] Result<void> capture(Executable& executable,
                                     std::vector<Lease>& leases,
                                     std::uint64_t revision);

  // Whether what is held addresses exactly these regions and has this revision.
  [[nodiscard]] bool matches(std::span<const Binding> bindings, std::uint64_t revision) const;

  // A pin of what is held. Errc::not_found: nothing is, or it addresses other memory or has another
  // revision: retire and capture again. Errc::busy: closed; retire.
  [[nodiscard]] Result<Pin> acquire(std::span<const Binding> bindings, std::uint64_t revision);

  // Closes admission, waits for the end of the work, destroys the executable, gives the leases
  // back. Errors: the wait's, the destroyer's, Errc::busy from inside a callback of this executor;
  // everything is still held and closed, and it may be tried again.
  [[nodiscard]] Result<Retirement> retire();

  // The same if a region of the same memory and id as one of `changed` is addressed.
  [[nodiscard]] Result<Retirement> retire(std::span<const Binding> changed);

  [[nodiscard]] bool holds() const;
  [[nodiscard]] bool admits() const;
  [[nodiscard]] std::uint64_t generation() const;
  [[nodiscard]] std::uint64_t pin_count() const;
  [[nodiscard]] std::vector<Binding> bindings() const;  // sorted, each once

 private:
  std::shared_ptr<ExecutorState> state_;
};

}  // namespace kvspan
