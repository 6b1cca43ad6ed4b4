// SPDX-License-Identifier: Apache-2.0
// The thread team: one mutex, two condition variables, a round number. A member wakes when the
// round number has moved on from the one that it last served.
// Read next: thread_team.hpp for the contract.
#include "model/thread_team.hpp"

#include "model/fail.hpp"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace kvspan::model {

struct ThreadTeam::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable done;
  std::uint64_t round = 0;
  std::size_t running = 0;
  bool ending = false;
  PlainFunction function = nullptr;
  void* context = nullptr;
  std::vector<std::thread> threads;

  void serve(std::size_t member) noexcept {
    std::uint64_t served = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return ending || round != served; });
      if (ending) {
        return;
      }
      served = round;
      const PlainFunction call = function;
      void* const argument = context;
      lock.unlock();
      call(argument, member);
      lock.lock();
      running -= 1;
      if (running == 0) {
        done.notify_one();
      }
    }
  }

  void end() noexcept {
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    wake.notify_all();
    for (std::thread& thread : threads) {
      thread.join();
    }
    threads.clear();
  }
};

Result<ThreadTeam> ThreadTeam::create(std::size_t members) {
  if (members < 1 || members > kMaxMembers) {
    return fail(Errc::invalid_argument,
                "a team of {} threads was asked for: use 1 to {}",
                members,
                kMaxMembers);
  }
  try {
    auto state = std::make_unique<State>();
    state->threads.reserve(members - 1);
    try {
      for (std::size_t member = 1; member < members; ++member) {
        state->threads.emplace_back([raw = state.get(), member] { raw->serve(member); });
      }
    } catch (const std::system_error&) {
      const std::size_t got = state->threads.size() + 1;
      state->end();
      return fail(Errc::host_memory,
                  "the system gives {} of the {} threads asked for: use fewer threads",
                  got,
                  members);
    }
    return ThreadTeam(std::move(state));
  } catch (const std::bad_alloc&) {
    return fail(Errc::host_memory, "not enough memory for a team of {} threads", members);
  }
}

ThreadTeam::ThreadTeam(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}

ThreadTeam::ThreadTeam(ThreadTeam&& other) noexcept = default;

ThreadTeam& ThreadTeam::operator=(ThreadTeam&& other) noexcept {
  if (this != &other) {
    if (state_ != nullptr) {
      state_->end();
    }
    state_ = std::move(other.state_);
  }
  return *this;
}

ThreadTeam::~ThreadTeam() {
  if (state_ != nullptr) {
    state_->end();
  }
}

std::size_t ThreadTeam::members() const noexcept {
  return state_->threads.size() + 1;
}

void ThreadTeam::run_plain(PlainFunction function, void* context) noexcept {
  if (state_->threads.empty()) {
    function(context, 0);
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->function = function;
    state_->context = context;
    state_->running = state_->threads.size();
    state_->round += 1;
  }
  state_->wake.notify_all();
  function(context, 0);
  std::unique_lock lock(state_->mutex);
  state_->done.wait(lock, [&] { return state_->running == 0; });
}

}  // namespace kvspan::model
