// SPDX-License-Identifier: Apache-2.0
// A fixed team of threads, the caller among them, that runs one function at a time on all of them.
// Not a task queue and no work stealing: which member does what is decided by the member's index
// alone, so that no result can depend on timing. Members sleep between calls; nothing spins. Read
// next: matmul.hpp, its main user.
#pragma once

#include "kvspan/core/error.hpp"

#include <cstddef>
#include <memory>
#include <type_traits>

namespace kvspan::model {

// A half-open range of items.
struct ItemRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// The part of `items` items that belongs to member `member` of `members`: contiguous, in member
// order, sizes differing by at most one. [any-thread]
[[nodiscard]] constexpr ItemRange member_share(std::size_t items,
                                               std::size_t member,
                                               std::size_t members) noexcept {
  const std::size_t base = items / members;
  const std::size_t extra = items % members;
  const std::size_t begin = member * base + (member < extra ? member : extra);
  return {begin, begin + base + (member < extra ? 1 : 0)};
}

// Invariants: (1) member 0 is the thread that calls run(); (2) run() returns after every member has
// returned, and all that members wrote is visible to the caller then.
// Thread rule: one run() at a time, from one thread. Cost of run(): waking and collecting the other
// members, tens of microseconds; nothing for a team of one.
class ThreadTeam {
 public:
  static constexpr std::size_t kMaxMembers = 256;

  // A team of `members` threads including the caller, 1 to kMaxMembers.
  // Errors: invalid_argument (members out of range), host_memory (the system gives no more threads:
  // ask for fewer).
  [[nodiscard]] static Result<ThreadTeam> create(std::size_t members);

  ThreadTeam(ThreadTeam&& other) noexcept;
  ThreadTeam& operator=(ThreadTeam&& other) noexcept;
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;
  ~ThreadTeam();  // joins; must not run inside run()

  [[nodiscard]] std::size_t members() const noexcept;

  // Calls function(member) once on every member, 0 <= member < members(). `function` must not
  // throw.
  template <class Function>
  void run(Function&& function) {
    using Plain = std::remove_reference_t<Function>;
    run_plain(
        [](void* context, std::size_t member) noexcept { (*static_cast<Plain*>(context))(member); },
        const_cast<void*>(static_cast<const void*>(&function)));
  }

 private:
  struct State;
  using PlainFunction = void (*)(void* context, std::size_t member) noexcept;

  explicit ThreadTeam(std::unique_ptr<State> state) noexcept;
  void run_plain(PlainFunction function, void* context) noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace kvspan::model
